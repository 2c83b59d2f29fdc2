"""The colours of pictures: which op gets which, and the greys of everything that is no op."""

from __future__ import annotations

from collections.abc import Iterable

# Paul Tol's "muted" scheme, made to be told apart with any colour vision; its own grey is for
# missing data. https://personal.sron.nl/~pault/
MUTED = (
    "#332288",  # indigo
    "#88ccee",  # cyan
    "#cc6677",  # rose
    "#44aa99",  # teal
    "#ddcc77",  # sand
    "#882255",  # wine
    "#117733",  # green
    "#999933",  # olive
    "#aa4499",  # purple
)
PALER = 0.5  # how far each further round of the scheme goes towards white
INK = "#24292f"  # text
FAINT = "#656d76"  # the caption
FRAME = "#c4cad1"  # axis lines and ticks
WAITING = "#d3d6da"


def op_colours(ops: Iterable[str]) -> dict[str, str]:
    """A colour for each op, in the order of their names; the same names give the same colours."""
    return {op: _colour(at) for at, op in enumerate(sorted(set(ops)))}


def _colour(at: int) -> str:
    turn, at = divmod(at, len(MUTED))
    keep = (1 - PALER) ** turn
    parts = (int(MUTED[at][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * keep):02x}" for part in parts)
