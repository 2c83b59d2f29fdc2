"""`mkport check` of a port, whose oracle is its original, and of ops whose oracles are wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mkport.cli.main import app
from mkport.declare import Op
from mkport.errors import UserError
from mkport.library import ops_in
from mkport.machines.host.build import compiler
from mkport.port.port import port_file
from mkport.port.scaffold import new_op
from mkport.testing import check_op

CLI = CliRunner()
TEXT = """\
__global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
"""
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")


@pytest.fixture
def ported(tmp_path: Path) -> Path:
    """A folder with a port in it, made with arguments."""
    (tmp_path / "twice.cu").write_text(TEXT)
    port_file(
        tmp_path / "twice.cu", block=(64, 1, 1), grid=(2, 1, 1), out=tmp_path / "ops", run=False,
        compile=False, arguments=["x=f32[100]", "y=f32[100]", "n=100"],
    )  # fmt: skip
    return tmp_path / "ops"


@needs_compiler
def test_a_port_is_held_to_its_originals_bits(ported: Path) -> None:
    done = CLI.invoke(app, ["check", "--ops", str(ported), "--machine", "host"])
    assert done.exit_code == 0 and "3 of 3 checks passed" in done.output, done.output
    task = ported / "twice/task.cuh"
    task.write_text(task.read_text().replace("2.0f * x[i]", "2.5f * x[i]"))
    done = CLI.invoke(app, ["check", "--ops", str(ported), "--machine", "host"])
    assert done.exit_code == 1 and "1 of 3 checks passed" in done.output
    said = " ".join(done.output.split())
    assert "the arguments it was ported with" in said and "elements differ" in said


def test_where_a_port_is_checked_is_said(ported: Path) -> None:
    done = CLI.invoke(app, ["check", "--ops", str(ported)])
    assert done.exit_code == 2
    assert "Ported CUDA kernels are checked with --machine host" in " ".join(done.output.split())
    (ported / "twice/port.json").write_text("{}")
    with pytest.raises(UserError, match=r"port\.json does not say how the port was made"):
        check_op(ops_in(ported)["twice"], "host", "ported")


MISTAKES = {
    "the dict's name": ('{"y": t.factor * t.x}', '{"z": t.factor * t.x}', "the output 'y'"),
    "an exception": ("t.factor * t.x", "t.factor * t.w", r"the oracle failed at .*oracle\.py:15"),
    "no tensor": ('{"y": t.factor * t.x}', '{"y": 3.0}', "returns a float for 'y'"),
    "no dict": ('{"y": t.factor * t.x}', "t.x", "returns a Tensor; it must return a dict"),
    "a shape": ("t.factor * t.x", "t.factor * t.x[0]", r"returns 'y' of shape \[64\], but make"),
    "an argument": ("rows, n):", "rows):", "make takes others"),
    "make": ("np.full_like", "np.ful_like", r"make for the shape 'one row' failed at .*:21"),
    "no case": ("return Case(", "return dict(", "failed at|must return a Case"),
    "no shapes": ("SHAPES =", "SHAPE =", r"oracle\.py defines no SHAPES"),
    "a call": ("kernel(a.x, a.y", "kernel(a.x, a.q", r"call_standalone failed at .*:27"),
    "syntax": ("def make(", "def make((", r"importing oracle\.py failed at .*:18"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_oracles_mistake_is_said_with_its_place(mistake: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    new_op("mine", tmp_path)
    file = tmp_path / "mine/oracle.py"
    before, after, words = MISTAKES[mistake]
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    op: Op = ops_in(tmp_path)["mine"]
    with pytest.raises(UserError, match=words):
        check_op(op, form="standalone", dtype="f32")
