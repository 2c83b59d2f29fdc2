"""`mkport port FILE.py`: Numba kernels end to end, on the machine that they were written for."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mkport.cli.main import app
from mkport.machines.host.build import compiler

MATMUL = Path(__file__).parents[2] / "docs/gallery/kernels/numba_matmul.py"
TYPES = "float32[:,:], float32[:,:], float32[:,:]"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
ROWS = """\
from numba import njit


@njit
def scale_rows(x, y, factor):
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            y[t, i] = factor * x[t, i]
"""


def port(*args: object) -> Result:
    return CliRunner().invoke(app, ["port", *map(str, args)])


@needs_compiler
def test_a_cuda_kernel_of_numba_with_sizes_from_its_arrays(tmp_path: Path) -> None:
    sizes = [text for name in "ABC" for text in ("--arg", f"{name}=f32[20,20]")]
    done = port(
        f"{MATMUL}:fast_matmul", "--types", TYPES, "--grid", "2,2", "--block", "16,16", *sizes,
        "-o", tmp_path, "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["verdict"] == "ported" and found["ran"], found["findings"]
    assert (tmp_path / "fast_matmul" / "task.cuh").is_file()
    checked = CliRunner().invoke(app, ["check", "--ops", str(tmp_path), "--machine", "host"])
    assert checked.exit_code == 0 and "3 of 3 checks passed" in checked.output


def test_an_njit_function_on_the_cpu_machine(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    args = ["--arg", "x=f32[5,7]", "--arg", "y=f32[5,7]", "--arg", "factor=0.5"]
    types = ["--types", "float32[:,:], float32[:,:], float32"]
    done = port(path, *types, *args, "-o", tmp_path / "ops", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["verdict"] == "ported" and found["ran"]
    assert (tmp_path / "ops/scale_rows/task.py").is_file()


def test_a_refusal_has_its_code_line_and_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(ROWS.replace("y[t, i]", "y[t + 1, i]"))
    done = port(path, "--types", "float32[:,:], float32[:,:], float32", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert done.exit_code == 3 and finding["code"] == "MK107" and finding["line"] == 6
    path.write_text("from numba import cuda\n\n@cuda.jit\ndef k(x):\n    x[0] = x[0] ** 0.5\n")
    done = port(path, "--types", "float32[:]")
    assert done.exit_code == 3 and "rows.py:5" in done.stdout


def test_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    assert port(f"{path}:other").exit_code == 2
    assert "those of Numba: scale_rows" in " ".join(port(f"{path}:other").stderr.split())
    types = ("--types", "float32[:,:], float32[:,:], float32")
    assert port(path, *types, "--arg", "x=f32[5,7]").exit_code == 2
    for option in (
        "--shared=64",
        "--instantiate=f<2>",
        "-I.",
        "-DN=3",
        "--immutable=x",
        "--grid=2",
    ):
        done = port(path, *types, option)
        assert done.exit_code == 2, option
        assert "Leave it out" in " ".join(done.stderr.split()), option
    cuda = tmp_path / "k.cu"
    cuda.write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    assert "--types would do nothing" in port(cuda, "--types", "float32[:]").stderr


CHAIN = """\
title = "rows"
ops = ["ops"]
oracle = "oracles.py"

[tensors]
x = { shape = [6, 8] }
y = { shape = [6, 8] }

[[nodes]]
op = "scale_rows"
args = { x = "x", y = "y", factor = 0.5, x_0 = 6, x_1 = 8, y_1 = 8 }
"""


def test_an_njit_function_is_a_node_of_a_chain(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "rows.py").write_text(ROWS)
    types = ("--types", "float32[:,:], float32[:,:], float32")
    done = port(tmp_path / "rows.py", *types, "-o", tmp_path / "ops", "--no-run")
    assert done.exit_code == 0, done.output
    (tmp_path / "rows.toml").write_text(CHAIN)
    (tmp_path / "oracles.py").write_text("def scale_rows(t):\n    return {'y': t.factor * t.x}\n")
    words = ["compose", tmp_path / "rows.toml", "-o", tmp_path / "k.py", "--check", "cpu"]
    done = CliRunner().invoke(app, [*map(str, words), "--trace", str(tmp_path / "trace")])
    assert done.exit_code == 0 and "1 of 1 checks passed" in done.output, done.output
    assert (tmp_path / "trace/times.json").is_file()
    sizes = (tmp_path / "rows.toml").read_text().replace("x_1 = 8", "x_1 = 7")
    (tmp_path / "rows.toml").write_text(sizes)
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 2 and "x_1 is 7, but size 1 of x is 8" in " ".join(done.stderr.split())
