"""What a check finds, told to a learner: shape, first wrong elements with their tiles, the error
against the tolerance law, a picture in characters, a score to beat. The checks themselves stand
beside the exercises.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mkport.testing.law import EPS, measure

SHOWN = 4  # wrong elements
WIDE, HIGH = 64, 16  # of a picture, in tiles


class Wrong(Exception):
    """The learner's code is not right yet; the report's lines say why."""


class Skipped(Exception):
    """The check cannot run on this machine; the message is the reason and the fix."""


class Report:
    """Lines for the learner, in order, and a score. A method that finds a mistake raises Wrong."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.best: tuple[float, str, float, bool] | None = None  # value, unit, to beat, beaten

    def say(self, *lines: str) -> None:
        """Adds lines as they are."""
        self.lines += lines

    def holds(self, what: str, ok: Any, otherwise: str) -> None:
        """A condition; raises Wrong when it does not hold, and `otherwise` is what the learner
        reads then."""
        self.say(f"{'ok ' if ok else 'NO '} {what}")
        if not ok:
            self.say(f"    {otherwise}")
            raise Wrong

    def equal(self, what: str, got: Any, wanted: Any) -> None:
        """Two values, or arrays of one shape, that must be the same. Raises Wrong otherwise."""
        try:
            same = got is not None and bool(np.all(np.asarray(got == wanted)))
        except ValueError:  # arrays of two shapes
            same = False
        self.holds(what, same, f"yours is {_short(got)}, wanted {_short(wanted)}")

    def array(
        self,
        what: str,
        got: Any,
        truth: np.ndarray,
        plain: np.ndarray | None = None,
        tile: Sequence[int] = (),
    ) -> None:
        """An array against the truth in float64 by the tolerance law, or exactly for integers.

        `truth` may have any shape, `got` and `plain` have the same shape. `plain` is NumPy's own
        result in float32, whose error the law allows twice; the truth rounded to float32 when left
        out. `tile` is the shape of a tile, for the coordinates. Raises Wrong for another shape, and
        where an element is wrong.
        """
        shape = f"{what}: shape {list(np.shape(got))}, wanted {list(truth.shape)}"
        if not isinstance(got, np.ndarray) or got.shape != truth.shape:
            self.holds(shape, False, f"yours is {type(got).__name__} {_short(got)}")
        self.say(f"ok  {shape}")
        if truth.dtype.kind in "iub":
            bad, law = np.asarray(got != truth), ""
        else:
            plain = truth.astype(np.float32) if plain is None else plain
            found = measure(got, truth.astype(np.float64), plain, EPS["float32"])
            law = f"error {found.error:.2e}, allowed {found.allowed:.2e}"
            error = np.abs(got.astype(np.float64) - truth)
            bad = np.asarray(~((error <= found.allowed) | (np.isnan(got) & np.isnan(truth))))
        if not bad.any():
            self.say(f"    {law or f'all {bad.size} elements are right'}")
            return
        wrong = f"{int(bad.sum())} of {bad.size} elements are wrong"
        self.say(f"NO  {what}: {f'{wrong}; {law}' if law else wrong}")
        for at in np.argwhere(bad)[:SHOWN]:
            place = tuple(int(i) for i in at)
            where = f" (tile {[i // t for i, t in zip(place, tile, strict=True)]})" if tile else ""
            yours, wanted = _digits(got[place]), _digits(truth[place])
            self.say(f"    at {list(place)}{where}: yours {yours}, wanted {wanted}")
        if got.dtype.kind == "f" and np.isnan(got[bad]).any():
            self.say("    (nan: written by nobody, or made of what nobody has written)")
        self.say(*_map(bad, tile))
        raise Wrong

    def score(self, what: str, value: float, unit: str, beat: float) -> None:
        """A number that is better the smaller it is, and one to beat. Never a reason to fail."""
        beaten = value <= beat
        self.best = (value, unit, beat, beaten)
        told = "reached" if beaten else "not reached yet"
        self.say(f"score {what}: {value:.4g} {unit}; to reach: {beat:.4g} {unit} ({told})")


def _map(bad: np.ndarray, tile: Sequence[int]) -> list[str]:
    """A character a tile of the last two dimensions: `.` right, `#` wrong somewhere."""
    if bad.ndim != 2 or len(tile) not in (0, 2):
        return []
    high, wide = tile or (1, 1)
    rows, columns = -(-bad.shape[0] // high), -(-bad.shape[1] // wide)
    if rows > HIGH or columns > WIDE:
        return []
    padded = np.zeros((rows * high, columns * wide), bool)
    padded[: bad.shape[0], : bad.shape[1]] = bad
    tiles = np.asarray(padded.reshape(rows, high, columns, wide).any(axis=(1, 3)))
    drawn = ["    " + "".join("#" if one else "." for one in row) for row in tiles]
    what = "tile" if tile else "element"
    return [f"    a character for each {what}, # where it is wrong:", *drawn]


def _digits(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
