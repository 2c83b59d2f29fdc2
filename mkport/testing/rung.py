"""Runs one rung of a ladder: checks it against the oracle beside it, then times it."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from mkport.declare import Op
from mkport.testing.check import as_torch, judge
from mkport.testing.parts import kernel_of, load_file, load_part


def run_rung(file: str, repeats: int = 5) -> bool:
    """Checks the rung on every shape of its op, then times each; prints both.

    Returns whether every shape was within the tolerance law; nothing is timed when one was not.
    """
    path = Path(file).resolve()
    folder = path.parent.parent if path.parent.name == "ladder" else path.parent
    op: Op = load_file(folder / "op.py").OP
    oracle = load_part(op, "oracle")
    kernel = kernel_of(load_file(path), op)
    fine = True
    for name, shape in oracle.SHAPES.items():
        case = oracle.make(np.random.default_rng(0), "f32", "f32", **shape)
        ran = case.copy()
        oracle.call_standalone(kernel, ran.a)
        got = {output: ran.arrays[output] for output in ran.outputs}
        verdict = judge(op, "standalone", name, "f32", case, got, got, time.perf_counter())
        fine &= verdict.ok
        state = "ok" if verdict.ok else "WRONG"
        print(f"{state:5} {name}: error {verdict.error:.2e}, allowed {verdict.allowed:.2e}")
    for name, shape in oracle.SHAPES.items() if fine else ():
        case = oracle.make(np.random.default_rng(0), "f32", "f32", **shape)
        ours = _best(partial(oracle.call_standalone, kernel, case.a), repeats)
        plain = _best(partial(oracle.oracle, as_torch(case, "float32")), repeats)
        print(f"{ours * 1e6:9.1f} us here, {plain * 1e6:9.1f} us PyTorch, float32: {name}")
    return fine


def _best(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)
