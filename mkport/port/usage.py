"""What a kernel does with each tensor parameter: reads, writes or both, followed into helpers.

An access that is not understood counts as both, so that nobody's order depends on a guess.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.functions import Function
from mkport.port.kernel import Kernel
from mkport.port.syntax import declarators, declared, find
from mkport.port.unconst import STORES, may_write_const
from mkport.port.uniform import Uniformity

if TYPE_CHECKING:
    from tree_sitter import Node

_DEPTH = 8
BOTH = frozenset("rw")
READ = frozenset("r")


def modes(uniformity: Uniformity, kernel: Kernel, immutable: frozenset[str]) -> dict[str, str]:
    """Each tensor parameter's access: "read", "write", "update" or "immutable"."""
    found = {}
    trusted = not may_write_const(uniformity)
    for param in kernel.params:
        if param.kind != "tensor":
            continue
        if param.boxed:
            found[param.name] = "read"
            continue
        const = param.const and trusted
        uses = frozenset(_uses(uniformity, uniformity.kernel, param.name, const, 0))
        if param.name in immutable:
            found[param.name] = "immutable"
        elif uses <= READ:
            found[param.name] = "read"
        else:
            found[param.name] = "update" if "r" in uses else "write"
    return found


def _uses(u: Uniformity, function: Function, name: str, const: bool, depth: int) -> Iterator[str]:
    if depth > _DEPTH:
        yield from BOTH
        return
    for node in find(function.body, "identifier", "type_identifier"):
        if u.tree.of(node) != name:
            continue
        if node.type == "identifier":
            yield from _pointer(u, function, node, name, const, depth)
        elif node.parent is not None and node.parent.type == "parameter_declaration":
            yield from READ if const else BOTH  # `View v(x);` is read as a function's declaration


def _pointer(
    u: Uniformity, function: Function, node: "Node", name: str, const: bool, depth: int
) -> Iterator[str]:
    """What becomes of a pointer's value."""
    parent = node.parent
    if parent is None:
        return
    text = u.tree.of(parent)
    kind = parent.type
    if kind == "subscript_expression" and parent.child_by_field_name("argument") == node:
        yield from _element(u, function, parent, const)
    elif kind == "pointer_expression" and text.startswith("*"):
        yield from _element(u, function, parent, const)
    elif kind == "field_expression" and "->" in text:
        yield from _element(u, function, parent, const)
    elif kind == "binary_expression":
        operator = parent.child_by_field_name("operator")
        if operator is not None and u.tree.of(operator) in ("+", "-"):
            yield from _pointer(u, function, parent, name, const, depth)
    elif kind in ("parenthesized_expression", "conditional_expression", "comma_expression"):
        if parent.child_by_field_name("condition") != node:
            yield from _pointer(u, function, parent, name, const, depth)
    elif kind == "cast_expression":
        kept = const and "const" in text.split(")")[0]
        yield from _pointer(u, function, parent, name, kept, depth)
    elif kind == "init_declarator":
        yield from _copied(u, function, parent, name, const, depth)
    elif kind == "assignment_expression":
        left = parent.child_by_field_name("left")
        if left == node:  # `(y += i)[0]`: the value is the pointer
            yield from _pointer(u, function, parent, name, const, depth)
            return
        target = u.tree.of(left) if left is not None else ""
        if target != name:
            if left is not None and left.type == "identifier" and _is_own(u, function, target):
                yield from _uses(u, function, target, const, depth + 1)
            else:
                yield from READ if const else BOTH
    elif kind == "argument_list" and parent.parent is not None:
        yield from _argument(u, function, node, parent.parent, name, const, depth)
    elif kind == "update_expression":  # `*y++`, `(--y)->x`: the value is the pointer
        yield from _pointer(u, function, parent, name, const, depth)
    elif kind in ("condition_clause", "unary_expression", "if_statement", "for_statement",
                  "expression_statement", "lambda_capture_specifier",
                  "sizeof_expression"):  # fmt: skip
        return
    elif kind == "pointer_expression" and text.startswith("&"):  # the pointer's own place
        yield from BOTH
    elif kind.startswith("gnu_asm"):
        whole = parent
        while whole.parent is not None and whole.type != "gnu_asm_expression":
            whole = whole.parent
        yield from READ if const and not STORES.search(u.tree.of(whole)) else BOTH
    else:
        yield from READ if const else BOTH


def _is_own(u: Uniformity, function: Function, name: str) -> bool:
    """Whether a name is a variable or parameter of a function, and no member of its class."""
    return any(key[0] == name for key, _, _ in function.params) or any(
        (named := declared(declarator)) is not None and u.tree.of(named) == name
        for node in find(function.body, "declaration", "for_range_loop", "parameter_declaration")
        for declarator in declarators(node)
    )


def _copied(
    u: Uniformity, function: Function, parent: "Node", name: str, const: bool, depth: int
) -> Iterator[str]:
    target = declared(parent)
    declaration = parent.parent
    if target is None or declaration is None or target.type != "identifier":
        yield from READ if const else BOTH
        return
    head = u.tree.text[declaration.start_byte : parent.start_byte]
    shape = u.tree.of(parent).split("=")[0]
    if "*" not in shape and "auto" not in head:
        yield from READ if const else BOTH
        return
    if u.tree.of(target) != name:
        yield from _uses(u, function, u.tree.of(target), const, depth + 1)


def _argument(
    u: Uniformity,
    function: Function,
    node: "Node",
    call: "Node",
    name: str,
    const: bool,
    depth: int,
) -> Iterator[str]:
    callee = call.child_by_field_name("function")
    if callee is None:
        yield from READ if const else BOTH
        return
    called = u.callee_name(callee)
    if called in known.CASTS:
        kept = const and "const" in u.tree.of(callee) and called != "const_cast"
        yield from _pointer(u, function, call, name, kept, depth)
        return
    starts = u.targets.get((call.start_byte, call.end_byte), set())
    targets = {f.node.start_byte: f for f in u.functions if f.node.start_byte in starts}
    arguments = call.child_by_field_name("arguments")
    place = [c for c in arguments.named_children if c.type != "comment"].index(node) if (
        arguments is not None) else 0  # fmt: skip
    if targets:
        for target in targets.values():
            if place >= len(target.params) or target.builds:
                yield from READ if const and target.builds else BOTH
                continue
            key, shape, _ = target.params[place]
            if key[0]:
                yield from _uses(u, target, key[0], const, depth + 1)
        return
    if known.LOADS.fullmatch(called):
        yield "r"
        return
    yield from READ if const and not known.ATOMICS.fullmatch(called) else BOTH


def _element(u: Uniformity, function: Function, node: "Node", const: bool) -> Iterator[str]:
    """What is done to an element that a pointer leads to."""
    parent = node.parent
    while parent is not None and (
        parent.type == "parenthesized_expression"
        or (parent.type == "conditional_expression"
            and parent.child_by_field_name("condition") != node)
        or (parent.type == "comma_expression" and parent.child_by_field_name("right") == node)
        or (parent.type in ("field_expression", "subscript_expression")
            and parent.child_by_field_name("argument") == node)
    ):  # fmt: skip
        node, parent = parent, parent.parent
    if parent is None:
        yield "r"
        return
    if parent.type == "assignment_expression" and parent.child_by_field_name("left") == node:
        operator = parent.child_by_field_name("operator")
        plain = operator is None or u.tree.of(operator) == "="
        yield from "w" if plain else BOTH
    elif parent.type == "update_expression":
        yield from BOTH
    elif parent.type == "return_statement" and _returns_a_place(u, function, parent):
        yield from READ if const else BOTH
    elif parent.type == "pointer_expression" and u.tree.of(parent).startswith("&"):
        if const:
            yield "r"
        else:
            yield from _address(u, function, parent)
    elif parent.type == "assignment_expression" and re.match(r"[\w:\s]*\(\s*&", u.tree.of(parent)):
        yield from BOTH  # `T (&m)[32] = *...`, a reference to an array, is read as an assignment
    elif parent.type == "init_declarator" and re.search(r"&", u.tree.of(parent).split("=")[0]):
        head = u.tree.text[parent.parent.start_byte : parent.start_byte] if parent.parent else ""
        yield from READ if const and "const" in head else BOTH
    elif parent.type == "argument_list" and not const and not _by_value(u, node, parent):
        yield from BOTH
    elif parent.type.startswith("gnu_asm") and "output" in parent.type:
        yield from BOTH
    else:
        yield "r"


def _returns_a_place(u: Uniformity, function: Function, node: "Node") -> bool:
    """Whether a return statement's function, or the lambda that it is in, returns a reference."""
    here: Node | None = node
    while here is not None and here != function.node and here.type != "lambda_expression":
        here = here.parent
    made = function.node if here is None else here
    body = made.child_by_field_name("body")
    head = u.tree.text[made.start_byte : made.end_byte if body is None else body.start_byte]
    behind = head.rpartition("->")[2] if "->" in head else ""
    first = "" if made.type == "lambda_expression" else head.split("(")[0]
    return "&" in behind or "&" in first or "decltype" in first + behind


def _address(u: Uniformity, function: Function, node: "Node") -> Iterator[str]:
    """`&x[i]`: understood where it is cast and used at once, `*reinterpret_cast<T*>(&x[i])`."""
    yield from _pointer(u, function, node, "", False, _DEPTH)


def _by_value(u: Uniformity, node: "Node", arguments: "Node") -> bool:
    """True where a call takes an element's value and no reference to it."""
    call = arguments.parent
    callee = call.child_by_field_name("function") if call is not None else None
    if call is None or callee is None:
        return False
    name = u.callee_name(callee)
    starts = u.targets.get((call.start_byte, call.end_byte), set())
    targets = [f for f in u.functions if f.node.start_byte in starts]
    place = [c for c in arguments.named_children if c.type != "comment"].index(node)
    if targets:
        return all(place < len(f.params) and "&" not in f.params[place][1] for f in targets)
    return known.is_pure(name) or name in known.CASTS
