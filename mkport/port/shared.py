"""Shared memory of a kernel and its helpers: every array, its size, and its place in the arena.

Nothing here decides whether the sum fits a worker.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mkport.port.constants import Constants
from mkport.port.finding import Finding, RefusedPort
from mkport.port.instances import bindings_of, instances_of
from mkport.port.kernel import Kernel, template_of
from mkport.port.layout import Layout, Layouts
from mkport.port.syntax import declarators, declared, find
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

ALIGN = 16  # of a static array
DYNAMIC_ALIGN = 128
MAX_ALIGN = 128  # what the arena's start keeps


@dataclass(frozen=True)
class SharedArray:
    """One `__shared__` name: where it is declared, and where it lies. Dynamic ones have no size."""

    name: str
    type: str
    dims: str  # "[16][17]", "" for a scalar
    size: int | None
    offset: int
    function: str
    line: int
    node: "Node" = field(repr=False, compare=False)
    exact: bool = True  # the size; else there is room for any plain type
    slots: tuple[tuple[str, ...], ...] = ()  # the instances that have a place each of this size

    @property
    def dynamic(self) -> bool:
        """True for `extern __shared__`."""
        return self.size is None


@dataclass(frozen=True)
class SharedLayout:
    """All arrays of a block: the static ones one after another, then the dynamic one."""

    arrays: tuple[SharedArray, ...]
    static: int
    dynamic: int

    @property
    def dynamic_offset(self) -> int:
        """Where dynamic shared memory starts."""
        return -(-self.static // DYNAMIC_ALIGN) * DYNAMIC_ALIGN

    @property
    def total(self) -> int:
        """Bytes of the arena."""
        if not any(array.dynamic for array in self.arrays):
            return self.static
        return self.dynamic_offset + self.dynamic


def shared_layout(
    unit: Unit,
    kernel: Kernel,
    items: Sequence[Item],
    dynamic: int | None,
    headers: Sequence[str] = (),
) -> SharedLayout:
    """Lays out the shared arrays that a kernel reaches. `headers` are those that the file includes.

    Raises RefusedPort for a size that cannot be told, or arrays of a helper of which there would be
    several at once.
    """
    tree = unit.tree
    found: list[SharedArray] = []
    at = 0
    for item in items:
        nodes = [node for node in find(item.outer, "declaration") if _is_shared(unit, node)]
        statics = [node for node in nodes if "extern" not in _head(unit, node)]
        slots: tuple[tuple[str, ...], ...] = ()
        if statics:
            slots = instances_of(unit, kernel, items, item, statics[0], headers)
        bindings = bindings_of(unit, kernel, items, item) if nodes else {}
        for node in nodes:
            head = _head(unit, node)
            aligned = [int(n) for n in re.findall(r"(?:__align__|alignas)\s*\(\s*(\d+)", head)]
            aligned += [ALIGN]
            if max(aligned) > MAX_ALIGN:
                raise RefusedPort(_unknown(unit, node, f"is aligned to {max(aligned)} bytes",
                                           f"Align it to {MAX_ALIGN} bytes or less."))  # fmt: skip
            type_node = node.child_by_field_name("type")
            base = tree.of(type_node) if type_node is not None else ""
            for declarator in declarators(node):
                name = declared(declarator)
                if name is None:
                    continue
                label, text = tree.of(name), tree.of(declarator)
                dims = text[text.index(label) + len(label) :].strip()
                function = item.name if item.kind == "function" else ""
                if "extern" in head:
                    if dynamic is None:
                        raise RefusedPort(_unknown_dynamic(unit, kernel, node, label))
                    found.append(SharedArray(label, base, dims, None, -1, function,
                                             tree.line(node), node))  # fmt: skip
                    continue
                laid, exact = _laid_out(unit, item, bindings, type_node, dims, text), True
                if slots:
                    exact, parameters = False, template_of(unit, item)[0]
                    laid = _largest([
                        _laid_out(unit, item, dict(zip(parameters, slot, strict=True)), type_node,
                                  dims, text)
                        for slot in slots
                    ])  # fmt: skip
                if laid is None and _open_type(unit, item, bindings, base):
                    one = _array(unit, bindings, Layout(16, 16), dims, text)
                    laid, exact = one, False
                if laid is None:
                    raise RefusedPort(_unknown(unit, node, "has a size that cannot be told: "
                                      f"`{base} {text}`", "Write its type and sizes as numbers, "
                                      "macros or constants of the file."))  # fmt: skip
                align = max(*aligned, laid.align)
                at = -(-at // align) * align
                found.append(SharedArray(label, base, dims, laid.size, at, function,
                                         tree.line(node), node, exact, slots))  # fmt: skip
                at += laid.size * max(len(slots), 1)
    layout = SharedLayout(tuple(found), at, dynamic or 0)
    placed = [
        array if array.size is not None else _placed(array, layout.dynamic_offset)
        for array in found
    ]
    return SharedLayout(tuple(placed), at, dynamic or 0)


def _largest(found: Sequence[Layout | None]) -> Layout | None:
    """Room for any of some layouts, at any place of its own."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    align = max(one.align for one in known)
    size = max(one.size for one in known)
    return Layout(-(-size // align) * align, align)


def _open_type(unit: Unit, item: Item, bindings: dict[str, str], base: str) -> bool:
    """True for a template's type that its only call leaves to the compiler."""
    return (
        item.outer.type == "template_declaration"
        and base.strip() in template_of(unit, item)[0]
        and base.strip() not in bindings
    )


def _placed(array: SharedArray, offset: int) -> SharedArray:
    return SharedArray(array.name, array.type, array.dims, None, offset, array.function,
                       array.line, array.node)  # fmt: skip


def _is_shared(unit: Unit, node: "Node") -> bool:
    return bool(re.search(r"\b__shared__\b", _head(unit, node)))


def _head(unit: Unit, node: "Node") -> str:
    first = next(iter(declarators(node)), None)
    return unit.text[node.start_byte : first.start_byte if first is not None else node.end_byte]


def _laid_out(
    unit: Unit, item: Item, bindings: dict[str, str], type_node: "Node | None", dims: str, text: str
) -> Layout | None:
    """The layout of what a declarator declares."""
    if type_node is None:
        return None
    if "*" in text.split("[")[0]:
        one: Layout | None = Layout(8, 8)
    elif type_node.child_by_field_name("body") is not None:
        one = Layouts(unit, item).node(type_node, bindings)
    else:
        one = Layouts(unit, item).of(unit.tree.of(type_node), bindings)
    return None if one is None else _array(unit, bindings, one, dims, text)


def _array(
    unit: Unit, bindings: dict[str, str], one: Layout, dims: str, text: str
) -> Layout | None:
    if "(" in text.split("[")[0] or "=" in text or "&" in text:
        return None
    if re.sub(r"\[[^\[\]]*\]", "", dims).strip():
        return None
    constants = Constants(unit, bindings)
    for part in re.findall(r"\[([^\[\]]*)\]", dims):
        value = constants.value(part)
        if value is None or value < 1:
            return None
        one = one.times(value)
    return one


def _unknown(unit: Unit, node: "Node", what: str, fix: str) -> Finding:
    return Finding(
        "MK122", unit.tree.line(node), unit.tree.column(node),
        f"The shared array {what}.",
        "Its place in the arena, and what lies behind it, would be a guess.",
        fix,
    )  # fmt: skip


def _unknown_dynamic(unit: Unit, kernel: Kernel, node: "Node", name: str) -> Finding:
    return Finding(
        "MK121", unit.tree.line(node), unit.tree.column(node),
        f"`{name}` is dynamic shared memory, and nothing says how many bytes {kernel.name} is "
        "launched with.",
        "The arena's size would be a guess, and what lies behind it overwritten.",
        "Say how many: --shared BYTES.",
    )  # fmt: skip
