"""All that is decided about a port before it is written, and how its op's arguments are called."""

from dataclasses import dataclass
from typing import Protocol

from mkport.port.geometry import Geometry
from mkport.port.kernel import Kernel, Param
from mkport.port.shared import SharedLayout
from mkport.port.unit import Item

# Members of the argument structs, and what a node of a graph has beside its arguments.
RESERVED = {"head", "unused", "self", "op", "label"}


@dataclass(frozen=True)
class Plan:
    """All that is decided about a port before it is written."""

    name: str
    kernel: Kernel
    launch: Geometry
    layout: SharedLayout
    items: tuple[Item, ...]
    macros: frozenset[str]
    system: tuple[str, ...]  # headers the file includes
    immutable: frozenset[str]
    modes: dict[str, str]  # of each tensor parameter: read, write, update, immutable
    meets: bool  # threads meet at barriers, or share memory
    drains: bool  # starts copies in the background
    asserts: bool
    file: str


class Called(Protocol):
    """A kernel, or a launch of one."""

    @property
    def params(self) -> tuple[Param, ...]:
        """Its parameters."""


def argument_names(kernel: Called) -> dict[str, str]:
    """What each parameter is called in the op."""

    def safe(name: str) -> str:
        taken = name in RESERVED or name.startswith(("place_of_", "no_", "grid_", "mk_"))
        return f"{name}_" if taken else name

    return {param.name: safe(param.name) for param in kernel.params}


def grid_args(launch: Geometry) -> tuple[str, ...]:
    """The integer arguments that carry the grid: as many as it has dimensions."""
    _, y, z = launch.grid or (1, 1, 1)
    return ("grid_x", "grid_y", "grid_z")[: 3 if z > 1 else 2 if y > 1 else 1]
