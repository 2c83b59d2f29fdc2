"""What a file's host code launches, as one megakernel: its bits are those of the launches."""

import json
import struct
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mkport.cli.main import app
from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port import launch_bits
from mkport.port.launched import Launched, port_launches
from mkport.port.several import host_launches

DOCS = Path(__file__).parents[2] / "docs"
MLP = DOCS / "examples/ported_mlp"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
KERNELS = """\
__global__ void add(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}
__global__ void mul(float* y, double f, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = y[i] * f;
}
__global__ void turn(const float* x, float* y, int m, int n) {
  int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
  if (c < n && r < m) y[c * m + r] = x[r * n + c];
}
"""
HOST = """\
void run(float* a, float* b, float* c, int m, int n, double f) {
  const int total = m * n;
  const int threads = 128;
  dim3 grid((n + 15) / 16, (m + 15) / 16);
  add<<<(total + threads - 1) / threads, threads>>>(a, b, total);
  mul<<<(total + threads - 1) / threads, threads>>>(b, f, total);
  turn<<<grid, dim3(16, 16)>>>(b, c, m, n);
  add<<<dim3((total + 127) / 128), 128>>>(c, a, total);
  add<<<(total + 63) / 64, 64>>>(a, b, total);
}
"""
GIVEN = ["a=f32[20,30]", "b=f32[20,30]", "c=f32[20,30]", "m=20", "n=30", "f=1.5"]


def written(folder: Path, host: str) -> Path:
    path = folder / "file.cu"
    path.write_text(KERNELS + host)
    return path


def mkport(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@needs_compiler
def test_the_megakernel_has_the_bits_of_the_launches(tmp_path: Path) -> None:
    """Buffers that are read and written by turns, a kernel at two block sizes, a double."""
    path = written(tmp_path, HOST)
    made = port_launches(path, host_launches(path), GIVEN, out=tmp_path / "out", compile=False)
    assert made.verdict == "ported" and made.same, made.as_dict()
    assert set(made.reports) == {"add", "mul", "turn", "add_4"}
    chain = (tmp_path / "out/file.toml").read_text()
    assert chain == made.chain and chain.count('op = "add"') == 2
    assert "grid_x = 2, grid_y = 2" in chain and 'a = { dtype = "f32"' in chain
    assert "<" not in chain
    composed = mkport("compose", tmp_path / "out/file.toml", "-o", tmp_path / "x.cu",
                      "--target", "cuda", "--schedule", tmp_path / "x.json")  # fmt: skip
    assert composed.exit_code == 0, composed.output
    verified = mkport("verify", tmp_path / "x.json", "--ops", tmp_path / "out/ops")
    assert verified.exit_code == 0 and "safe" in verified.stdout


@needs_compiler
def test_another_order_than_the_host_s_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, HOST)
    real: Any = launch_bits._megakernel

    def backwards(made: Any, tensors: Any, wanted: Any) -> list[str]:
        made.launches.reverse()
        made.ports.reverse()
        made.ops.reverse()
        return real(made, tensors, wanted)

    monkeypatch.setattr(launch_bits, "_megakernel", backwards)
    made = port_launches(path, host_launches(path), GIVEN, out=tmp_path / "out", compile=False)
    assert made.exit_code == 3 and made.same is False and not (tmp_path / "out").exists()
    assert "other bits than the launches in their order" in made.findings[0].cause


@needs_compiler
def test_an_original_that_races_is_told_with_its_line(tmp_path: Path) -> None:
    host = f"{HEAD}\n  add<<<2, 64>>>(a, b, n);\n  same<<<2, 64>>>(b);\n}}\n"
    path = written(tmp_path, "__global__ void same(float* y) { y[0] += threadIdx.x; }\n" + host)
    made = port_launches(
        path, host_launches(path), ["a=f32[128]", "b=f32[128]", "n=128"], compile=False
    )
    assert made.exit_code == 4
    assert made.findings[0].code == "MK201" and made.findings[0].line == 13


HEAD = "void run(float* a, float* b, int n) {"
REFUSED = {
    "a part of a buffer": (f"{HEAD} add<<<1, 128>>>(a, a + n, n); }}", "no whole buffer"),
    "a loop": (f"{HEAD} for (int i = 0; i < 3; i++) add<<<1, 128>>>(a, b, n); }}", "in a loop"),
    "a condition": (f"{HEAD} if (n) add<<<1, 128>>>(a, b, n); }}", "in a condition"),
    "memory that is set": (
        f"{HEAD} cudaMemset(b, 0, 4); add<<<1, 128>>>(a, b, n); }}", "calls cudaMemset"),
    "two names of one buffer": (
        "void run(float* a, int n) { float* b = a + 8; add<<<1, 128>>>(a, b, n); }",
        "sets b to `a \\+ 8`"),
    "buffers that change places": (
        f"{HEAD} add<<<1, 128>>>(a, b, n); std::swap(a, b); add<<<1, 128>>>(a, b, n); }}",
        "calls std::swap"),
    "buffers that change places by hand": (
        f"{HEAD} add<<<1, 128>>>(a, b, n); float* t = a; a = b; b = t; "
        "add<<<1, 128>>>(a, b, n); }", "sets a to `b`"),
    "a number that changes": (
        f"{HEAD} add<<<1, 128>>>(a, b, n); n /= 2; add<<<1, 128>>>(a, b, n); }}",
        "run changes n on its way"),
    "a number that is not followed": (
        f"{HEAD} mul<<<1, 128>>>(b, 1.5 * n, n); add<<<1, 128>>>(a, b, n); }}",
        "give --arg mul.f=VALUE"),
    "a grid that is not known": (
        f"{HEAD} add<<<blocks_for(n), 128>>>(a, b, n); }}", "the grid `blocks_for"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_chain_is_wrong_use(what: str, tmp_path: Path) -> None:
    host, said = REFUSED[what]
    path = written(tmp_path, host + "\n")
    given = ["a=f32[128]", "b=f32[128]", "n=100"]
    launches = host_launches(path)
    names = {name for one in launches for name in one.touched("read", "write", "update")}
    given = [text for text in given if text[0] in names | {"n"}]
    with pytest.raises(UserError, match=said):
        port_launches(path, launches, given, compile=False)


@needs_compiler
def test_what_a_kernel_leaves_as_it_was_is_state(tmp_path: Path) -> None:
    """It writes every other element: the rest is what the buffer held, also for who reads it."""
    path = tmp_path / "file.cu"
    path.write_text(
        "__global__ void odd(float* y) { if (threadIdx.x % 2) y[threadIdx.x] = 1.f; }\n"
        "__global__ void all(const float* x, float* y) { y[threadIdx.x] = 2.f * x[threadIdx.x]; }\n"
        "void run(float* a, float* b) { odd<<<1, 64>>>(a); all<<<1, 64>>>(a, b); }\n"
    )
    made = port_launches(path, host_launches(path), ["a=f32[64]", "b=f32[64]"], compile=False)
    assert made.same and 'a = { dtype = "f32", shape = [64], kind = "state" }' in made.chain
    assert 'b = { dtype = "f32", shape = [64] }' in made.chain


def test_values_by_parameter_and_types_of_a_dispatching_macro(tmp_path: Path) -> None:
    path = tmp_path / "file.cu"
    path.write_text(
        "template <typename scalar_t, int N> __global__ void up(scalar_t* y, float f) {\n"
        "  y[blockIdx.x * N + threadIdx.x] *= f;\n}\n"
        "void run(torch::Tensor y, double s) {\n"
        '  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "up", [&] {\n'
        "    up<scalar_t, 32><<<4, 32>>>(y.data_ptr<scalar_t>(), rsqrtf(s));\n  });\n}\n"
    )
    shown = mkport("port", path, "--launches")
    assert "for scalar_t = float; --instantiate scalar_t=TYPE for another" in shown.stdout
    assert 'y = { dtype = "f32"' in shown.stdout
    (half,) = host_launches(path, types={"scalar_t": "__half"})
    assert half.instance == ("__half", "32")
    with pytest.raises(UserError, match=r"up gets as f, `rsqrtf\(s\)`, is not known"):
        port_launches(path, host_launches(path), ["y=f32[128]"], compile=False)
    done = mkport("port", path, "--launches", "--arg", "y=f32[128]", "--arg", "up.f=0.5",
                  "--no-run", "--json")  # fmt: skip
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["verdict"] == "ported" and found["same_bits"] is None
    assert "f = 0.5, grid_x = 4" in found["chain"]


def test_a_function_is_named_where_several_launch(tmp_path: Path) -> None:
    path = written(tmp_path, HOST + HOST.replace("run(", "walk("))
    with pytest.raises(UserError, match=r"several host functions launch kernels: run, walk"):
        port_launches(path, host_launches(path), GIVEN)
    assert mkport("port", f"{path}:walk", "--launches").stdout.count("in walk)") == 5
    assert mkport("port", f"{path}:fly", "--launches").exit_code == 2
    assert mkport("port", path, "--launches", "--grid", "3").exit_code == 2


@needs_compiler
def test_an_mlp_of_ordinary_kernels_is_one_kernel(tmp_path: Path) -> None:
    """The commands at the head of the example: ported, composed, verified, checked, traced."""
    pytest.importorskip("torch")
    head = (MLP / "mlp.cu").read_text().split("#include")[0]
    words = " ".join(line.removeprefix("//").rstrip("\\") for line in head.splitlines()).split()
    words = [word.replace("docs/", f"{DOCS}/") for word in words[words.index("mkport") :]]
    words = [str(tmp_path / word) if word.split("/")[0] == "out" else word for word in words]
    second = words.index("mkport", 1)
    done = mkport(*words[1:second], "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["same_bits"], found["findings"]
    assert [need["variable"] for need in found["dependencies"]] == ["normed", "up", "act"]
    done = mkport(*words[second + 1 :], "--schedule", tmp_path / "plan.json", "--json")
    checked = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert [v["shape"] for v in checked["verdicts"]] == ["rms_norm", "gemm", "silu_mul", "gemm 2"]
    assert all(v["ok"] and v["same_bits"] for v in checked["verdicts"])
    times = json.loads((tmp_path / "out/trace/times.json").read_text())
    assert "the times are not" in json.dumps(times)
    assert mkport("verify", tmp_path / "plan.json", "--ops", tmp_path / "out/ops").exit_code == 0


@pytest.mark.parametrize("lost", ["k", "add.m", "sub.n"])
def test_values_that_nothing_takes_are_wrong_use(lost: str, tmp_path: Path) -> None:
    path = written(tmp_path, HOST)
    given = ["a=f32[128]", "b=f32[128]", "n=100", f"{lost}=3"]
    with pytest.raises(UserError, match=rf"--arg {lost}: .*file.cu:run has no such variable"):
        port_launches(path, host_launches(path), given, compile=False)


STRUCTS = """\
struct Dims { int n; float scale[2]; };
__global__ void mul(float* y, double f, Dims d) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < d.n) y[i] = y[i] * f * d.scale[1] + d.scale[0];
}
__global__ void add(const float* x, float* y, Dims d) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < d.n) y[i] += x[i] * d.scale[0];
}
void run(float* b, float* c, int n, double f, double g, Dims d) {
  Dims e = {n, {1, 2}};
  mul<<<(n + 127) / 128, 128>>>(b, f, d);
  /*between*/
  mul<<<(n + 127) / 128, 128>>>(b, g, e);
  add<<<(n + 127) / 128, 128>>>(b, c, Dims{n, {3, 4}});
}
"""
BUFFERS = ["b=f32[100]", "c=f32[100]", "n=100", "f=2.5", "g=3.5"]


def structs(folder: Path, *given: str, between: str = "") -> Launched:
    path = folder / "structs.cu"
    path.write_text(STRUCTS.replace("/*between*/", between))
    return port_launches(path, host_launches(path), [*BUFFERS, *given], compile=False)


@needs_compiler
def test_each_value_that_launches_get_is_one_of_its_own(tmp_path: Path) -> None:
    """Doubles and structs by value lie in tensors, one for each of the host's values."""
    made = structs(tmp_path, "d={100,1,2}", "e={90,0.5,3}", "add.d={80,3,4}")
    assert made.verdict == "ported" and made.same, made.lines
    chain = tomllib.loads(made.chain)
    numbers = {name: about["values"] for name, about in chain["tensors"].items() if "_" in name}
    assert numbers["mul_f"] == [2.5] and numbers["mul_f_2"] == [3.5]
    assert bytes(numbers["mul_d_2"]) == struct.pack("iff", 90, 0.5, 3)
    assert [node["args"].get("f") for node in chain["nodes"]] == ["mul_f", "mul_f_2", None]
    assert [node["args"]["d"] for node in chain["nodes"]] == ["mul_d", "mul_d_2", "add_d"]


@pytest.mark.parametrize(
    ("given", "between", "words"),
    [
        (["d={100,1,2}", "add.d={80,3,4}"], "", r"give --arg 'e=\{N,SCALE\[0\],SCALE\[1\]\}'"),
        (["d={100,1,2}", "e={90,1,2}"], "", r"give --arg 'add.d=\{N,SCALE"),
        (["mul.d={100,1,2}", "add.d={80,3,4}"], "", "gives mul several values for d: d, e"),
        (["mul.f=2"], "", "gives mul several values for f: f, g"),
        ([], "d.scale[0] = 4;", "changes `d` between its launches"),
        ([], "e = d;", "changes `e` between its launches"),
        ([], "fill(&e);", "changes `e` between its launches"),
    ],
)
def test_structs_that_are_not_known_are_asked_for(
    given: list[str], between: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        structs(tmp_path, *given, between=between)


def test_a_struct_may_be_declared_between_launches(tmp_path: Path) -> None:
    given = ["d={100,1,2}", "e={90,0.5,3}", "add.d={80,3,4}"]
    assert structs(tmp_path, *given, between="Dims late = d; if (n && e.n) n;").verdict == "ported"
