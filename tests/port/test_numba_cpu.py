"""`@njit` functions on the CPU machine: the same bits in tiles, and loops that are no tiles."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mkport.cli.main import app
from mkport.compose import compose_cpu
from mkport.declare.table import Kind
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, deal
from mkport.port.numba_cpu import port_njit, run_njit, same_bits
from mkport.port.numba_file import NumbaRefused
from mkport.port.numba_port import port_python
from mkport.port.numba_tiles import PortedNjit
from mkport.port.report import STEPS
from mkport.testing.parts import load_file

HEAD = "import math\n\nimport numpy as np\nfrom numba import njit, prange\n\nWIDTH = 4\n\n"
SOFTMAX = '''
@njit
def shifted(x, top):
    return math.exp(x - top)


@njit(parallel=True)
def softmax(x, y, scale):
    """Each row's softmax of scale * x, times how far it is from the end."""
    rows, columns = x.shape
    half = columns // 2
    kept = np.empty(WIDTH, np.float32)
    for t in prange(rows):
        for k in range(WIDTH):
            kept[k] = scale * x[t, k]
        top = x[t, 0]
        for i in range(1, columns):
            top = max(top, x[t, i])
        total = 0.0
        for i in range(columns):
            y[t, i] = shifted(x[t, i], top)
            total += y[t, i]
        for i in range(columns):
            if i < WIDTH:
                y[t, i] += kept[i]
            y[t, i] /= total
        y[t, -1] = x[t, half] * len(x)
'''
TYPES = "float32[:,:], float32[:,:], float32"


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(HEAD + text)
    return path


def test_a_function_has_the_same_bits_in_tiles(tmp_path: Path) -> None:
    ported = port_njit(written(tmp_path, SOFTMAX), None, TYPES)
    folder = ported.write(tmp_path / "ops")
    assert {path.name for path in folder.iterdir()} == {"op.py", "task.py", "standalone.py"}
    x = np.random.default_rng(0).standard_normal((7, 21)).astype(np.float32)
    given = {"x": x, "y": np.zeros_like(x), "scale": np.float32(0.7)}
    for workers in (1, 3):
        assert same_bits(ported, given, tmp_path / "ops", workers)
    y = run_njit(ported, given, tmp_path / "ops")["y"]
    assert np.array_equal(y[:, -1], x[:, 10] * 7)
    op = (folder / "op.py").read_text()
    assert 'yield read("x", (tile, tile + 1), (0, a.x.shape[1]))' in op
    assert "tiles=lambda a: a.x_0," in op
    task = (folder / "task.py").read_text()
    assert "def softmax_shifted(x, top)" in task and "get_f32(a.x, t * a.x_1 + i)" in task


def test_steps_integers_and_other_axes(tmp_path: Path) -> None:
    text = """
@njit("void(int32[:], float32[:,:], int32, int32)")
def columns(places, y, first, stop):
    for c in range(first, stop, 3):
        for r in range(len(places)):
            y[r, c] = places[r] + c / 3
"""
    ported = port_njit(written(tmp_path, text))
    ported.write(tmp_path / "ops")
    given = {
        "places": np.array([5, 1, 2], np.int32), "y": np.zeros((3, 12), np.float32),
        "first": 1, "stop": 11,
    }  # fmt: skip
    assert same_bits(ported, given, tmp_path / "ops", 2)
    y = run_njit(ported, given, tmp_path / "ops")["y"]
    assert np.flatnonzero(y[0]).tolist() == [1, 4, 7, 10]


def test_a_port_that_computes_something_else_is_told(tmp_path: Path) -> None:
    ported = port_njit(written(tmp_path, SOFTMAX), "softmax", TYPES)
    task = ported.files["task.py"]
    wrong = PortedNjit(
        ported.name, ported.path, ported.files | {"task.py": task.replace("/ total", "* total")},
        ported.sizes, ported.arrays,
    )  # fmt: skip
    wrong.write(tmp_path / "wrong")
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    given = {"x": x, "y": np.zeros_like(x), "scale": np.float32(1)}
    assert not same_bits(wrong, given, tmp_path / "wrong")


LOOP = "    for t in range(x.shape[0]):\n        "
REFUSED = {
    "    s = 0.0\n" + LOOP + "s += x[t, 0]\n        y[t, 0] = s\n": "s goes from one iteration",
    "    s = np.zeros(3)\n" + LOOP + "s[0] += x[t, 0]\n": "s goes from one iteration",
    LOOP + "y[t + 1, 0] = x[t, 0]\n": "y is not written at `t` alone",
    LOOP + "y[t, 0] = y[t - 1, 0]\n": "y is not written at `t` alone",
    LOOP + "y[t, 0] = x[t, 0]\n    y[0, 0] = 1\n": "is not the loop whose iterations",
    LOOP + "return\n": "a return ends all",
    "    y[0, 0] = 1\n" + LOOP + "y[t, 0] = x[t, 0]\n": "before the loop of tiles",
    "    n = int(x[0, 0])\n    for t in range(n):\n        y[t, 0] = 1\n": "depends on n",
    "    for t in range(8, 0, -1):\n        y[t, 0] = 1\n": "step by a positive number",
    "    for v in x:\n        y[0, 0] = 1\n": "tiles are `for NAME in range",
    LOOP + "y[t] = x[t]\n": "has 2 dimensions; take one element",
    LOOP + "y[t, 0] = np.sum(x)\n": "the array x is used whole",
    LOOP + "y[t][0] = x[t, 0]\n": "write x\\[i, j\\]",
    LOOP + "y[t, 0], y[t, 1] = 1, 2\n": "one element at a time",
    LOOP + "y[t, 0] = taking(x)\n": "used whole|takes an array",
    LOOP + "t = t + 1\n        y[t, 0] = 1\n": "t is changed in the loop that counts it",
    LOOP + "y[t, 0] = 1\n        for t in range(3):\n            y[t, 1] = 2\n": "t is changed",
    "    n = x.shape[0]\n    n = n - 1\n    for t in range(n):\n        y[t, 0] = 1\n": "n is set",
    "    n = 3\n    n, m = x.shape\n    for t in range(n):\n        y[t, 0] = 1\n": "n is set",
    LOOP + "if t == 0:\n            s = 0.0\n        s = s + x[t, 0]\n        y[t, 0] = s\n": (
        "s may still have the value of an iteration before"
    ),
    LOOP + "for i in range(2):\n            v = x[t, i]\n        y[t, 0] = v\n": "v may still have",
    "    k = np.empty(3)\n"
    + LOOP
    + "k[0] += x[t, 0]\n        y[t, 0] = k[0]\n": "k may still hold",
    "    k = np.empty(3)\n" + LOOP + "y[t, 0] = k[0]\n        k[0] = x[t, 0]\n": "k may still hold",
    "    k = np.empty(3)\n" + LOOP + "if t == 0:\n            k[0] = 0\n        y[t, 0] = k[0]\n": (
        "k may still hold"
    ),
    LOOP + "if x[t, 0] > 1:\n            break\n        y[t, 0] = 1\n": "a break ends all",
    LOOP + "y[t, 0] = exp(x[t, 0])\n": "exp is no number or function of this file",
    LOOP + "y[t, 0] = sorted(x)\n": "sorted is a function of Python that tasks lack",
    LOOP + "assert x[t, 0] > 0\n": "a task has nobody to raise to",
    LOOP + "y[t, 0] = np.random.random()\n": "depends on who asked before",
    LOOP + "print(t)\n": "a task does not print",
}


@pytest.mark.parametrize("body", REFUSED)
def test_a_loop_that_is_no_set_of_tiles_is_refused_with_its_line(body: str, tmp_path: Path) -> None:
    text = f"@njit\ndef f(x, y):\n{body}\n@njit\ndef taking(x):\n    return x[0, 0]\n"
    with pytest.raises(NumbaRefused, match=REFUSED[body]) as refused:
        port_njit(written(tmp_path, text), "f", "float32[:,:], float32[:,:]")
    assert refused.value.line > HEAD.count("\n")


@pytest.mark.parametrize(
    ("change", "types", "said"),
    [
        (("@njit(parallel=True)", "@njit(fastmath=True)"), TYPES, "promises no bits"),
        (("", ""), "float32[:,:], float32[:,:]", "3 arguments and 2 types"),
        (("", ""), "float64[:,:], float32[:,:], float32", "x holds float64"),
        (("", ""), "float32[:,:], float32[:,:], float64", "scale is a float64"),
        (("", ""), "float32[:,:], float32[:,:], str", "the type of scale"),
        (("def softmax", "def sum"), TYPES, "a word of Python"),
        (("@njit", "# "), TYPES, "name one of its @njit functions: none"),
    ],
)
def test_what_cannot_be_ported(
    change: tuple[str, str], types: str, said: str, tmp_path: Path
) -> None:
    text = SOFTMAX.replace(*change) if change[0] else SOFTMAX
    with pytest.raises(UserError, match=said):
        port_njit(written(tmp_path, text), None, types)


def test_the_report_has_the_twelve_steps(tmp_path: Path) -> None:
    path = written(tmp_path, SOFTMAX)
    quiet = port_python(path, "softmax", TYPES, run=False)
    assert tuple(step.name for step in quiet.steps) == STEPS
    assert quiet.steps[-1].lines == ["ported, but not run here"] and not quiet.ran
    idle = {step.name for step in quiet.steps if any("not apply:" in line for line in step.lines)}
    assert idle == {"fit", "synchronisation", "compile", "machine code"}
    said = {step.name: " ".join(step.lines) for step in quiet.steps}
    assert "the loop over t in line 20; there are x_0" in said["geometry"]
    assert "y: read and written" in said["memory"] and "x: read" in said["memory"]
    assert "def softmax(x, y, scale)" in said["emit"]
    told = port_python(path, "softmax", TYPES, arguments=["x=f32[3,5]", "y=f32[3,5]", "scale=2.5"])
    assert told.ran and told.steps[-1].lines == ["ported"]
    assert "given arguments x=[3, 5], y=[3, 5], scale=2.5" in told.steps[10].lines
    made = port_python(path, "softmax", TYPES)
    assert made.ran and made.steps[10].lines[0].startswith("made-up arguments x=[24, 24]")


def test_a_refusal_stands_in_its_step(tmp_path: Path) -> None:
    path = written(tmp_path, SOFTMAX.replace("total = 0.0", "total += 0.0"))
    report = port_python(path, "softmax", TYPES)
    states = {step.name: step.state for step in report.steps}
    assert report.verdict == "refused" and states["control flow"] == "refused"
    assert states["geometry"] == "ok" and states["emit"] == "skipped"


def test_what_leaves_its_arrays_is_not_well_defined(tmp_path: Path) -> None:
    path = written(tmp_path, SOFTMAX)
    short = port_python(path, "softmax", TYPES, arguments=["x=f32[3,5]", "y=f32[2,5]", "scale=1"])
    assert short.verdict == "undefined" and short.findings[0].code == "MK203"
    guarded = SOFTMAX.replace("rows, columns = x.shape", "rows, columns = x.shape\n    far = 90")
    other = tmp_path / "other"
    other.mkdir()
    odd = port_python(written(other, guarded.replace("x[t, half]", "x[t, far]")), None, TYPES)
    assert odd.verdict == "ported" and not odd.ran and odd.steps[10].state == "skipped"
    said = " ".join(odd.steps[10].lines)
    assert "3 times softmax leaves its arrays" in said and "--arg 'x=f32[SIZES]'" in said


def test_a_port_of_an_njit_function_is_checked_where_it_was_written(tmp_path: Path) -> None:
    report = port_python(written(tmp_path, SOFTMAX), None, TYPES, run=False, out=tmp_path / "ops")
    assert report.op is not None
    assert {"op.py", "task.py", "standalone.py", "port.json"} == {
        path.name for path in report.op.folder.iterdir()
    }
    ops = ["check", "--ops", str(tmp_path / "ops")]
    done = CliRunner().invoke(app, ops)
    assert done.exit_code == 0 and "3 of 3 checks passed" in done.output, done.output
    task = tmp_path / "ops/softmax/task.py"
    task.write_text(task.read_text().replace("/ total", "* total"))
    done = CliRunner().invoke(app, ops)
    assert done.exit_code == 1 and "1 of 3 checks passed" in done.output
    assert "elements differ" in " ".join(done.output.split())
    (tmp_path / "ops/softmax/port.json").write_text("{}")
    done = CliRunner().invoke(app, ops)
    assert done.exit_code == 2 and "port the function once more" in " ".join(done.stderr.split())


KEPT = {  # what looks like a wrong port and is none: name, body
    "a variable is called as the file's constant is": LOOP
    + "WIDTH = x.shape[1]\n        for i in range(WIDTH):\n            y[t, i] = x[t, i]\n",
    "continue": LOOP + "if x[t, 0] > 0:\n            continue\n        y[t, 0] = x[t, 0]\n",
    "break of an inner loop": LOOP + "s = 0\n        for i in range(x.shape[1]):\n"
    "            if x[t, i] > 1:\n                break\n            s += 1\n        y[t, 0] = s\n",
    "set on both ways": LOOP + "if x[t, 0] > 0:\n            v = x[t, 0]\n        else:\n"
    "            v = -x[t, 0]\n        y[t, 0] = v\n",
    "a body's own names": "    for tile in range(x.shape[0] - 1):\n        a = x[tile, 0]\n"
    "        arena = a * 2\n        y[tile, 1] = arena + a\n",
}


def test_what_only_looks_like_a_fault_keeps_its_bits(tmp_path: Path) -> None:
    """All of them as ops of one megakernel, since Numba compiles each megakernel anew."""
    x = np.random.default_rng(3).standard_normal((6, 6)).astype(np.float32)
    ops, graph, wanted = [], Graph(), {}
    arrays: dict[str, np.ndarray] = {}
    for number, body in enumerate(KEPT.values()):
        name = f"kept_{number}"
        path = tmp_path / f"{name}.py"
        path.write_text(f"{HEAD}@njit\ndef {name}(x, y):\n{body}")
        ported = port_njit(path, None, "float32[:,:], float32[:,:]")
        op = load_file(ported.write(tmp_path / "ops") / "op.py").OP
        after = np.zeros_like(x)
        getattr(load_file(path), name)(x.copy(), after)
        wanted[f"y{number}"] = after
        kinds: tuple[Kind, Kind] = ("input", "state")
        for key, kind in zip(("x", "y"), kinds, strict=True):
            graph.tensor(f"{key}{number}", "f32", x.shape, kind)
        arrays |= {f"x{number}": x, f"y{number}": np.zeros_like(x)}
        sizes = {s: x.shape[axis] for s, (_, axis) in ported.sizes.items()}
        graph.add(op, name, x=f"x{number}", y=f"y{number}", **sizes)
        ops.append(op)
    with CpuMachine(compose_cpu(ops, "f32", "f32"), deal(graph, 3), arrays) as machine:
        machine.step()
        for name, after in wanted.items():
            assert machine.tensors[name].tobytes() == after.tobytes(), name
            assert after.any()
