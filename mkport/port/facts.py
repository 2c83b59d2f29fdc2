"""What the analysis of uniformity knows: functions by instance, variables, and who shares memory.

Nothing here evaluates anything: expressions, calls and statements are in modules of their own, each
a layer on this one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mkport.port.constants import Constants
from mkport.port.kernel import Kernel
from mkport.port.levels import UNIFORM, Block, Value, join
from mkport.port.syntax import declared, find, template_parameters
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

Key = tuple[str, int, int]  # a name, where it is declared, and in which instance of the function
Signature = tuple[object, ...]
PLAIN_TYPES = ("primitive_type", "sized_type_specifier")
LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
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


class Facts:
    """The state of the analysis of one kernel."""

    def __init__(
        self, unit: Unit, kernel: Kernel, items: Sequence[Item], block: tuple[int, int, int]
    ) -> None:
        self.unit = unit
        self.tree = unit.tree
        self.block = Block(*block)
        self.constants = Constants(unit, kernel.bindings)
        self.functions: list[Function] = []  # the instances that are called
        self.by_name: dict[str, list[Function]] = {}
        self.targets: dict[tuple[int, int], set[int]] = {}  # of calls: where the called stand
        self._lambdas: dict[tuple[int, int], Function] = {}
        self._callable: dict[Key, set[Function]] = {}  # the lambdas a variable may be
        self._decided: dict[int, Value] = {}  # of branching nodes, over all instances
        self._control: dict[tuple[int, int], Value] = {}
        self._escapes: dict[tuple[int, int], Value] = {}  # loops and switches: how they are left
        self._types: dict[Key, str] = {}
        self.shared: set[Key] = set()
        self.arrays: set[Key] = set()
        self.exposed: set[Key] = set()  # locals whose address was taken
        self.local: set[Key] = set()  # roots of what lies in a thread's own memory
        self._values: dict[Key, Value] = {}
        self._parent: dict[Key, Key] = {}
        self._changed = False
        self._count = 0
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
        } | {
            name
            for item in items
            if item.kind == "type"
            for name in item.names
            if any(_PLACES.search(self.tree.of(n)) for n in find(item.node, "field_declaration"))
        }
        self._wild = any(_PLACES.search(self.tree.of(f.node)) for f in operators)

    # Functions and their parameters.

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

    def _instance(
        self,
        made: Function,
        values: Sequence[Value],
        owner: Value,
        control: Value,
        bound: tuple[tuple[str, int], ...] = (),
    ) -> Function:
        """The function as it is called with arguments of these levels; its parameters join them."""
        given = tuple((v.level, v.form) for v in values)
        signature: Signature = (given, owner.level, control.level, bound)
        instance = made.instances.get(signature)
        if instance is None:
            self._count += 1
            instance = Function(made.name, made.node, made.body, self._count, made.scope,
                                made.owner, made.kernel, least=made.least, bound=bound)  # fmt: skip
            instance.params = [
                ((key[0], key[1], self._count), shape, kind) for key, shape, kind in made.params
            ]
            for key, _, kind in instance.params:
                self._types[key] = kind
            made.instances[signature] = instance
            self.functions.append(instance)
            self._changed = True
        instance.scope = made.scope
        for (key, _, _), value in zip(instance.params, values, strict=False):
            self._join(key, value)
        self._join(instance.this, owner)
        after = join(instance.calls, control)
        if after != instance.calls:
            instance.calls = after
            self._changed = True
        return instance

    def template_names(self, made: Function) -> list[str]:
        """The names of a function template's parameters."""
        outer = made.node.parent
        return [] if outer is None else [n for n, _ in template_parameters(self.tree, outer)]

    # Values of variables; variables that may be the same memory have one value.

    def _root(self, key: Key) -> Key:
        while key in self._parent:
            key = self._parent[key]
        return key

    def value(self, key: Key) -> Value:
        """What is known of a variable so far."""
        return self._values.get(self._root(key), UNIFORM)

    def _join(self, key: Key, value: Value) -> None:
        root = self._root(key)
        before = self._values.get(root)
        after = join(before, value)
        if after != before:
            self._values[root] = after
            self._changed = True

    def _union(self, a: Key, b: Key) -> None:
        a, b = self._root(a), self._root(b)
        if a == b:
            return
        self._parent[a] = b
        self._changed = True
        if a in self._values:
            value = self._values.pop(a)
            self._join(b, value)
        if a in self.local:
            self.local.add(b)

    def _is_local(self, key: Key) -> bool:
        return self._root(key) in self.local or key in self.local

    def _make_local(self, key: Key) -> None:
        root = self._root(key)
        if root not in self.local:
            self.local.add(root)
            self._changed = True

    def _alias(self, key: Key, node: "Node", scope: Scope, by_reference: bool) -> None:
        """A reference or pointer shares the value of the locals it may lead to."""
        if by_reference:
            for root in self._roots(node, scope):
                if root not in self.shared:
                    self._union(key, root)
                    if not self._leads_away(node):
                        self._make_local(key)
        for root in self._decayed(node, scope):
            self._union(key, root)
            self._make_local(key)

    def _leads_away(self, node: "Node") -> bool:
        """True where an lvalue is reached through a pointer that is no local array."""
        return any(True for _ in find(node, "subscript_expression", "pointer_expression"))

    def _decayed(self, node: "Node", scope: Scope) -> Iterator[Key]:
        """Locals whose address an expression may hold: arrays by name, and `&x`."""
        for taken in find(node, "pointer_expression"):
            if not self.tree.of(taken).startswith("&"):
                continue
            argument = taken.child_by_field_name("argument")
            for root in self._roots(argument, scope):
                away = argument is not None and self._leads_away(argument)
                if root not in self.shared and (not away or root in self.arrays
                                                or self._is_local(root)):  # fmt: skip
                    if root not in self.exposed:
                        self.exposed.add(root)
                        self._changed = True
                    yield root
        for here in find(node, "identifier"):
            key = scope.find(self.tree.of(here))
            if key is None or key in self.shared or self._loaded(here, node):
                continue
            pointer = self._types.get(key, "") in ("*", "", "auto") and self._is_local(key)
            if key in self.arrays or pointer:
                yield key

    def _loaded(self, here: "Node", top: "Node") -> bool:
        """True where a name is read through within an expression, so that its address is gone."""
        for up in _ancestors(here, top):
            if up.type == "subscript_expression" and up.child_by_field_name("argument") == here:
                return True
        return False

    def _roots(self, node: "Node | None", scope: Scope) -> list[Key]:
        """The variables whose memory an lvalue may be."""
        if node is None:
            return []
        kind = node.type
        if kind == "identifier":
            key = scope.find(self.tree.of(node))
            return [key] if key is not None else []
        if kind in ("subscript_expression", "field_expression", "pointer_expression",
                    "update_expression"):  # fmt: skip
            return self._roots(node.child_by_field_name("argument"), scope)
        if kind == "parenthesized_expression":
            return [k for c in node.named_children for k in self._roots(c, scope)]
        if kind == "cast_expression":
            return self._roots(node.child_by_field_name("value"), scope)
        if kind == "unary_expression":
            return self._roots(node.child_by_field_name("argument"), scope)
        if kind in ("binary_expression", "comma_expression"):
            parts = [node.child_by_field_name(n) for n in ("left", "right")]
            return [k for part in parts for k in self._roots(part, scope)]
        if kind == "conditional_expression":
            parts = [node.child_by_field_name(n) for n in ("consequence", "alternative")]
            return [k for part in parts for k in self._roots(part, scope)]
        if kind == "assignment_expression":
            return self._roots(node.child_by_field_name("left"), scope)
        if kind in ("call_expression", "argument_list", "initializer_list"):
            found = []
            for here in find(node, "identifier"):
                key = scope.find(self.tree.of(here))
                if key is not None:
                    found.append(key)
            return found
        return []

    # Control.

    def _decide(self, node: "Node", function: Function, value: Value) -> None:
        """Notes what decides a branching node."""
        here = (function.number, -1 - node.start_byte)
        self._control[here] = join(self._control.get(here), value)
        self._decided[node.start_byte] = join(self._decided.get(node.start_byte), value)

    def decides(self, node: "Node") -> Value:
        """What decides whether a branching node's parts run, however its function is called."""
        return self._decided.get(node.start_byte, UNIFORM)

    def _escape(self, target: "Node", function: Function, control: Value) -> None:
        here = (function.number, target.start_byte)
        before = self._escapes.get(here)
        after = join(before, control)
        if after != before:
            self._escapes[here] = after
            self._changed = True

    def target(self, node: "Node") -> "Node | None":
        """The loop or switch that a break or continue is about."""
        here = node.parent
        wanted = LOOPS if node.type == "continue_statement" else (*LOOPS, "switch_statement")
        while here is not None and here.type not in wanted:
            if here.type in ("lambda_expression", "function_definition"):
                return None
            here = here.parent
        return here

    def _below(self, control: Value, value: Value) -> Value:
        level = max(control.level, value.level)
        return Value(level, None if level else (0, 0, 0), 1, None, control.memory or value.memory)


def _plain(text: str) -> str:
    """A type's name without template arguments, namespaces and qualifiers."""
    text = re.sub(r"\b(?:typename|const|struct|class)\b", " ", text)
    return text.split("<")[0].split("::")[-1].strip() if "::" not in _behind(text) else ""


def _behind(text: str) -> str:
    """What stands behind a type's template arguments: a name in it makes it another type."""
    return text[text.rindex(">") + 1 :] if ">" in text else ""


def _ancestors(node: "Node", top: "Node") -> Iterator["Node"]:
    here = node.parent
    while here is not None:
        yield here
        if here == top:
            return
        here = here.parent
