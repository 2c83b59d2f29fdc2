"""Whether a kernel has a way to write through a pointer to const: a cast that drops it, a union of
pointers, a pointer to a pointer. Where there is one, const says nothing of what is only read."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mkport.port.syntax import declarators, declared, find
from mkport.port.uniform import Uniformity

if TYPE_CHECKING:
    from tree_sitter import Node

_CONST = re.compile(r"\bconst\b")
STORES = re.compile(r"\b(?:st|red|atom|cp\.reduce|multimem)\b")


def may_write_const(u: Uniformity) -> bool:
    """Whether some function that the kernel reaches can make a const pointer one to write to."""
    places = [f.node for functions in u.by_name.values() for f in functions]
    types = [item.outer for item in u.unit.items if item.kind == "type" and item.names & u.types]
    for node in [*places, *types]:
        for union in find(node, "union_specifier"):
            if "*" in u.tree.of(union):
                return True
    consts = _Consts(u, [*places, *types])
    for place in places:
        for call in find(place, "call_expression"):
            callee = call.child_by_field_name("function")
            if callee is not None and u.callee_name(callee) == "const_cast":
                return True
            if callee is not None and re.search(r"\*\s*\*\s*>$", u.tree.of(callee)):
                return True  # reinterpret_cast<float**>(&p)
        for cast in find(place, "cast_expression"):
            kind, value = cast.child_by_field_name("type"), cast.child_by_field_name("value")
            if kind is None or value is None:
                continue
            text = u.tree.of(kind)
            if text.count("*") > 1:
                return True
            if "*" in text and not _CONST.search(text) and consts.leads(value):
                return True
    return False


class _Consts:
    """What is declared const in some functions and classes."""

    def __init__(self, u: Uniformity, nodes: "list[Node]") -> None:
        self.u = u
        self.names: set[str] = set()
        self.results: set[str] = set()  # functions
        for node in nodes:
            for declaration in find(node, *_DECLARATIONS):
                self._declared(declaration)
        for function in (f for functions in u.by_name.values() for f in functions):
            body = function.node.child_by_field_name("body")
            head = u.tree.text[function.node.start_byte : body.start_byte if body else None]
            if "*" in head.split("(")[0] and _CONST.search(head.split("(")[0]):
                self.results.add(function.name)

    def _declared(self, node: "Node") -> None:
        kind = node.child_by_field_name("type")
        head = self.u.tree.of(node).split("=")[0].split("(")[0]
        loose = kind is not None and self.u.tree.of(kind) == "auto"
        for declarator in declarators(node):
            named = declared(declarator)
            if named is not None and (loose or _CONST.search(head)):
                self.names.add(self.u.tree.of(named))

    def leads(self, value: "Node") -> bool:
        """Whether a cast's operand may be a pointer to const, or to what one leads to."""
        return any(self._one(node) for node in _roots(value))

    def _one(self, node: "Node") -> bool:
        text = self.u.tree.of(node)
        if node.type == "call_expression":
            callee = node.child_by_field_name("function")
            return callee is not None and self.u.callee_name(callee) in self.results
        if node.type == "field_expression":
            member = node.child_by_field_name("field")
            return member is not None and self.u.tree.of(member) in self.names
        return text in self.names


_DECLARATIONS = (
    "declaration", "parameter_declaration", "optional_parameter_declaration", "field_declaration",
    "for_range_loop",
)  # fmt: skip


def _roots(node: "Node") -> "Iterator[Node]":
    """What the value of a pointer expression is made of: names, members and calls."""
    if node.type in ("identifier", "field_expression", "call_expression", "this"):
        yield node
        arguments = node.child_by_field_name("arguments")
        for child in arguments.named_children if arguments is not None else ():
            yield from _roots(child)
    elif node.type == "subscript_expression":
        inner = node.child_by_field_name("argument")
        if inner is not None:
            yield from _roots(inner)
    elif node.type == "conditional_expression":
        for name in ("consequence", "alternative"):
            inner = node.child_by_field_name(name)
            if inner is not None:
                yield from _roots(inner)
    else:
        for child in node.named_children:
            yield from _roots(child)
