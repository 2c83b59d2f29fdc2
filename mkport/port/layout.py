"""Sizes and alignments of a file's types: structs, unions, templates and what is nested in them.

What is not plainly laid out (bases, bit-fields, conditionals) has no size here; nothing is guessed.
A port's text asserts each size that is taken from here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mkport.port.constants import Constants
from mkport.port.lexer import replace_names, split_list
from mkport.port.storage import Types
from mkport.port.syntax import declarators, declared, find, template_parameters
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")
_ALIASES = ("alias_declaration", "type_definition")
_ALIGNED = re.compile(r"(?:__align__|alignas|__builtin_align__)\s*\(")
_WORDS = re.compile(r"\b(?:typename|struct|class|union|enum|const|volatile|template)\b")
_DEPTH = 24
Bound = Mapping[str, str]


@dataclass(frozen=True)
class Field:
    """A member that holds data: where it lies (its `offset` and `size` are in bytes), and what it
    is. `count` is of an array."""

    name: str
    type: str
    offset: int
    size: int
    count: int
    pointer: bool


@dataclass(frozen=True)
class Layout:
    """How a type lies in memory: `size` and `align` are in bytes, `fields` a struct's own."""

    size: int
    align: int
    fields: tuple[Field, ...] = ()
    pointers: bool = False  # somewhere in it

    def times(self, count: int) -> "Layout":
        """An array of it."""
        return Layout(self.size * count, self.align, (), self.pointers)


class Layouts:
    """The layouts of a unit's types, as they are named within one of its items."""

    def __init__(self, unit: Unit, item: Item | None = None) -> None:
        self.unit = unit
        self.tree = unit.tree
        self.item = item

    def of(self, text: str, bound: Bound, depth: int = 0) -> Layout | None:
        """The layout of a type as it is written, with template arguments `bound`; else None."""
        if depth > _DEPTH:
            return None
        text = " ".join(_WORDS.sub(" ", text).split())
        if text.endswith("*") or text == "nullptr_t":
            return Layout(8, 8, (), True)
        types = Types(self.unit, bound)
        size = types.size(text)
        if size is not None:
            return Layout(size, types.align(text))
        found = self._class(text, bound, depth)
        if found is None:
            return None
        node, inner = found
        return self.node(node, inner, depth + 1)

    def node(self, node: "Node", bound: Bound, depth: int = 0) -> Layout | None:
        """The layout of a struct or union with a body; of an enumeration; of an alias."""
        if depth > _DEPTH:
            return None
        if node.type == "enum_specifier":
            base = node.child_by_field_name("base")
            return Layout(4, 4) if base is None else self.of(self.tree.of(base), bound, depth + 1)
        if node.type in _ALIASES:
            kind = node.child_by_field_name("type")
            shapes = {d.type for d in node.children_by_field_name("declarator")}
            if shapes - {"type_identifier", "primitive_type"}:
                return None
            return None if kind is None else self.of(self.tree.of(kind), bound, depth + 1)
        body = node.child_by_field_name("body")
        if node.type not in _CLASSES or body is None:
            return None
        head = self.tree.text[node.start_byte : body.start_byte]
        if any(child.type == "base_class_clause" for child in node.children):
            return None
        inside = self.tree.of(body)
        if _ALIGNED.search(inside) or re.search(r"\bvirtual\b|^\s*#|\[\[", inside, re.MULTILINE):
            return None
        asked = [
            Constants(self.unit, bound).value(text.rstrip(") "))
            for text in re.findall(r"(?:__align__|alignas)\s*\(([^()]*)\)", head)
        ]
        if any(n is None for n in asked) or len(asked) != len(_ALIGNED.findall(head)):
            return None
        return self._members(node, body, {**bound, **self._own(body)}, asked, depth)

    def _members(
        self, node: "Node", body: "Node", bound: Bound, asked: list[int | None], depth: int
    ) -> Layout | None:
        union = node.type == "union_specifier"
        at, size, align, pointers = 0, 0, max([1, *(n or 1 for n in asked)]), False
        fields = []
        for member in body.named_children:
            if member.type != "field_declaration":
                if member.type in _MEMBERS or member.type in (*_CLASSES, *_ALIASES):
                    continue
                return None
            parts = self._field(member, bound, depth)
            if parts is None:
                return None
            for name, kind, one, count, pointer in parts:
                at = 0 if union else -(-at // one.align) * one.align
                fields.append(Field(name, kind, at, one.size * count, count, pointer))
                at += one.size * count
                size, align = max(size, at), max(align, one.align)
                pointers = pointers or one.pointers
        return Layout(max(-(-size // align) * align, align), align, tuple(fields), pointers)

    def _field(
        self, member: "Node", bound: Bound, depth: int
    ) -> list[tuple[str, str, Layout, int, bool]] | None:
        """What a declaration of members holds; nothing for functions, types and statics."""
        text = self.tree.of(member)
        type_node = member.child_by_field_name("type")
        names = declarators(member)
        if re.match(r"(?:inline\s+|const(?:expr)?\s+)*static\b", text):
            return []
        if any(child.type == "bitfield_clause" for child in member.children):
            return None
        if type_node is None:
            return None
        if not names:
            if type_node.type in _CLASSES and type_node.child_by_field_name("name") is None:
                one = self.node(type_node, bound, depth + 1)  # of an anonymous struct or union
                return None if one is None else [("", self.tree.of(type_node), one, 1, False)]
            return []
        if type_node.type in _CLASSES and type_node.child_by_field_name("body") is not None:
            one = self.node(type_node, bound, depth + 1)
        else:
            one = self.of(self.tree.type_of(type_node), bound, depth + 1)
        parts = []
        for declarator in names:
            if declarator.type == "function_declarator":
                return []
            name = declared(declarator)
            if name is None:
                return None
            label, whole = self.tree.of(name), self.tree.of(declarator).split("=")[0]
            before = whole[: whole.index(label)]
            behind = whole[whole.index(label) + len(label) :].strip()
            count = 1
            for part in re.findall(r"\[([^\[\]]*)\]", behind):
                value = Constants(self.unit, bound).value(part)
                if value is None or value < 1:
                    return None
                count *= value
            if re.sub(r"\[[^\[\]]*\]", "", behind).strip() or "(" in before:
                return None
            pointer = "*" in before or "&" in before
            mine = Layout(8, 8, (), True) if pointer else one
            if mine is None:
                return None
            parts.append((label, self.tree.type_of(type_node), mine, count, pointer))
        return parts

    def _own(self, body: "Node") -> dict[str, str]:
        """The constants and enumerators of a class."""
        found: dict[str, str] = {}
        for member in body.named_children:
            for node in (
                find(member, "enum_specifier") if member.type != "function_definition" else ()
            ):
                before = "-1"
                for enumerator in find(node, "enumerator"):
                    name = enumerator.child_by_field_name("name")
                    value = enumerator.child_by_field_name("value")
                    before = f"({before}) + 1" if value is None else self.tree.of(value)
                    if name is not None:
                        found[self.tree.of(name)] = before
            text = self.tree.of(member)
            plain = re.fullmatch(
                r"(?:static\s+|inline\s+|const(?:expr)?\s+)+[\w ]+?\b(\w+)\s*=\s*([^;]+);", text
            )
            if plain and "static" in text:
                found[plain[1]] = plain[2]
        return found

    def spelled(self, text: str, bound: Bound) -> str | None:
        """What an alias in a class stands for, its template arguments put in; None for a class."""
        found = self._class(" ".join(_WORDS.sub(" ", text).split()), bound, 0)
        if found is None:
            return None
        node, inner = self._seen_through(found, 0)
        kind = node.child_by_field_name("type") if node.type in _ALIASES else None
        return None if kind is None else replace_names(self.tree.of(kind), inner.get)

    def constants_of(self, text: str, bound: Bound) -> "tuple[Bound, Bound] | None":
        """What a class's template is bound to, and its constants as text; None for no class."""
        found = self._class(" ".join(_WORDS.sub(" ", text).split()), bound, 0)
        if found is None:
            return None
        node, inner = self._seen_through(found, 0)
        body = node.child_by_field_name("body")
        return None if body is None else (inner, self._own(body))

    # Which class a name means.

    def _class(self, text: str, bound: Bound, depth: int) -> "tuple[Node, Bound] | None":
        if depth > _DEPTH:
            return None
        outer, name, given = _split(text)
        if not name:
            return None
        if outer:
            found = self._class(outer, bound, depth + 1)
            if found is not None:
                node, inner = self._seen_through(found, depth)
                body = node.child_by_field_name("body")
                if body is None:
                    return None
                inner = {**inner, **self._own(body)}
                nested = list(self._named(body.named_children, name))
                return (nested[0], inner) if len(nested) == 1 and given is None else None
        if name in bound:
            return self._class(bound[name], {}, depth + 1) if given is None else None
        if given is not None and (special := self._special(name, given, bound)) is not None:
            return special if isinstance(special, tuple) else None
        inside = [] if outer or given is not None else self._local(name)
        for nodes in (inside, self._global(name)):
            if len(nodes) == 1:
                return self._bind(*nodes[0], given, bound)
            if nodes:
                return None
        return None

    def _seen_through(self, found: "tuple[Node, Bound]", depth: int) -> "tuple[Node, Bound]":
        """The class that an alias is of."""
        node, bound = found
        for _ in range(_DEPTH):
            if node.type not in _ALIASES:
                break
            kind = node.child_by_field_name("type")
            if kind is None:
                break
            if kind.type in _CLASSES and kind.child_by_field_name("body") is not None:
                return kind, bound
            text = " ".join(_WORDS.sub(" ", self.tree.of(kind)).split())
            further = self._class(text, bound, depth + 1)
            if further is None:
                break
            node, bound = further
        return node, bound

    def _bind(
        self, node: "Node", outer: "Node", given: list[str] | None, bound: Bound
    ) -> "tuple[Node, Bound] | None":
        parameters = template_parameters(self.tree, outer)
        if not parameters:
            return (node, bound) if given is None else None
        inner: dict[str, str] = {}
        for at, (name, default) in enumerate(parameters):
            value = given[at] if given is not None and at < len(given) else None
            if value is not None:
                value = replace_names(value, bound.get)
                number = Constants(self.unit, bound).value(value)
                value = value if number is None else str(number)
            elif default:
                value = replace_names(default, inner.get)
            else:
                return None
            if name:
                inner[name] = value
        return node, inner

    def _special(
        self, name: str, given: list[str], bound: Bound
    ) -> "tuple[Node, Bound] | str | None":
        """A template's specialisation for these arguments; a word where one may be meant."""
        wanted = [re.sub(r"\s+", "", replace_names(value, bound.get)) for value in given]
        partial = False
        for item in self.unit.items:
            if item.kind != "type" or name not in item.names:
                continue
            for node in _types_in(item.node):
                named = node.child_by_field_name("name")
                text = "" if named is None else self.tree.of(named)
                if "<" not in text or text.split("<")[0].strip() != name:
                    continue
                own = [re.sub(r"\s+", "", part) for part in _split(text)[2] or []]
                if template_parameters(self.tree, item.outer):
                    partial = True
                elif own == wanted:
                    return node, bound
        return "perhaps" if partial else None

    def _named(self, nodes: "list[Node]", name: str) -> "Iterator[Node]":
        """Types of a name among some nodes, bodies only."""
        for node in nodes:
            for here in _types_in(node):
                if self._declares(here, name):
                    yield here

    def _declares(self, node: "Node", name: str) -> bool:
        if node.type == "alias_declaration":
            named = node.child_by_field_name("name")
            return named is not None and self.tree.of(named) == name
        if node.type == "type_definition":
            return any(self.tree.of(d) == name for d in node.children_by_field_name("declarator"))
        named = node.child_by_field_name("name")
        has_body = node.child_by_field_name("body") is not None
        return named is not None and self.tree.of(named) == name and has_body

    def _local(self, name: str) -> "list[tuple[Node, Node]]":
        """Types that the item's own body declares."""
        if self.item is None or self.item.kind != "function":
            return []
        found = [n for n in find(self.item.node, *_ALIASES, *_CLASSES) if self._declares(n, name)]
        same = {" ".join(self.tree.of(n).split()) for n in found}
        return [(found[0], found[0])] if len(same) == 1 else [(n, n) for n in found]

    def _global(self, name: str) -> "list[tuple[Node, Node]]":
        found = []
        for item in self.unit.items:
            if item.kind == "type" and name in item.names:
                found += [(n, item.outer) for n in self._named([item.node], name)]
        return found


_MEMBERS = (
    "function_definition", "access_specifier", "comment", "using_declaration", "friend_declaration",
    "static_assert_declaration", "template_declaration", "declaration", "enum_specifier",
)  # fmt: skip


def _types_in(node: "Node") -> "Iterator[Node]":
    """The types that a member or top-level declaration declares itself."""
    if node.type in (*_CLASSES, *_ALIASES, "enum_specifier"):
        yield node
    inner = node.child_by_field_name("type")
    if node.type in ("field_declaration", "declaration", "type_definition") and inner is not None:
        if inner.type in (*_CLASSES, "enum_specifier"):
            yield inner


def _split(text: str) -> tuple[str, str, list[str] | None]:
    """ "a::B<c>::D<e>" as ("a::B<c>", "D", ["e"])."""
    text = text.strip().removeprefix("::")
    depth, cut = 0, -1
    for at, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if depth == 0 and text.startswith("::", at):
            cut = at
    outer, last = (text[:cut], text[cut + 2 :]) if cut >= 0 else ("", text)
    found = re.fullmatch(r"\s*(\w+)\s*(?:<(.*)>)?\s*", last, re.DOTALL)
    if not found:
        return "", "", None
    return outer.strip(), found[1], None if found[2] is None else split_list(found[2])
