"""What changes a sequence's logits, in the machine's tables: its grammar's mask before every token,
its bias once, and its tally once, which the machine then counts on by itself."""

from collections.abc import Callable, Mapping

import numpy as np

from mkport.declare import TensorSpec
from mkport.engine.sampled import Draw, Tables

Write = Callable[[str, list[int], np.ndarray], object]  # name, places of the first axis, contents


class SamplingTables:
    """Fills the rows of `mask`, `bias` and `tally`, one a row of the page tables, through `write`;
    `specs` has their shapes."""

    def __init__(self, write: Write, specs: Mapping[str, TensorSpec]) -> None:
        self._write, self._specs = write, specs
        self._owners: dict[int, Tables] = {}  # whose tally and bias a row holds

    def fill(self, row: int, draw: Draw) -> None:
        """Sees to it that a row of the tables holds what its next token is drawn by."""
        if draw.mask is not None:
            mask = np.zeros(self._specs["mask"].shape[1], np.int32)
            known = min(len(mask), len(draw.mask))
            mask[:known] = draw.mask[:known]
            self._write("mask", [row], mask[None])
        tables = draw.tables
        if tables is None or self._owners.get(row) is tables:
            return
        # what it counts elsewhere, it does not count here
        self._owners = {r: owner for r, owner in self._owners.items() if owner is not tables}
        self._owners[row] = tables
        self._spread("tally", row, *tables.tally())
        if draw.biased:
            self._spread("bias", row, *tables.bias())

    def _spread(self, name: str, row: int, ids: np.ndarray, values: np.ndarray) -> None:
        contents = np.zeros(self._specs[name].shape[1], values.dtype)
        contents[ids] = values
        self._write(name, [row], contents[None])
