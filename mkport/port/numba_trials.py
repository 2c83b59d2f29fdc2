"""Runs an `@njit` function and its port on the same arguments, and holds the bits against each
other. The function is first run with its indices watched, so that what it does outside of its
arrays is said and not done."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core.errors import NumbaError

from mkport.errors import UserError
from mkport.port.arguments import random_array
from mkport.port.check import difference
from mkport.port.finding import Finding
from mkport.port.numba_cpu import run_njit
from mkport.port.numba_tiles import NjitPort, PortedNjit
from mkport.port.outcome import asked_for, says_little
from mkport.testing.parts import load_file

SIZES = (24, 7, 3)  # of every dimension of made-up arrays, and for every integer
Orders = tuple[tuple[int, int], ...]
ORDERS: Orders = ((1, 0), (3, 1), (7, 2))  # workers, seed


@dataclass
class Ran:
    """What became of a run: lines for the report, and findings or why it was left out."""

    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    skipped: bool = False
    given: bool = False
    little: str = ""


def first_run(
    port: NjitPort, ported: PortedNjit, given: dict[str, Any] | None, folder: Path,
    orders: Orders = ORDERS,
) -> Ran:  # fmt: skip
    """Runs both on the user's arguments, or on made-up ones where `given` is None. The port is
    written in `folder`; without `orders` the function is run alone. Raises UserError where Numba
    cannot compile the function for them."""
    if given is None:
        return _run_made_up(port, ported, folder, orders)
    return _run_given(port, ported, given, folder, orders)


def _run_given(
    port: NjitPort, ported: PortedNjit, given: dict[str, Any], folder: Path, orders: Orders
) -> Ran:
    ran = Ran(given=True)
    original = _original(port, ran)
    if original is None:
        return ran
    code, words = _watched(original, given)
    if code:
        ran.findings.append(Finding(
            code, port.node.lineno, 1, f"{port.node.name} {words} on these arguments.",
            "The original is not well defined, so that there are no bits to keep.",
            "Guard the access, or give larger arrays." if code == "MK203" else
            "Let it compute something there.", "undefined", port.module.path.name,
        ))  # fmt: skip
        return ran
    _compare(port, ported, original, given, folder, ran, orders)
    return ran


def _run_made_up(port: NjitPort, ported: PortedNjit, folder: Path, orders: Orders) -> Ran:
    from mkport.port.numba_njit import parameters

    ran = Ran()
    asked = asked_for(parameters(port))
    if loops := [n for n in ast.walk(port.loop) if isinstance(n, ast.While)]:
        ran.skipped = True
        ran.lines.append(
            f"the loop in line {loops[0].lineno} may not end on made-up arguments. Give real "
            f"ones, and the bits are compared: {asked}"
        )
        return ran
    original = _original(port, ran)
    if original is None:
        return ran
    went = []
    for given in _made_up(port):
        code, words = _watched(original, given)
        if code:
            went.append(f"{port.node.name} {words}")
            continue
        _compare(port, ported, original, given, folder, ran, orders)
        if ran.little:
            ran.lines[-1] += f". Give real arguments: {asked}"
        return ran
    ran.skipped = True
    told = "; ".join(f"{went.count(words)} times {words}" for words in dict.fromkeys(went))
    ran.lines.append(
        f"No made-up arguments fit {port.node.name}. Of {len(went)} trials: {told}. Give the real "
        f"ones, and the bits are compared: {asked}"
    )
    return ran


def _original(port: NjitPort, ran: Ran) -> Any:
    """The function, imported from its file; None, with a line, where that fails."""
    try:
        found = getattr(load_file(port.module.path), port.node.name)
    except UserError:
        raise
    except Exception as error:  # whatever the user's file does when it is imported
        ran.skipped = True
        ran.lines.append(
            f"{port.module.path.name} cannot be imported here ({type(error).__name__}: {error}): "
            "nothing was run."
        )
        return None
    return found


def _watched(original: Any, given: Mapping[str, Any]) -> tuple[str, str]:
    """Runs the function on copies with its indices checked: a code and words for what it does, or
    "" where it runs well."""
    try:
        njit(boundscheck=True)(original.py_func)(**_copied(given))
    except IndexError:
        return "MK203", "leaves its arrays"
    except NumbaError as error:
        raise UserError(
            f"Numba cannot compile {original.__name__} for these arguments: "
            f"{str(error).strip().splitlines()[-1]}"
        ) from error
    except Exception as error:  # what its arithmetic raises
        return "MK206", f"raises {type(error).__name__}"
    return "", ""


def _compare(
    port: NjitPort, ported: PortedNjit, original: Any, given: dict[str, Any], folder: Path,
    ran: Ran, orders: Orders,
) -> None:  # fmt: skip
    from mkport.port.numba_njit import parameters

    kind = "given" if ran.given else "made-up"
    words = ", ".join(
        f"{n}=[{', '.join(map(str, v.shape))}]" if isinstance(v, np.ndarray) else f"{n}={v}"
        for n, v in given.items()
    )
    ran.lines.append(f"{kind} arguments {words}")
    after = _copied(given)
    original(**after)
    try:
        found = differences(ported, given, after, folder, orders)
    except NumbaError as error:
        said = str(error).strip().splitlines()[-1]
        found = [f"Numba refuses the port: {said}"]
    if found:
        ran.lines += found
        ran.findings.append(Finding(
            "MK180", port.node.lineno, 1,
            f"The function and its port left different bits: {found[0]}.",
            "A port has the bits of what it was made from.",
            "This is a fault of the port, not of the function: please report the file.",
            "refusal", port.module.path.name,
        ))  # fmt: skip
        return
    ran.lines.append(
        "the function and its port: the same bits, with 1, 3 and 7 workers, in shuffled order"
    )
    modes = {name: port.mode(name) for name in port.uses}
    arrays = {name: after[name] for name in port.uses}
    ran.little = says_little(parameters(port), modes, given, arrays)
    if ran.little:
        ran.lines.append(f"but that says little: {ran.little}")


def differences(
    ported: PortedNjit, given: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path,
    orders: Orders = ORDERS,
) -> list[str]:  # fmt: skip
    """Where the port in `folder` leaves other bits than `wanted`, for each (workers, seed)."""
    found = []
    for workers, seed in orders:
        got = run_njit(ported, given, folder, workers, seed)
        for name in ported.arrays:
            if got[name].tobytes() != wanted[name].tobytes():
                words = difference(wanted[name], got[name])
                found.append(f"{name}: {words} ({workers} workers, order {seed})")
    return found


def _copied(given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in given.items()}


def _made_up(port: NjitPort) -> Iterator[dict[str, Any]]:
    for size in SIZES:
        rng = np.random.default_rng(size)
        made: dict[str, Any] = {}
        for name in port.names:
            if name in port.uses:
                shape = (size,) * port.uses[name].kind.ndim
                made[name] = random_array(port.stored(name), shape, rng)
            else:
                made[name] = size if port.scalars[name] == "integer" else np.float32(0.5)
        yield made
