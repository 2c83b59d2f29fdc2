"""Checks a port where it was written: the files that are there now, beside the original in them.

What a port was made from and run on stands in its folder's port.json. A port has no oracle: its
standalone form is the original, and what is asked of it are that form's bits.
"""

import time
from typing import TYPE_CHECKING

from mkport.declare import Op
from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port import check
from mkport.port.finding import RefusedPort
from mkport.port.port import Port
from mkport.port.report import Step
from mkport.port.scanned import read_recorded

if TYPE_CHECKING:
    from mkport.testing.check import Verdict


def check_port(op: Op, machine: str, form: str, workers: int = 2, seed: int = 0) -> "list[Verdict]":
    """The verdict of one form ("standalone", "ported", "solo"): of an `@njit` function's port on
    the machine "cpu", of a CUDA kernel's on "host" or "cuda".

    Raises UserError for a folder that holds no whole port, for an original that cannot be run on
    what it was ported with, and without a C++ compiler.
    """
    from mkport.testing.check import Verdict

    if machine == "cpu":
        return [_check_njit(op, form, workers, seed)]
    if compiler() is None:
        raise UserError(f"Checking {op.name} runs its original on the CPU: install g++.")
    started = time.perf_counter()
    port = Port(read_recorded(op.folder))
    step = Step(11, "run")
    try:
        port.prepare()
        chosen = None if port.steps.refused else port.choose(step)
    except RefusedPort as refused:
        raise UserError(f"{op.folder / 'standalone.cu'}: {refused.finding}") from refused
    if chosen is None:
        said = " ".join([*map(str, port.steps.findings), *step.lines])
        raise UserError(f"{op.folder / 'standalone.cu'} cannot be compared with: {said}")
    kind = "the arguments it was ported with" if chosen.given else "made-up arguments"
    words, same = f"{kind}; it has no oracle, only its original's bits", None
    if form != "standalone":
        orders = [(1, seed)] if form == "ported" else [(workers, seed), (workers + 3, seed + 1)]
        bound = port.bound(chosen.arguments, chosen.launch)
        differences = check.compare(op, bound, port.wanted(chosen, machine), machine, orders)
        same = not differences
        words = f"{words}; {differences[0]}" if differences else words
    seconds = time.perf_counter() - started
    return [Verdict(op.name, machine, form, "recorded", "own", 0.0, 0.0, same, words, seconds)]


def _check_njit(op: Op, form: str, workers: int, seed: int) -> "Verdict":
    from mkport.port.numba_recheck import bits
    from mkport.testing.check import Verdict

    started = time.perf_counter()
    words, same = bits(op, form, workers, seed)
    seconds = time.perf_counter() - started
    return Verdict(op.name, "cpu", form, "recorded", "own", 0.0, 0.0, same, words, seconds)
