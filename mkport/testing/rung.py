"""Runs one rung of a ladder: checks it against the oracle beside it, then times it."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mkport.declare import Op
from mkport.declare.case import Case
from mkport.testing.check import Verdict, as_torch, judge
from mkport.testing.parts import kernel_of, load_file, load_part

DTYPES = ("f32", "bf16")  # storage of weights and cache


def check_rung(file: str | Path, dtypes: tuple[str, ...] = DTYPES) -> list[Verdict]:
    """Holds a rung, or a standalone kernel, to its op's oracle: one verdict a shape and dtype.

    Only the tolerance law counts: earlier rungs add in other orders. Raises UserError when a file
    that is needed is missing.
    """
    op, oracle, kernel = _load(Path(file))
    verdicts = []
    for name, dtype, case in _cases(oracle, dtypes):
        started = time.perf_counter()
        ran = case.copy()
        oracle.call_standalone(kernel, ran.a)
        got = {output: ran.arrays[output] for output in ran.outputs}
        verdicts.append(judge(op, "standalone", name, dtype, case, got, got, started))
    return verdicts


def run_rung(file: str | Path, repeats: int = 5) -> bool:
    """Checks the rung on every shape of its op in both storage types, then times each; prints both.

    Returns whether every shape was within the tolerance law; nothing is timed when one was not.
    Errors as for `check_rung`.
    """
    verdicts = check_rung(file)
    for verdict in verdicts:
        print(
            f"{'ok' if verdict.ok else 'WRONG':5} {verdict.dtype:4} {verdict.shape}: "
            f"error {verdict.error:.2e}, allowed {verdict.allowed:.2e}"
            + ("" if verdict.ok else f"; {verdict.detail}")
        )
    if not all(verdict.ok for verdict in verdicts):
        return False
    _, oracle, kernel = _load(Path(file))
    for name, dtype, case in _cases(oracle, DTYPES):
        ours = _best(partial(oracle.call_standalone, kernel, case.a), repeats)
        plain = _best(partial(oracle.oracle, as_torch(case, "float32")), repeats)
        print(f"{ours * 1e6:9.1f} us {dtype:4}, {plain * 1e6:9.1f} us PyTorch, float32: {name}")
    return True


def _load(path: Path) -> tuple[Op, ModuleType, Any]:
    """The op, oracle and kernel of a rung's file."""
    path = path.resolve()
    folder = path.parent.parent if path.parent.name == "ladder" else path.parent
    op: Op = load_file(folder / "op.py").OP
    return op, load_part(op, "oracle"), kernel_of(load_file(path), op)


def _cases(oracle: ModuleType, dtypes: tuple[str, ...]) -> Iterator[tuple[str, str, Case]]:
    for dtype in dtypes:
        for name, shape in oracle.SHAPES.items():
            yield name, dtype, oracle.make(np.random.default_rng(0), dtype, dtype, **shape)


def _best(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)
