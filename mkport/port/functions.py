"""The functions of a kernel's file as they are declared: by name and class, with their parameters.

What they are called with, and what is known of values, stands in `facts.py`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mkport.port.levels import Value
from mkport.port.syntax import declared, find, template_parameters
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

Key = tuple[str, int, int]  # a name, where it is declared, and in which instance of the function
Signature = tuple[object, ...]
PLAIN_TYPES = ("primitive_type", "sized_type_specifier")
_PLACES = re.compile(r"\bthreadIdx\b|__shfl|\bclock|\batomic|\basm\b|__activemask")


@dataclass
class Scope:
    """Names visible at a place."""

    names: dict[str, Key] = field(default_factory=dict)
    outer: "Scope | None" = None
    this: Key | None = None  # the object of a member function
    owner: str = ""  # its class

    def find(self, name: str) -> Key | None:
        """The declaration a name means here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    @property
    def object(self) -> Key | None:
        """The object whose members are visible."""
        scope: Scope | None = self
        while scope is not None:
            if scope.this is not None:
                return scope.this
            scope = scope.outer
        return None

    @property
    def class_name(self) -> str:
        """The class whose member function this is in."""
        scope: Scope | None = self
        while scope is not None and not scope.owner:
            scope = scope.outer
        return "" if scope is None else scope.owner


@dataclass(eq=False)
class Function:
    """A function or lambda as it is called in one way: with arguments of some levels.

    What its calls share is joined. `number` tells the instances of all functions apart.
    """

    name: str
    node: "Node"
    body: "Node"
    number: int = 0
    scope: Scope | None = None  # where a lambda stands
    owner: str = ""  # the class of a member function
    kernel: bool = False
    params: list[tuple[Key, str, str]] = field(default_factory=list)  # with declarator and type
    least: int = 0  # parameters without a default
    result: Value | None = None
    calls: Value | None = None  # under what it is called
    instances: "dict[Signature, Function]" = field(default_factory=dict)
    bound: tuple[tuple[str, int], ...] = ()  # numbers that its template is given

    @property
    def this(self) -> Key:
        """The object of a member function."""
        return ("this", self.node.start_byte, self.number)

    @property
    def builds(self) -> bool:
        """True for a constructor."""
        return bool(self.owner) and self.name == self.owner


class Declared:
    """The functions of some items of a file, their classes, and names that stand for classes."""

    def __init__(self, unit: Unit, items: Sequence[Item]) -> None:
        self.unit = unit
        self.tree = unit.tree
        self.by_name: dict[str, list[Function]] = {}
        self.parameters = {
            name
            for node in find(unit.tree.root, "template_declaration")
            for name, _ in template_parameters(unit.tree, node)
            if name
        }
        self.types = {n for item in items if item.kind == "type" for n in item.names}
        self._aliases = self._aliases_of(items)
        self._with_bases = {
            name
            for item in items
            if item.kind == "type" and next(find(item.node, "base_class_clause"), None) is not None
            for name in item.names
        }
        for item in items:
            self._functions_of(item)
        operators = self._operators = [
            f for name, found in self.by_name.items() if name.startswith("operator") for f in found
        ]
        self._placed = {  # classes whose objects know their thread without being told
            f.owner for f in operators if f.owner and _PLACES.search(self.tree.of(f.node))
        } | self._made_with_places(items)
        self._wild = any(_PLACES.search(self.tree.of(f.node)) for f in operators)

    def _made_with_places(self, items: Sequence[Item]) -> set[str]:
        """Classes, those in functions too, whose members begin with what threads differ in."""
        found = set()
        for item in items:
            for spec in find(item.node, "struct_specifier", "class_specifier", "union_specifier"):
                name = spec.child_by_field_name("name")
                if name is None:
                    continue
                for member in find(spec, "field_declaration"):
                    value = member.child_by_field_name("default_value")
                    called = value is not None and "(" in self.tree.of(value)
                    if called or _PLACES.search(self.tree.of(member)):
                        found.add(self.tree.of(name).split("<")[0])
        return found

    def _functions_of(self, item: Item) -> None:
        if item.kind == "function":
            name = item.name
            owner = ""
            named = declared(item.node)
            if named is not None and named.type == "qualified_identifier":
                parts = re.findall(r"\w+", self.tree.of(named))
                owner, name = (parts[-2], parts[-1]) if len(parts) > 1 else ("", parts[-1])
            self._add(item.node, name, owner, item.kernel)
        elif item.kind == "type":
            for spec in find(item.node, "struct_specifier", "class_specifier", "union_specifier"):
                name_node = spec.child_by_field_name("name")
                owner = self.tree.of(name_node).split("<")[0] if name_node is not None else ""
                for node in find(spec, "function_definition"):
                    named = declared(node)
                    if node.child_by_field_name("body") is not None and named is not None:
                        self._add(node, self.tree.of(named), owner, False)

    def _add(self, node: "Node", name: str, owner: str, kernel: bool) -> None:
        body = node.child_by_field_name("body")
        if body is None:
            return
        function = Function(name, node, body, owner=owner, kernel=kernel)
        declarator = next(find(node, "function_declarator"), None)
        if declarator is not None:
            self._parameters(function, declarator.child_by_field_name("parameters"))
        self.by_name.setdefault(name, []).append(function)

    def _parameters(self, function: Function, parameters: "Node | None") -> None:
        for child in parameters.children if parameters is not None else ():
            if "parameter_declaration" not in child.type:
                continue
            declarator = child.child_by_field_name("declarator")
            name = declared(declarator) if declarator is not None else None
            key = (self.tree.of(name) if name is not None else "", child.start_byte, 0)
            shape = self.tree.of(declarator) if declarator is not None else ""
            if "*" not in shape and re.search(r"\bconst\b", self.tree.of(child)):
                shape = shape.replace("&", "").strip()  # nothing is written through it
            type_node = child.child_by_field_name("type")
            kind = self._type_of(type_node, shape)
            function.params.append((key, shape, kind))
            if child.type != "optional_parameter_declaration":
                function.least += 1

    def _type_of(self, type_node: "Node | None", shape: str) -> str:
        """ "*" for a pointer, the name of a class of the file, "" for what is not told apart."""
        if "*" in shape or "[" in shape:
            return "*"
        if type_node is None:
            return ""
        if type_node.type == "placeholder_type_specifier":
            return "auto"
        name = self._class_named(self.tree.of(type_node))
        return name if name in self.types else "=" if type_node.type in PLAIN_TYPES else ""

    def _aliases_of(self, items: Sequence[Item]) -> dict[str, str]:
        """Names that stand for a class, at file level and in functions; not those of several."""
        found: dict[str, str] = {}
        twice: set[str] = set()
        for item in items:
            for node in find(item.node, "alias_declaration", "type_definition"):
                kind = node.child_by_field_name("type")
                names = node.children_by_field_name("declarator")
                names += [n for n in [node.child_by_field_name("name")] if n is not None]
                for name in names:
                    text = _plain(self.tree.of(kind)) if kind is not None else ""
                    if found.setdefault(self.tree.of(name), text) != text:
                        twice.add(self.tree.of(name))
        return {name: text for name, text in found.items() if name not in twice}

    def _class_named(self, text: str) -> str:
        """The plain name of the class that a type's text stands for."""
        name = _plain(text)
        for _ in range(8):
            if self._aliases.get(name, name) == name:
                break
            name = self._aliases[name]
        return name

    def template_names(self, made: Function) -> list[str]:
        """The names of a function template's parameters."""
        outer = made.node.parent
        return [] if outer is None else [n for n, _ in template_parameters(self.tree, outer)]


def _plain(text: str) -> str:
    """A type's name without template arguments, namespaces and qualifiers."""
    text = re.sub(r"\b(?:typename|const|struct|class)\b", " ", text)
    return text.split("<")[0].split("::")[-1].strip() if "::" not in _behind(text) else ""


def _behind(text: str) -> str:
    """What stands behind a type's template arguments: a name in it makes it another type."""
    return text[text.rindex(">") + 1 :] if ">" in text else ""
