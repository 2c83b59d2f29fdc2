"""What a file consists of: its functions, types, variables and macros, and who names whom.

A unit is read from one text. From a kernel, everything it reaches is found by name: rather too
much than too little. Nothing here judges what it finds.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mkport.port.conditionals import resolve
from mkport.port.lexer import blanked, names, split_list
from mkport.port.macros import Macro, expand, macros
from mkport.port.syntax import (
    Tree,
    broken,
    declarators,
    declared,
    declared_members,
    find,
    members,
    words_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

DEVICE_WORDS = {"__device__", "__global__"}


@dataclass(frozen=True)
class Item:
    """A top-level piece of a file.

    `kind` is "function", "type", "variable", "using", "other"; `outer` is the node that goes when
    the item goes (with its template head); `names` are what it declares.
    """

    kind: str
    node: "Node"
    outer: "Node"
    names: frozenset[str]
    words: frozenset[str]
    namespace: tuple[str, ...]

    @property
    def name(self) -> str:
        """One of its names."""
        return min(self.names, default="")

    @property
    def kernel(self) -> bool:
        """True for a `__global__` function with a body."""
        return "__global__" in self.words and self.kind == "function"

    @property
    def device(self) -> bool:
        """True for what device code may use."""
        if self.kind == "function":
            return bool(self.words & (DEVICE_WORDS | {"constexpr"}))
        return True


class Unit:
    """A text, its tree and its items."""

    def __init__(self, text: str) -> None:
        self.tree = Tree(text)
        self.text = self.tree.text
        self.items: list[Item] = []
        self._collect(self.tree.root, ())

    @cached_property
    def macros(self) -> Mapping[str, Macro]:
        """The macros that the text defines."""
        return macros(self.text)

    @cached_property
    def constants(self) -> tuple[dict[str, str], dict[str, str], frozenset[tuple[str, str]]]:
        """The text's constants by name, as text: those of no class, and those of classes; and
        which classes have one of which name."""
        from mkport.port.constants import read_constants

        return read_constants(self.tree)

    @cached_property
    def enums(self) -> frozenset[str]:
        """The names of the text's enumerations."""
        found = set()
        for node in find(self.tree.root, "enum_specifier"):
            names_of = [node.child_by_field_name("name")]
            if node.parent is not None and node.parent.type == "type_definition":
                names_of += node.parent.children_by_field_name("declarator")
            found |= {self.tree.of(name) for name in names_of if name is not None}
        return frozenset(found)

    def _collect(self, node: "Node", namespace: tuple[str, ...]) -> None:
        for child in node.children:
            kind = child.type
            if child in (node.child_by_field_name("name"), node.child_by_field_name("condition")):
                continue  # of a conditional
            if kind in ("linkage_specification", "namespace_definition"):
                inner = namespace
                if kind == "namespace_definition":
                    name = child.child_by_field_name("name")
                    inner = (*namespace, self.tree.of(name) if name is not None else "")
                body = child.child_by_field_name("body")
                if body is not None and body.type == "declaration_list":
                    self._collect(body, inner)
                elif body is not None:
                    self._add(body, child, namespace)
            elif kind.startswith("preproc_") and kind not in (
                "preproc_def", "preproc_function_def", "preproc_include", "preproc_call",
            ):  # fmt: skip
                self._collect(child, namespace)
            else:
                self._add(child, child, namespace)

    def _add(self, node: "Node", outer: "Node", namespace: tuple[str, ...]) -> None:
        while node.type == "template_declaration":
            inner = [c for c in node.children if c.is_named and "template_param" not in c.type
                     and c.type not in ("comment", "requires_clause")]  # fmt: skip
            if not inner:
                return
            node = inner[-1]
        kind, found = "other", set[str]()
        body = node.child_by_field_name("body")
        if node.type == "function_definition" and body is not None:
            kind, found = "function", self._names([node])
        elif node.type in ("class_specifier", "struct_specifier", "union_specifier",
                           "enum_specifier"):  # fmt: skip
            kind, found = "type", self._type_names(node)
        elif node.type in ("alias_declaration", "type_definition", "concept_definition"):
            kind, found = "type", self._names([node])
            name = node.child_by_field_name("name")
            if name is not None:
                found.add(self.tree.of(name))
            for spec in find(node, "struct_specifier", "union_specifier", "enum_specifier"):
                found |= self._type_names(spec)
        elif node.type in ("using_declaration", "namespace_alias_definition"):
            kind = "using"
            text = self.tree.of(node)
            if " namespace " not in f" {text} ":
                found = {re.split(r"\W+", text.rstrip("; \n"))[-1]}
            if node.type == "namespace_alias_definition":
                found = {re.split(r"\W+", text)[1]}
        elif node.type == "declaration" and not self._macro_use(node):
            kind, found = "variable", self._names([node])
            if any(d.type == "function_declarator" for d in declarators(node)):
                kind = "prototype"
            for spec in find(node, "struct_specifier", "union_specifier", "enum_specifier"):
                found |= self._type_names(spec)
        elif node.type in ("static_assert_declaration", "template_instantiation"):
            kind = "other"
        elif not node.is_named or node.type.startswith("preproc") or node.type == "comment":
            return
        words = words_of(self.tree, node) | self._words_before(outer, node)
        for macro in words & set(self.macros):
            words |= set(re.findall(r"__(?:device|global|host)__", self.macros[macro].text))
        self.items.append(Item(kind, node, outer, frozenset(found), frozenset(words), namespace))

    def _macro_use(self, node: "Node") -> bool:
        """`MACRO(float);`, which reads like the declaration of a variable in brackets."""
        named = node.child_by_field_name("type")
        macro = self.macros.get(self.tree.of(named)) if named is not None else None
        return macro is not None and macro.parameters is not None

    def _words_before(self, outer: "Node", node: "Node") -> set[str]:
        """Words that the grammar leaves outside a node: macros in front, blanked specifiers."""
        body = node.child_by_field_name("body")
        end = body.start_byte if body is not None else node.end_byte
        head = self.text[outer.start_byte : end]
        return set(
            re.findall(r"__host__|__device__|__global__|__forceinline__", head.split("(")[0])
        )

    def _names(self, nodes: "Iterable[Node]") -> set[str]:
        found: set[str] = set()
        for node in nodes:
            for declarator in declarators(node):
                name = declared(declarator)
                if name is not None:
                    text = self.tree.of(name)
                    plain = re.findall(r"\w+", text.split("<")[0])
                    last = re.fullmatch(r".*::\s*(\w+)", text, re.DOTALL)
                    if last and name.type == "qualified_identifier" and last[1] != plain[0]:
                        plain = [last[1]]  # a class's function runs when it is named
                    found |= {text} if text.startswith("operator") else set(plain)
        return found

    def _type_names(self, node: "Node") -> set[str]:
        found: set[str] = set()
        name = node.child_by_field_name("name")
        if name is not None:
            found.add(re.split(r"\W", self.tree.of(name))[0])
        if node.type == "enum_specifier":
            for enumerator in find(node, "enumerator"):
                inner = enumerator.child_by_field_name("name")
                if inner is not None:
                    found.add(self.tree.of(inner))
        return found

    @cached_property
    def stray(self) -> "list[Node]":
        """What stands at the top and is no declaration: uses of macros, and what was not read."""
        known = {item.outer.start_byte for item in self.items if item.kind != "other"}
        return [
            node for node in self.tree.root.children
            if node.start_byte not in known and node.type not in ("comment", ";")
            and not node.type.startswith(("preproc_", "namespace_", "linkage_"))
        ]  # fmt: skip

    @property
    def torn(self) -> bool:
        """True where the text was not read as declarations: macros that make some, perhaps."""
        return any(node.is_error for node in self.stray)

    @property
    def kernels(self) -> list[Item]:
        """The kernels with a body, in order."""
        return [item for item in self.items if item.kernel]

    def special(self, item: Item) -> tuple[str, ...] | None:
        """The arguments that a template's specialisation is for; None for what is none."""
        name = declared(item.node)
        if item.kind != "function" or name is None or name.type != "template_function":
            return None
        inner = self.tree.of(name)
        return tuple(split_list(inner[inner.index("<") + 1 : inner.rindex(">")]))

    def text_of(self, item: Item) -> str:
        """The text of an item, its template head included."""
        return self.text[item.outer.start_byte : item.outer.end_byte]

    def reach(self, roots: Iterable[Item], also: str = "") -> tuple[list[Item], set[str]]:
        """The items that the roots name, and those name, and so on; and the macros among them.

        `also` is text that names more: a template's arguments. A class's member function counts
        when its name does.
        """
        order, used, _ = self._reach(roots, also)
        return order, used

    def unnamed(self, roots: Iterable[Item], also: str = "") -> list[tuple[int, int]]:
        """The member functions of what is reached that nothing reached names: their places."""
        return self._reach(roots, also)[2]

    @cached_property
    def _members(self) -> Mapping[Item, list[tuple[str, int, int]]]:
        """The classes' member functions that only run when they are named, and their places."""
        return {
            item: list(members(self.tree, item.outer)) for item in self.items if item.kind == "type"
        }

    def _reach(
        self, roots: Iterable[Item], also: str
    ) -> tuple[list[Item], set[str], list[tuple[int, int]]]:
        reached = set(roots)
        waiting: list[tuple[str, int, int]] = []

        def read(item: Item) -> str:
            """Its text without the member functions that wait for their name."""
            start = item.outer.start_byte
            inside = self._members.get(item, [])
            waiting.extend(inside)
            places = [(a, b) for _, a, b in inside]
            if item.kind == "type":
                places += declared_members(self.tree, item.outer)
            return blanked(self.text_of(item), [(a - start, b - start) for a, b in places])

        own = {name for item in reached for name in item.names if item.kernel}
        wanted: set[str] = set()
        used: set[str] = set()
        queue = [*(read(item) for item in reached), also]
        while queue:
            fresh = names(queue.pop()) - wanted
            wanted |= fresh
            for name in fresh:
                if name in self.macros and name not in used:
                    used.add(name)
                    queue.append(self.macros[name].text)
            for item in self.items:
                if item in reached or not item.device or item.kernel or item.kind == "other":
                    continue
                operators = item.kind == "function" and any(
                    name.startswith("operator") for name in item.names
                )
                if item.names & wanted or (operators and item.device):
                    reached.add(item)
                    queue.append(read(item))
            for member in [one for one in waiting if one[0] in wanted]:
                waiting.remove(member)
                queue.append(self.text[member[1] : member[2]])
            for item in self.items:  # kernels that kernels launch, through their names
                if item.kernel and item not in reached and item.names & fresh - own:
                    reached.add(item)
                    queue.append(self.text_of(item))
        order = [item for item in self.items if item in reached]
        return order, used, [(start, end) for _, start, end in waiting]

    def broken(self, items: Iterable[Item]) -> "tuple[Item, Node] | None":
        """The first of some items that the parser could not read, and where."""
        for item in items:
            node = broken(item.outer)
            if node is not None:
                return item, node
        return None


def host_ranges(unit: Unit, roots: Iterable[Item], also: str = "") -> list[tuple[int, int]]:
    """What goes when only the roots and what they (and `also`) reach stay: ranges of the text.

    Items, includes and macros that nothing reached names; the directives around them stay.
    """
    kept, used = unit.reach(roots, also)
    keep = set(kept)
    ranges = [
        (item.outer.start_byte, item.outer.end_byte) for item in unit.items if item not in keep
    ]
    for node in find(unit.tree.root, "preproc_include"):
        ranges.append((node.start_byte, node.end_byte))
    for node in find(unit.tree.root, "preproc_def", "preproc_function_def"):
        name = node.child_by_field_name("name")
        if name is not None and unit.tree.of(name) not in used:
            ranges.append((node.start_byte, node.end_byte))
    ranges += [(node.start_byte, node.end_byte) for node in unit.stray]
    ranges += unit.unnamed(roots, also)
    return [whole_item(unit.text, start, end) for start, end in ranges]


_BEFORE = re.compile(
    r"(?:\b(?:__forceinline__|__noinline__|__inline__|__host__|__attribute__\s*\(\(.*?\)\)|"
    r"alignas\s*\([^()]*\)|__align__\s*\([^()]*\))\s*)+\Z"
)


def whole_item(text: str, start: int, end: int) -> tuple[int, int]:
    """A range with what the grammar leaves outside: specifiers in front, a semicolon behind."""
    found = _BEFORE.search(text, max(0, start - 200), start)
    behind = re.compile(r"\s*;").match(text, end)
    return found.start() if found else start, behind.end() if behind else end


def device_text(text: str, also: str = "") -> str:
    """A file's text without its host code: line numbers stay, what goes is blank.

    What the file's kernels reach stays, and all of them, and what `also` names: the arguments of
    templates. Macros are expanded only where the text cannot be read as it is.
    """
    text = resolve(text, {})
    unit = Unit(text)
    if unit.tree.root.has_error:
        unit = Unit(expand(text, {}))
    return blanked(unit.text, host_ranges(unit, unit.kernels, also))
