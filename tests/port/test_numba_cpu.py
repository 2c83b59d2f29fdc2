"""`@njit` functions on the CPU machine: the same bits in tiles, and loops that are no tiles."""

from pathlib import Path

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.port.numba_cpu import port_njit, run_njit, same_bits
from mkport.port.numba_file import NumbaRefused
from mkport.port.numba_port import port_python
from mkport.port.numba_tiles import PortedNjit

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


def test_the_report_says_what_was_compared(tmp_path: Path) -> None:
    path = written(tmp_path, SOFTMAX)
    quiet = port_python(path, "softmax", TYPES)
    assert quiet.steps[-1].lines == ["ported, but not run here"] and not quiet.ran
    told = port_python(path, "softmax", TYPES, arguments=["x=f32[3,5]", "y=f32[3,5]", "scale=2.5"])
    assert told.ran and [step.name for step in told.steps][-2:] == ["run check", "result"]
    assert told.steps[-1].lines == ["ported"]
