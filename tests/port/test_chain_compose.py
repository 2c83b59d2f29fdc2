"""`mkport compose FILE.toml`: the example runs, and whatever does not fit is refused by place."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mkport.cli.main import app
from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port.chain import read_chain
from mkport.port.chain_check import check_chain, fill_chain

EXAMPLE = Path(__file__).parents[2] / "docs/examples/mlp"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")


def mkport(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    """A copy of the example that may be changed."""
    copied = shutil.copytree(
        EXAMPLE, tmp_path / "mlp", ignore=shutil.ignore_patterns("__pycache__")
    )
    return copied / "mlp.toml"


@pytest.mark.parametrize(
    ("target", "machine"), [("cpu", "cpu"), pytest.param("cuda", "host", marks=needs_compiler)]
)
def test_the_example_is_one_verified_kernel(target: str, machine: str, tmp_path: Path) -> None:
    out, schedule = tmp_path / "mlp.txt", tmp_path / "mlp.json"
    args = ["--target", target, "--check", machine, "--schedule", schedule]
    args += ["--trace", tmp_path] if target == "cpu" else []
    done = mkport("compose", EXAMPLE / "mlp.toml", "-o", out, *args, "--workers", 3, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["nodes"] == len(found["verdicts"]) == 4
    assert all(v["ok"] and v["same_bits"] for v in found["verdicts"])
    assert {v["shape"] for v in found["verdicts"]} == {"rms_norm", "up", "silu_mul", "down"}
    for op in ("rms_norm", "matmul", "silu_mul"):
        assert op in out.read_text()
    if target == "cpu":
        assert "measured on" in (tmp_path / "times.json").read_text()
        assert (tmp_path / "trace.json").is_file()
    verified = mkport("verify", schedule, "--ops", EXAMPLE / "ops")
    assert verified.exit_code == 0 and "safe: 11 records on 3 workers" in verified.stdout


def test_kinds_follow_from_what_the_nodes_do() -> None:
    chain = read_chain(EXAMPLE / "mlp.toml")
    kinds = {name: spec.kind for name, spec in chain.graph.tensors.items()}
    assert kinds == {
        "x": "input", "norm_w": "input", "normed": "scratch", "up_w": "weight", "up": "scratch",
        "act": "scratch", "down_w": "weight", "y": "output",
    }  # fmt: skip
    given = fill_chain(chain, np.random.default_rng(0))
    assert set(given) == {"x", "norm_w", "up_w", "down_w"}
    assert 0.5 <= given["norm_w"].min() and given["norm_w"].max() < 1.5
    assert given["up_w"].std() < 0.2


@needs_compiler
def test_a_wrong_body_fails_at_its_node_and_nowhere_else(mlp: Path) -> None:
    task = mlp.parent / "ops/silu_mul/task.cuh"
    task.write_text(task.read_text().replace("x + a.n + i", "x + i"))
    verdicts = check_chain(read_chain(mlp), "host")
    assert [v.shape for v in verdicts if not v.ok] == ["silu_mul"]
    done = mkport("compose", mlp, "-o", mlp.parent / "x.cu", "--target", "cuda", "--check", "host")
    assert done.exit_code == 1


@needs_compiler
def test_accesses_that_leave_out_a_read_are_found_by_the_oracle_or_the_other_order(
    mlp: Path,
) -> None:
    """The op says that it reads less than it does, so no wait is derived: results change."""
    op = mlp.parent / "ops/silu_mul/op.py"
    op.write_text(op.read_text().replace('yield read("x", (tile, tile + 1), (0, 2 * a.n))', "pass"))
    assert not all(v.ok for v in check_chain(read_chain(mlp), "host", workers=4, seed=3))


EDITS: dict[str, tuple[str, str, str]] = {
    "no TOML": ("[tensors]", "[tensors", "is no TOML"),
    "a key": ('title = "', 'titel = "', "the unknown key 'titel'; there are cache, nodes"),
    "a tensor's key": ("fill = [0.5", "full = [0.5", "'norm_w' has the unknown key 'full'"),
    "an op": ('op = "rms_norm"', 'op = "rmsnrm"', "There is no op 'rmsnrm'; did you mean rmsnorm"),
    "no op": ('op = "rms_norm"\n', "", r"nodes\[0\] names no op"),
    "ops elsewhere": ('ops = ["ops"]', 'ops = ["oops"]', "There is no op in .*oops"),
    "a dtype": ("y = { shape = [4, 64] }", 'y = { shape = [4, 64], dtype = "f8" }', "'f8', not"),
    "a kind": ('[64, 160], kind = "weight"', '[64, 160], kind = "wait"', "'wait', not one of"),
    "a shape": ("y = { shape = [4, 64] }", "y = { shape = [4, -64] }", "not a list of positive"),
    "no shape": ("y = { shape = [4, 64] }", "y = {}", "has no shape"),
    "a tensor that nobody uses": (
        "y = { shape = [4, 64] }", "y = { shape = [4, 64] }\nz = { shape = [2] }",
        "used by no node",
    ),
    "tiles": ("tiles = 4", "tiles = 5", "says tiles = 5, but its op has 4 here"),
    "an argument": ("eps = 1e-5", "epsilon = 1e-5", "has no argument 'epsilon'"),
    "a missing argument": (", eps = 1e-5", "", "needs the argument 'eps'"),
    "a number": ("n = 320", "n = 3.5", "argument 'n', is 3.5, not an int32"),
    "a tensor's name": ('x = "act"', 'x = "acts"', "is 'acts', not the name of a tensor"),
    "another storage type": (
        "up = { shape = [4, 320] }", 'up = { shape = [4, 320], dtype = "i32" }',
        "is 'up' of dtype i32, but the op has f32 there",
    ),
    "shapes that do not fit": (
        "act = { shape = [4, 160] }", "act = { shape = [4, 144] }",
        r"y is \[4, 144\], not \[4, n = 160\]",
    ),
    "a label twice": ('label = "down"', 'label = "up"', "has the label 'up' a second time"),
    "no such oracle": (
        "tiles = 4 ", 'oracle = "oracles.py:norm"\ntiles = 4 ',
        "no such oracle as 'oracles.py:norm'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_what_does_not_fit_is_refused_by_place(what: str, mlp: Path) -> None:
    before, after, said = EDITS[what]
    text = mlp.read_text()
    assert before in text
    mlp.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError, match=said):
        read_chain(mlp)


def test_no_file_and_no_nodes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_chain(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(UserError, match=r"holds no \[\[nodes\]\]"):
        read_chain(tmp_path / "empty.toml")


def test_a_node_without_an_oracle_cannot_be_checked(mlp: Path) -> None:
    mlp.write_text(mlp.read_text().replace('oracle = "oracles.py"', ""))
    with pytest.raises(UserError, match="node 'rms_norm' has no oracle"):
        check_chain(read_chain(mlp))


@pytest.mark.parametrize(
    ("fill", "said"), [('"many"', "filled for a check with 'many'"), ("[1]", "write `fill =")]
)
def test_fills_that_are_none(fill: str, said: str, mlp: Path) -> None:
    mlp.write_text(mlp.read_text().replace("fill = [0.5, 1.5]", f"fill = {fill}"))
    with pytest.raises(UserError, match=said):
        fill_chain(read_chain(mlp), np.random.default_rng(0))


def test_values_are_what_a_tensor_holds_in_a_check(mlp: Path) -> None:
    filled = "fill = [0.5, 1.5]"
    text = mlp.read_text()
    values = [n / 8 for n in range(64)]
    mlp.write_text(text.replace(filled, f"values = {values}"))
    arrays = fill_chain(read_chain(mlp), np.random.default_rng(0))
    assert arrays["norm_w"].tolist() == values
    mlp.write_text(text.replace(filled, f"values = {values[1:]}"))
    with pytest.raises(UserError, match="with all of its elements"):
        fill_chain(read_chain(mlp), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((EXAMPLE / "mlp.toml", "--batch", 2), "leave out the options of a model"),
        (
            (EXAMPLE / "mlp.toml", "--check", "host", "--trace", "t"),
            "use --target cuda for both",
        ),
        (("--check", "cpu"), "are for a FILE.toml"),
        ((EXAMPLE / "mlp.toml", "--check", "gpu"), "There is no machine 'gpu'"),
        ((EXAMPLE / "mlp.toml", "--workers", 0), "0 workers asked for"),
    ],
)
def test_wrong_use_of_the_verb(args: tuple[Any, ...], said: str, tmp_path: Path) -> None:
    done = mkport("compose", *args, "-o", tmp_path / "x.py")
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "x.py").exists()
