"""How a kernel is launched: grid, block and dynamic shared memory, from options or the file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mkport.errors import UserError
from mkport.port.constants import Constants
from mkport.port.kernel import Kernel
from mkport.port.lexer import split_list
from mkport.port.syntax import find
from mkport.port.unit import Unit

if TYPE_CHECKING:
    from tree_sitter import Node

Three = tuple[int, int, int]
MAX_THREADS = 1024


@dataclass(frozen=True)
class Geometry:
    """A recorded launch; None for what nothing says. `source` says where each came from."""

    grid: Three | None
    block: Three | None
    shared: int | None
    sources: tuple[str, str, str] = ("", "", "")

    @property
    def threads(self) -> int:
        """Threads of a block, 0 where unknown."""
        x, y, z = self.block or (0, 0, 0)
        return x * y * z


def three(text: str, option: str) -> Three:
    """ "8", "8,2" or "8x2x1" as three numbers. Raises UserError naming the option."""
    parts = [part for part in re.split(r"[,x\s()]+", text.strip().lower()) if part]
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"\d+", part) for part in parts):
        raise UserError(
            f"{option} {text!r} is not one to three numbers: write --{option} 8 or 8,2."
        )
    numbers = [int(part) for part in parts] + [1, 1]
    if min(numbers) < 1:
        raise UserError(f"{option} {text!r} has a size below 1.")
    return numbers[0], numbers[1], numbers[2]


def launches(unit: Unit, kernel: Kernel) -> list[tuple[str, list[str]]]:
    """The `<<<...>>>` launches of a kernel in its file: the text of the function that each stands
    in, and of each part."""
    found = []
    tree = unit.tree
    for call in find(tree.root, "kernel_call_syntax"):
        parent = call.parent
        if parent is None:
            continue
        function = parent.child_by_field_name("function")
        if function is None:
            continue
        name = re.split(r"[<(]", tree.of(function).strip())[0].split("::")[-1].strip()
        if name != kernel.name:
            continue
        text = tree.of(call).strip()
        parts = split_list(text.removeprefix("<<<").removesuffix(">>>"))
        found.append((_around(unit, parent), parts))
    return found


def _around(unit: Unit, node: "Node") -> str:
    """The text of the function that a node stands in, or all of it."""
    here: Node | None = node
    while here is not None and here.type != "function_definition":
        here = here.parent
    return unit.text if here is None else unit.tree.of(here)


def geometry(
    unit: Unit, kernel: Kernel, grid: Three | None, block: Three | None, shared: int | None
) -> Geometry:
    """The launch: what is given, else what the file's own launches say where all of them agree."""
    sources = ["option" if given is not None else "" for given in (grid, block, shared)]
    constants = Constants(unit, kernel.bindings)
    seen = launches(unit, kernel)
    if grid is None:
        grid = _agreed(constants, seen, 0)
        sources[0] = "the file's launch" if grid else ""
    if block is None:
        block = _agreed(constants, seen, 1)
        sources[1] = "the file's launch" if block else ""
    if block is None and kernel.bounds and not seen:
        block, sources[1] = (kernel.bounds, 1, 1), "__launch_bounds__"
    if shared is None and seen:
        sizes = {host_value(around, parts[2]) if len(parts) > 2 else "0" for around, parts in seen}
        if len(sizes) == 1:
            shared = constants.value(sizes.pop())
            sources[2] = "the file's launch" if shared is not None else ""
    return Geometry(grid, block, shared, (sources[0], sources[1], sources[2]))


def _agreed(
    constants: Constants, seen: Sequence[tuple[str, list[str]]], place: int
) -> Three | None:
    values = {
        three_of(around, constants, parts[place]) for around, parts in seen if len(parts) > place
    }
    return values.pop() if len(values) == 1 else None


def three_of(around: str, constants: Constants, text: str) -> Three | None:
    """The sizes that a text of host code stands for, in the function `around`; None where they
    cannot be told."""
    parts = size_texts(around, text)
    numbers = [constants.value(host_value(around, part)) for part in parts]
    if not numbers or len(numbers) > 3 or any(n is None or n < 1 for n in numbers):
        return None
    x, y, z = ([n or 1 for n in numbers] + [1, 1])[:3]
    return x, y, z


def size_texts(around: str, text: str) -> list[str]:
    """The one to three sizes of a grid or block, as host code writes them."""
    text = host_value(around, text)
    found = re.fullmatch(r"dim3\s*[({](.*)[)}]", text.strip(), re.DOTALL)
    return split_list(found[1]) if found else [text]


def host_value(around: str, text: str) -> str:
    """A host variable's value, where its function declares the name once and never changes it."""
    name = text.strip()
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        return text
    inner = r"((?:[^;()]|\([^;()]*\))*)"
    others = rf"(?:\w+\s*\({inner.replace('((?:', '(?:(?:')}\)\s*,\s*)*"
    found = re.findall(rf"\bdim3\s+{others}{name}\s*\({inner}\)\s*[;,]", around)
    declared = [f"dim3({sizes})" for sizes in found]
    declared += re.findall(rf"\b(?:int|unsigned|size_t|auto|long)\s+{name}\s*=\s*([^;,]+)[;,]",
                           around)  # fmt: skip
    changed = re.search(rf"\b{name}(?:\.\w+)?\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)", re.sub(
        rf"\b(?:int|unsigned|size_t|auto|long)\s+{name}\s*=", "", around))  # fmt: skip
    return declared[0] if len(declared) == 1 and not changed else text
