"""Constant expressions of a file, evaluated: macros, `const int`, enumerators, template arguments.

What cannot be evaluated is None, never a guess.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mkport.port.conditionals import integer_value
from mkport.port.lexer import names
from mkport.port.macros import expand_text
from mkport.port.storage import Types
from mkport.port.syntax import Tree, declared, find
from mkport.port.unit import Unit

if TYPE_CHECKING:
    from tree_sitter import Node

_DEPTH = 12
_QUALIFIED = (
    r"((?:\w+\s*::\s*)*\w+(?:\s*<[^<>;]*(?:<[^<>;]*>[^<>;]*)*>)?)\s*::\s*(\w+)\b(?!\s*(?:::|<))"
)


class Constants:
    """The constants of a unit, with a kernel's template arguments."""

    def __init__(self, unit: Unit, bindings: Mapping[str, str]) -> None:
        self.unit = unit
        self.bindings = dict(bindings)

    @property
    def named(self) -> dict[str, str]:
        """The file's constants by name, as text; one that stands for several things is none."""
        return self.unit.constants[0]

    @property
    def members(self) -> dict[str, str]:
        """The constants of classes by name, as their own methods use them."""
        return self.unit.constants[1]

    def value(self, text: str, depth: int = 0, inside: bool = False) -> int | None:
        """The value of an expression, or None; `inside` a class its own constants come first."""
        if depth > _DEPTH:
            return None
        text = expand_text(text, self.unit.macros)
        text = re.sub(r"\bstatic_cast\s*<\s*[\w ]+\s*>", "", text)
        text = re.sub(r"\(\s*(?:unsigned|int|size_t|unsigned int|long|long long)\s*\)", "", text)
        text = re.sub(r"\bwarpSize\b", "32", text)
        for function in re.findall(r"\bsizeof\s*\(\s*([\w: ]+?)\s*\)", text):
            size = Types(self.unit, self.bindings).size(function)
            if size is None:
                return None
            text = re.sub(rf"\bsizeof\s*\(\s*{re.escape(function)}\s*\)", str(size), text)
        for owner, name in re.findall(_QUALIFIED, text):
            value = self._member(owner, name, depth)
            if value is not None:
                text = re.sub(rf"{re.escape(owner)}\s*::\s*{name}\b", f"({value})", text)
            elif self._is_class(owner):
                return None
        text = re.sub(r"(?:\b\w+\s*::\s*)+(?=\w)", "", text)
        for name in names(text) - {"true", "false"}:
            given = self.bindings.get(name, self.named.get(name))
            own = name in self.members and (inside or given is None)
            given = self.members[name] if own else given  # what a class is made with is not known
            if given is None or name in names(given):
                return None
            within = Constants(self.unit, {}) if own else self
            value = within.value(given, depth + 1, own)
            if value is None:
                return None
            text = re.sub(rf"\b{name}\b", f"({value})", text)
        return integer_value(text)

    def _member(self, owner: str, name: str, depth: int) -> int | None:
        """A class's constant, for the arguments that the class is named with."""
        from mkport.port.layout import Layouts

        found = Layouts(self.unit).constants_of(owner, self.bindings)
        if found is None or name not in found[1]:
            return None
        return Constants(self.unit, {**found[0], **found[1]}).value(name, depth + 1)

    def _is_class(self, owner: str) -> bool:
        plain = re.split(r"[<\s]", owner)[0].split("::")[-1]
        return plain in self.bindings or any(
            plain in item.names for item in self.unit.items if item.kind == "type"
        )


def read_constants(
    tree: Tree,
) -> tuple[dict[str, str], dict[str, str], frozenset[tuple[str, str]]]:
    """A text's constants and enumerators by name, as text: those of no class, and of classes; and
    all of classes, by class and name."""
    found: list[tuple[str, str, str]] = []  # class, name, text
    for node in find(tree.root, "declaration", "field_declaration"):
        head = tree.of(node).split("=")[0]
        if not re.search(r"\bconst(expr)?\b", head):
            continue
        owner = _owner(tree, node)
        if node.type == "field_declaration":
            name = node.child_by_field_name("declarator")
            value = node.child_by_field_name("default_value")
            if name is not None and value is not None and name.type == "field_identifier":
                found.append((owner, tree.of(name), tree.of(value).strip("{} ")))
        for declarator in find(node, "init_declarator"):
            name = declared(declarator)
            value = declarator.child_by_field_name("value")
            if name is None or value is None or name.type != "identifier":
                continue
            found.append((owner, tree.of(name), tree.of(value).strip("{} ")))
    for node in find(tree.root, "enum_specifier"):
        before, owner = "-1", _owner(tree, node)
        for enumerator in find(node, "enumerator"):
            name = enumerator.child_by_field_name("name")
            value = enumerator.child_by_field_name("value")
            before = f"({before}) + 1" if value is None else tree.of(value)
            if name is not None:
                found.append((owner, tree.of(name), before))
    return (
        _single((key, text) for owner, key, text in found if not owner),
        _single((key, text) for owner, key, text in found if owner),
        frozenset((owner, key) for owner, key, _ in found if owner),
    )


def _single(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    twice: set[str] = set()
    for key, text in pairs:
        if found.setdefault(key, text) != text:
            twice.add(key)
    return {key: text for key, text in found.items() if key not in twice}


def _owner(tree: Tree, node: "Node") -> str:
    """The class whose body a node stands in, unless a function is between them; else ""."""
    here = node.parent
    while here is not None and here.type != "function_definition":
        if here.type in ("struct_specifier", "class_specifier", "union_specifier"):
            name = here.child_by_field_name("name")
            return tree.of(name).split("<")[0].strip() if name is not None else "?"
        here = here.parent
    return ""
