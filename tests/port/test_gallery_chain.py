"""Several kernels of one file: their order proposed, and the ported ops as one megakernel."""

import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from mkport.cli.main import app
from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port.chain import read_chain
from mkport.port.chain_check import check_chain
from mkport.port.chain_file import chain_text
from mkport.port.port import port_file
from mkport.port.several import dependencies, host_launches
from mkport.testing.parts import load_file

GALLERY = Path(__file__).parents[2] / "docs/gallery"
SPLIT_K = GALLERY / "kernels/split_k.cu"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
ORACLES = """\
import torch

def splitk_partial(t):
    a, b = t.A.reshape(t.M, t.K), t.B.reshape(t.K, t.N)
    length = -(-t.K // t.splits)
    parts = [a[:, i : i + length] @ b[i : i + length] for i in range(0, t.K, length)]
    return {"partial": torch.stack(parts).reshape(-1)}

def splitk_reduce(t):
    return {"C": (t.partial.reshape(t.splits, t.M, t.N).sum(0) + t.bias).reshape(-1)}
"""


def _gallery() -> ModuleType:
    return load_file(GALLERY / "gallery.py")


def test_the_order_of_two_launches_is_proposed() -> None:
    launches = host_launches(SPLIT_K)
    assert [(launch.kernel, launch.function) for launch in launches] == [
        ("splitk_partial", "splitk_gemm"), ("splitk_reduce", "splitk_gemm"),
    ]  # fmt: skip
    (only,) = dependencies(launches)
    assert only.variable == "partial" and only.why == "reads what it wrote"
    lines = SPLIT_K.read_text().splitlines()
    assert "splitk_partial<<<" in lines[only.earlier.line - 1]
    assert str(only) == (
        f"splitk_reduce (line {only.later.line}) waits for splitk_partial (line "
        f"{only.earlier.line}): reads what it wrote, partial"
    )


CONFLICTS = """
__global__ void first(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x] * n; }
template <typename T> __global__ void second(T* y) { y[threadIdx.x] += 1; }
void run(float* a, float* b, torch::Tensor c) {
  first<<<1, 32>>>(a, b, 3);
  first<<<1, 32>>>(b, (float*)a, 4);
  second<float><<<1, 32>>>(c.data_ptr<float>());
  second<float><<<1, 32>>>(b);
}
void other(float* a, float* b) { first<<<1, 32>>>(b, a, 5); }
"""


def test_every_kind_of_conflict_within_one_host_function(tmp_path: Path) -> None:
    path = tmp_path / "file.cu"
    path.write_text(CONFLICTS)
    launches = host_launches(path)
    assert [launch.function for launch in launches] == ["run"] * 4 + ["other"]
    found = {
        (launches.index(d.earlier), launches.index(d.later), d.variable, d.why)
        for d in dependencies(launches)
    }
    assert found == {
        (0, 1, "b", "reads what it wrote"), (0, 1, "a", "overwrites what it read"),
        (0, 3, "b", "reads what it wrote"), (1, 3, "b", "overwrites what it read"),
        (0, 3, "b", "overwrites what it wrote"),
    }  # fmt: skip
    text = chain_text(path, launches[:4])
    assert 'args = { y = "c", grid_x = 1 }' in text and 'label = "second 2"' in text
    assert 'x = "b", y = "a", n = 4' in text
    tensors = tomllib.loads(re.sub(r"<\w+>", "1", text))["tensors"]
    assert {name: tensor.get("kind") for name, tensor in tensors.items()} == {
        "a": "state", "b": None, "c": "state",
    }, "what is read before it is written lives from step to step"  # fmt: skip


@pytest.mark.parametrize(
    ("given", "read"),
    [("2.f", 2.0), (".5f", 0.5), ("-1e-5f", -1e-5), ("3.25", 3.25), ("7u", 7), ("n", "<n>")],
)
def test_numbers_are_proposed_as_toml_writes_them(
    tmp_path: Path, given: str, read: float | str
) -> None:
    path = tmp_path / "file.cu"
    path.write_text(
        "__global__ void k(float* x, float a) { *x = a; }\n"
        f"void run(float* x, float n) {{ k<<<1, 32>>>(x, {given}); }}\n"
    )
    text = chain_text(path, host_launches(path)).replace("<n>", '"<n>"')
    (node,) = tomllib.loads(re.sub(r"<(size|blocks)>", "1", text))["nodes"]
    assert node["args"]["a"] == read


def test_a_file_that_launches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.cu"
    path.write_text("__global__ void k(float* x) { *x = 1; }\n")
    with pytest.raises(UserError, match="launches no kernel of its own"):
        host_launches(path)


@needs_compiler
def test_ported_ops_are_one_verified_megakernel(tmp_path: Path) -> None:
    """The proposed chain with its blanks filled in: each node by its oracle, on other workers."""
    gallery = _gallery()
    m, n, k, splits = gallery.M, gallery.N, gallery.K, gallery.SPLITS
    for entry in gallery.ENTRIES:
        if entry.file == "split_k.cu":
            report = port_file(
                SPLIT_K, entry.kernel, block=entry.block, run=False, out=tmp_path / "ops"
            )
            assert report.verdict == "ported"
    text = chain_text(SPLIT_K, host_launches(SPLIT_K))
    partial, joined = text.split("splitk_reduce", 1)
    sizes = {"A": m * k, "B": k * n, "partial": splits * m * n, "bias": n, "C": m * n}
    for name, size in sizes.items():
        partial = partial.replace(
            f'{name} = {{ dtype = "f32", shape = [<size>]',
            f'{name} = {{ dtype = "f32", shape = [{size}]',
        )
    partial = partial.replace("grid_x = <(N + 63) / 64>", "grid_x = 2")
    text = f"{partial}splitk_reduce{joined.replace('<(M * N + 63) / 64>', '7')}"
    for name, value in {"<M>": m, "<N>": n, "<K>": k, "<splits>": splits}.items():
        text = text.replace(name, str(value))
    path = tmp_path / "split_k.toml"
    path.write_text(text.replace('ops = ["ops"]', 'ops = ["ops"]\noracle = "oracles.py"'))
    (tmp_path / "oracles.py").write_text(ORACLES)
    chain = read_chain(path)
    kinds = {name: spec.kind for name, spec in chain.graph.tensors.items()}
    assert kinds["partial"] == "scratch" and kinds["C"] == "output" and kinds["A"] == "input"
    verdicts = check_chain(chain, "host", workers=3)
    assert len(verdicts) == 2 and all(v.ok and v.same_bits for v in verdicts), verdicts


def test_the_verb_shows_the_proposal() -> None:
    done = CliRunner().invoke(app, ["port", str(SPLIT_K), "--launches"])
    assert done.exit_code == 0 and "reads what it wrote, partial" in done.stdout
    found = json.loads(
        CliRunner().invoke(app, ["port", str(SPLIT_K), "--launches", "--json"]).stdout
    )
    assert found["dependencies"] == [
        {"earlier": 0, "later": 1, "variable": "partial", "why": "reads what it wrote"}
    ]
    assert "[[nodes]]" in found["chain"]
