"""Checks the port of an `@njit` function where it was written: the files that are there now, beside
the function in standalone.py. How CUDA kernels' ports are checked is `recheck.py`'s."""

import json

from mkport.declare import Op
from mkport.errors import UserError
from mkport.port.numba_cpu import function_of, njit_port
from mkport.port.numba_njit import read_given
from mkport.port.numba_trials import Ran, first_run
from mkport.port.scanned import RECORDED


def bits(op: Op, form: str, workers: int, seed: int) -> tuple[str, bool | None]:
    """What was found of one form, in words, and whether its bits are the function's; None for the
    function itself.

    Raises UserError for a folder that holds no whole port, and where the function cannot be run.
    """
    path = op.folder / RECORDED
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        function, types, given = values["function"], values["types"], values["arguments"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not say how the port was made ({error}): port the function once more."
        ) from error
    original = op.folder / "standalone.py"
    port = njit_port(original, function_of(original, function), types)
    ported = port.ported()
    orders = () if form == "standalone" else ((1, seed),) if form == "ported" else (
        (workers, seed), (workers + 3, seed + 1))  # fmt: skip
    ran: Ran = first_run(port, ported, read_given(port, given), op.folder.parent, orders)
    if ran.skipped or any(f.severity == "undefined" for f in ran.findings):
        said = " ".join([*ran.lines, *map(str, ran.findings)])
        raise UserError(f"{original} cannot be compared with: {said}")
    kind = "the arguments it was ported with" if ran.given else "made-up arguments"
    words = f"{kind}; it has no oracle, only its original's bits"
    if form == "standalone":
        return words, None
    if ran.findings:
        return f"{words}; {ran.findings[0].cause}", False
    return words, True
