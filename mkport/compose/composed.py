"""What a composed file is, whatever machine it is for: its text, what it was composed for, and how
sections become one file. What stands in the sections is `cpu`'s and `cuda`'s."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from mkport.declare import Op
from mkport.errors import UserError

TYPES = ("bf16", "f32")


@dataclass(frozen=True)
class Composed:
    """A composed file's text and what it was composed for."""

    ops: tuple[Op, ...]
    weights: str  # "bf16" or "f32": storage of weight tensors
    cache: str  # "bf16" or "f32": storage of the key-value cache
    source: str

    @property
    def digest(self) -> str:
        """A hash of the text: the name under which compiled code is kept."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


def check_types(machine: str, weights: str, cache: str) -> None:
    """Raises UserError for a storage type that the machine, of this name, lacks."""
    for name, dtype in (("weights", weights), ("key-value cache", cache)):
        if dtype not in TYPES:
            raise UserError(
                f"The {name} type {dtype!r} is unknown; the {machine} machine has "
                f"{' and '.join(TYPES)}."
            )


def contents(sections: Sequence[tuple[str, str]], before: str) -> str:
    """The list of the [sections]' names, a line each that begins with `before`."""
    return "\n".join(f"{before}{number}. {name}" for number, (name, _) in enumerate(sections, 1))


def joined(head: str, sections: Sequence[tuple[str, str]], comment: str) -> str:
    """The file: its head, then each of the [sections], (name, text), behind a line with its name
    that begins with `comment`."""
    bar = "=" * 8
    return head + "".join(f"{comment} {bar} {name} {bar}\n\n{code}" for name, code in sections)
