"""Constant expressions of a file, evaluated: macros, `const int`, enumerators, template arguments.

What cannot be evaluated is None, never a guess.
"""

import re
from collections.abc import Mapping
from functools import cached_property

from mkport.port.lexer import names
from mkport.port.preprocess import expand_text, integer_value
from mkport.port.syntax import declared, find
from mkport.port.unit import Unit

_DEPTH = 12


class Constants:
    """The constants of a unit, with a kernel's template arguments."""

    def __init__(self, unit: Unit, bindings: Mapping[str, str]) -> None:
        self.unit = unit
        self.bindings = dict(bindings)

    @cached_property
    def named(self) -> dict[str, str]:
        """The file's constants by name, as text."""
        tree = self.unit.tree
        found: dict[str, str] = {}
        twice: set[str] = set()
        for node in find(tree.root, "declaration", "field_declaration"):
            head = tree.of(node).split("=")[0]
            if not re.search(r"\bconst(expr)?\b", head):
                continue
            for declarator in find(node, "init_declarator"):
                name = declared(declarator)
                value = declarator.child_by_field_name("value")
                if name is None or value is None or name.type != "identifier":
                    continue
                key = tree.of(name)
                text = tree.of(value).strip("{} ")
                if found.get(key, text) != text:
                    twice.add(key)
                found[key] = text
        for node in find(tree.root, "enum_specifier"):
            before = "-1"
            for enumerator in find(node, "enumerator"):
                name = enumerator.child_by_field_name("name")
                value = enumerator.child_by_field_name("value")
                text = f"({before}) + 1" if value is None else tree.of(value)
                if name is not None:
                    found[tree.of(name)] = before = text
        return {key: text for key, text in found.items() if key not in twice}

    def value(self, text: str, depth: int = 0) -> int | None:
        """The value of an expression, or None."""
        if depth > _DEPTH:
            return None
        text = expand_text(text, self.unit.macros)
        text = re.sub(r"\bstatic_cast\s*<\s*[\w ]+\s*>", "", text)
        text = re.sub(r"\(\s*(?:unsigned|int|size_t|unsigned int|long|long long)\s*\)", "", text)
        text = re.sub(r"\bwarpSize\b", "32", text)
        for function in re.findall(r"\bsizeof\s*\(\s*([\w: ]+?)\s*\)", text):
            from mkport.port.kernel import Types

            size = Types(self.unit, self.bindings).size(function)
            if size is None:
                return None
            text = re.sub(rf"\bsizeof\s*\(\s*{re.escape(function)}\s*\)", str(size), text)
        for name in names(text) - {"true", "false"}:
            given = self.bindings.get(name, self.named.get(name.split("::")[-1]))
            if given is None or name in names(given):
                return None
            value = self.value(given, depth + 1)
            if value is None:
                return None
            text = re.sub(rf"(?:\w+\s*::\s*)*\b{name}\b", f"({value})", text)
        return integer_value(text)
