"""The record: the fixed-width int32 row that tells a worker to run one op's tiles.

This is the only place that knows which word means what. The C header, the constants of the
composed CPU file, the reference table and the trace labels are generated from `RECORD`.
"""

from dataclasses import dataclass, replace

RECORD_WORDS = 32  # 128 bytes: one cache line pair on a CPU, one transaction on a GPU
MAX_WAITS = 4
NO_COUNTER = -1  # in a wait or the signal: this slot is unused


@dataclass(frozen=True)
class Field:
    """A named range of words in the record."""

    name: str
    first: int
    words: int
    doc: str

    @property
    def end(self) -> int:
        """One past the last word."""
        return self.first + self.words


def _lay_out(*fields: tuple[str, int, str]) -> dict[str, Field]:
    """Places the fields one after another and checks that they fill the record exactly."""
    laid: dict[str, Field] = {}
    at = 0
    for name, words, doc in fields:
        laid[name] = Field(name, at, words, doc)
        at += words
    if at != RECORD_WORDS:
        raise AssertionError(f"the record's fields fill {at} words, not {RECORD_WORDS}")
    return laid


RECORD = _lay_out(
    ("op", 1, "opcode: the op's place in the program's list of ops"),
    ("node", 1, "the step graph's node that this record runs tiles of"),
    ("waits", 2 * MAX_WAITS, "up to four (counter, target) pairs; counter -1 ends the list"),
    ("signal", 2, "(counter, amount) added with release once, after the run's last tile"),
    ("run", 3, "(first, stride, count): the tiles first, first + stride, ..."),
    ("args", 17, "the op's own arguments, in the order of its declaration"),
)
# No worker reads the node, so the launcher of a GPU's workers writes what they need in its place.
RECORD["flags"] = replace(RECORD["node"], name="flags", doc="a machine's own, in the node's place")
RECORD = dict(sorted(RECORD.items(), key=lambda item: item[1].first))
MAX_ARGS = RECORD["args"].words
