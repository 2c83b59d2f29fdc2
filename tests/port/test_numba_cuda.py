"""`@cuda.jit` kernels as CUDA C++: Numba's types and values, lines that stay, what is refused."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port.numba_cuda import Translated, translate
from mkport.port.numba_file import NumbaRefused
from mkport.port.original import Launch, Original, run_original

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
HEAD = "from numba import cuda, float32\nimport math\nTPB = 8\n\n"
Three = tuple[int, int, int]


def written(folder: Path, text: str) -> Path:
    path = folder / "kernel.py"
    path.write_text(HEAD + text)
    return path


def launched(made: Translated, grid: Three, block: Three, **given: Any) -> Original:
    args = made.arguments(given)
    call = Launch(made.kernel, grid, block, tuple(args.values()), names=tuple(args))
    return run_original(made.text, [call])


# Expressions of i: int64, n: int32, x: float32, d: float64, and whether Numba compiles them so.
EXPRESSIONS = (
    "x if i > 0 else 0.0", "(d if n % 2 else x) * x", "(x if x > 0 else d) + x",
    "i + n", "i * n - 7", "n * n", "i / n", "i // n", "i % n", "-i // 3", "(-i) % 5", "n // -2",
    "x + d", "x * x", "x * 2.0", "x / 3", "x * n", "x + i", "d / x", "-x", "x ** 2", "d ** 3",
    "i ** 2", "n ** 3", "math.sqrt(abs(x))", "math.exp(x)", "math.exp(d)", "math.floor(x)",
    "math.tanh(x * d)", "math.log(abs(d) + 1)", "abs(i - 9)", "abs(x)", "max(x, 0.5)", "min(i, n)",
    "max(x, d)", "max(n, 3)", "min(x, x * x)", "np.float32(d) * x", "np.int32(d)", "float(i) * x",
    "1 if x < d else 2", "i & 6 | n", "i ^ n", "i << 2", "i >> 1", "~n", "int(x * 10)",
    "(x < d) and (i > n)", "not (x < 0)", "0 < i < n", "math.pi * x", "math.atan2(x, x + 1)",
)  # fmt: skip


@needs_compiler
def test_every_expression_has_numba_s_bits(tmp_path: Path) -> None:
    """The same expressions, compiled by Numba for the CPU and translated."""
    values = "\n".join(f"        y[{k}, t] = {e}" for k, e in enumerate(EXPRESSIONS))
    kernel = (
        "@cuda.jit\ndef values(xs, ds, y):\n    t = cuda.grid(1)\n    if t < y.shape[1]:\n"
        "        i = t - 20\n        n = np.int32(cuda.threadIdx.x + 1)\n        x = xs[t]\n"
        f"        d = ds[t]\n{values}\n"
    )
    reference = "def values(i, n, x, d, y):\n" + "\n".join(
        f"    y[{k}] = {e}" for k, e in enumerate(EXPRESSIONS)
    )
    scope: dict[str, Any] = {"math": __import__("math"), "np": np}
    exec(reference, scope)
    truth = njit(error_model="numpy")(scope["values"])
    rng = np.random.default_rng(0)
    xs, ds = rng.standard_normal(64).astype(np.float32), rng.standard_normal(64)
    wanted = np.zeros((len(EXPRESSIONS), 64))
    for t in range(64):
        column = np.zeros(len(EXPRESSIONS))
        truth(np.int64(t - 20), np.int32(t % 32 + 1), xs[t], ds[t], column)
        wanted[:, t] = column
    made = translate(written(tmp_path, kernel), None, "float32[:], float64[:], float64[:,:]")
    found = launched(made, (2, 1, 1), (32, 1, 1), xs=xs, ds=ds, y=np.zeros_like(wanted))
    got = found.outputs[2]
    wrong = [
        e for e, a, b in zip(EXPRESSIONS, got, wanted, strict=True) if a.tobytes() != b.tobytes()
    ]
    assert found.well_defined and not wrong


MATMUL = '''
@cuda.jit(device=True)
def scaled(x, factor):
    return x * factor


@cuda.jit
def matmul(A, B, C):
    """C = A B, tile by tile."""
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array((TPB, TPB), float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0.0)
    for i in range(cuda.gridDim.x):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and tx + i * TPB < A.shape[1]:
            sA[ty, tx] = A[y, tx + i * TPB]
        if x < B.shape[1] and ty + i * TPB < B.shape[0]:
            sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            total += sA[ty, j] * sB[j, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = scaled(total, float32(2.0))
'''


@needs_compiler
def test_a_tiled_product_on_odd_sizes(tmp_path: Path) -> None:
    made = translate(
        written(tmp_path, MATMUL), "matmul", "float32[:,:], float32[:,:], float32[:,:]"
    )
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((20, 30), np.float32), rng.standard_normal((30, 25), np.float32)
    found = launched(made, (4, 4, 1), (8, 8, 1), A=a, B=b, C=np.zeros((20, 25), np.float32))
    assert found.well_defined, found.findings
    np.testing.assert_allclose(found.outputs[2], 2 * (a @ b), rtol=1e-4, atol=1e-5)


def test_statements_stay_on_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, MATMUL)
    made = translate(path, "matmul", "float32[:,:], float32[:,:], float32[:,:]")
    python, text = path.read_text().splitlines(), made.text.splitlines()
    for line, (before, after) in enumerate(zip(python, text, strict=False)):
        assert ("cuda.syncthreads()" in before) == ("__syncthreads()" in after), line
        assert before.strip().startswith("for ") == after.strip().startswith("for "), line
    assert "const float* A" in made.text and ", float* C" in made.text


@needs_compiler
def test_a_fault_is_found_at_the_python_line(tmp_path: Path) -> None:
    text = MATMUL.replace("        cuda.syncthreads()\n    if y", "    if y")
    path = written(tmp_path, text)
    made = translate(path, "matmul", "float32[:,:], float32[:,:], float32[:,:]")
    a = np.ones((16, 16), np.float32)
    found = launched(made, (2, 2, 1), (8, 8, 1), A=a, B=a.copy(), C=np.zeros_like(a))
    lines = path.read_text().splitlines()
    races = [hit for hit in found.findings if hit.kind == "race"]
    assert races and any("sA[ty, j] * sB[j, tx]" in lines[hit.line - 1] for hit in races)


FEATURES = """
@cuda.jit("void(float32[:], int32[:], float32[:], int32)")
def features(x, places, y, n):
    t = cuda.threadIdx.x
    local = cuda.local.array(4, float32)
    for k in range(4):
        local[k] = x[t] * k
    total = 0
    for k in range(3, -1, -1):
        total += local[k]
    step = 1
    while step < 32:
        total += cuda.shfl_down_sync(0xffffffff, total, step)
        step *= 2
    if t % 32 == 0:
        y[t // 32] = total
    cuda.atomic.add(places, -1 - t % 2, 1)
    if cuda.syncthreads_count(t < n) == n and t == 0:
        y[-1] = x[-2]
    if t >= n:
        return
    best = -math.inf
    for k in range(t, n):
        if x[k] < 0:
            continue
        best = max(best, float(x[k]))
        if k > t + 3:
            break
    y[4 + t] = best
"""


@needs_compiler
def test_loops_local_arrays_warps_atomics_and_negative_indices(tmp_path: Path) -> None:
    made = translate(written(tmp_path, FEATURES))
    x = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    y, places = np.zeros(4 + 50 + 1, np.float32), np.zeros(3, np.int32)
    found = launched(made, (1, 1, 1), (64, 1, 1), x=x, places=places, y=y, n=50)
    _, places, y = found.outputs
    assert found.well_defined, found.findings
    assert list(places) == [0, 32, 32]
    np.testing.assert_allclose(y[:2], 6 * x.reshape(2, 32).sum(axis=1), rtol=1e-4, atol=1e-4)
    assert y[-1] == x[-2]
    for t in range(50):
        kept = [v for v in x[t : min(50, t + 5)] if v >= 0]
        later = [k for k in range(t + 5, 50) if x[k] >= 0]
        if not [k for k in range(t, min(50, t + 5)) if k > t + 3 and x[k] >= 0]:
            kept += [x[k] for k in later[:1]] if later else []
        assert y[4 + t] == (max(kept) if kept else -np.inf), t


REFUSED: dict[str, str] = {
    "y[t] = x[t] @ x[t]": "has no counterpart",
    "y[t] = [1.0, 2.0][0]": "is no array",
    "y[0] = undefined": "neither a variable nor a number",
    "y[t] = np.dot(x, x)": "used whole",
    "y[t, 0] = 1.0": "has 1 dimensions, 2 are given",
    "a = x[t]\n    a = a * 2.0\n    y[t] = a": "a is float32 elsewhere and float64 here",
    "a = 1\n    a = x[0] > 0\n    y[t] = a": "a is int64 elsewhere and bool here",
    "s = cuda.shared.array(t, float32)": "a shape of constants",
    "s = cuda.shared.array(0, float32)": "a shape of constants",
    "s = cuda.shared.array(4, 'f')": "needs a dtype",
    "g = cuda.cg.this_grid()": "no counterpart in a task",
    "with x:\n        pass": "a With statement",
    "for v in x:\n        y[t] = v": "only `for NAME in range",
    "for k in range(3):\n        k = 2": "counts the loop around",
    "for k in range(1.5):\n        pass": "no integers",
    "y[x[t]] = 1.0": "an index of type float32",
    "y[t] = x[t] ** 0.5": "only powers 2 and 3",
    "y[t] = x[t] % 2": "divides with a floor in floats",
    "y[t] = x[t] and 1.0": "give an operand",
    "y = x": "is an array and is assigned a number|used whole",
    "a, b = 1, 2": "one name at a time",
    "return x[t]": "returns nothing",
    "y[t] = helper(x[t])": "more than one `return EXPRESSION`",
    "y[t] = 2.0 if t else 1": "one side is float64, the other int64",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_what_has_no_exact_counterpart_is_refused_with_its_line(
    statement: str, tmp_path: Path
) -> None:
    text = "@cuda.jit\ndef k(x, y):\n    t = cuda.grid(1)\n    " + statement + "\n"
    text += "\ndef helper(x):\n    z = x\n    return z\n"
    ast.parse(text)
    with pytest.raises(NumbaRefused, match=REFUSED[statement]) as refused:
        translate(written(tmp_path, text), "k", "float32[:], float32[:]")
    assert refused.value.line >= HEAD.count("\n") + 4


def test_kernels_and_types_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, MATMUL + "\n@cuda.jit\ndef other(x):\n    x[0] = 1\n")
    for kernel, signature, said in (
        (None, "float32[:]", "name one of its @cuda.jit kernels: matmul, other"),
        ("scaled", "float32", "name one of its"),
        ("other", None, "1 arguments and 0 types"),
        ("other", "float32[:], int32", "1 arguments and 2 types"),
        ("other", "complex64[:]", "the type of x: 'complex64\\[:\\]' is no type"),
    ):
        with pytest.raises(UserError, match=said):
            translate(path, kernel, signature)
    with pytest.raises(UserError, match="cannot be read as Python"):
        translate(tmp_path / "none.py")


CALLING = """
@cuda.jit(device=True)
def clamp(v, lo, hi):
    return min(max(v, lo), hi)

@cuda.jit(device=True)
def twice(v, n):
    return clamp(v, 0, n - 1) + clamp(v + 1, 0, n - 1)

@cuda.jit
def k(x, y, n):
    t = cuda.threadIdx.x
    y[t] = x[clamp(t - 3, 0, n - 1)] + math.sqrt(x[twice(t, n) // 2])
"""


@needs_compiler
def test_device_functions_may_call(tmp_path: Path) -> None:
    made = translate(written(tmp_path, CALLING), "k", "float32[:], float32[:], int32")
    x, y = np.arange(20, dtype=np.float32), np.zeros(32, np.float32)
    found = launched(made, (1, 1, 1), (32, 1, 1), x=x, y=y, n=20)
    t = np.arange(32)
    middle = (np.clip(t, 0, 19) + np.clip(t + 1, 0, 19)) // 2
    np.testing.assert_allclose(found.outputs[1], np.clip(t - 3, 0, 19) + np.sqrt(middle), rtol=1e-6)


def test_a_device_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    text = CALLING.replace("min(max(v, lo), hi)", "clamp(v, lo, hi)")
    with pytest.raises(NumbaRefused, match="clamp calls itself"):
        translate(written(tmp_path, text), "k", "float32[:], float32[:], int32")
