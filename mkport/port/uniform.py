"""Which values are the same for all threads of a block: an analysis of a kernel and its helpers.

It follows assignments, references, pointers to locals and control flow through all functions that
the kernel reaches, again and again until nothing changes. What it does not know it takes to differ
from thread to thread. It reads text whose macros are expanded; judgements are in `control.py`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.constants import Constants
from mkport.port.kernel import Kernel
from mkport.port.levels import (
    ANY_LANE,
    ANY_WARP,
    BLOCK,
    UNIFORM,
    WARP,
    Block,
    Value,
    join,
    mixed,
    number,
    under,
)
from mkport.port.syntax import declarators, declared, find, walk
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

Key = tuple[str, int, int]  # a name, where it is declared, and in which instance of the function
Signature = tuple[object, ...]
_ROUNDS = 60
_PLACES = re.compile(r"\bthreadIdx\b|__shfl|\bclock|\batomic|\basm\b|__activemask")
_INDICES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_CONSTANT = (
    "string_literal", "null", "nullptr", "comment", "type_descriptor", "concatenated_string",
    "primitive_type", "raw_string_literal", "type_identifier", "user_defined_literal",
    "alignof_expression",
)  # fmt: skip
LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")


@dataclass
class Scope:
    """Names visible at a place."""

    names: dict[str, Key] = field(default_factory=dict)
    outer: "Scope | None" = None
    this: Key | None = None  # the object of a member function

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

    @property
    def this(self) -> Key:
        """The object of a member function."""
        return ("this", self.node.start_byte, self.number)

    @property
    def builds(self) -> bool:
        """True for a constructor."""
        return bool(self.owner) and self.name == self.owner


class Uniformity:
    """The analysis of one kernel. `control` holds the value that decides each branching node."""

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
        self.local: set[Key] = set()  # roots of what lies in a thread's own memory
        self._values: dict[Key, Value] = {}
        self._parent: dict[Key, Key] = {}
        self._changed = False
        self._count = 0
        self.parameters = {
            name
            for node in find(unit.tree.root, "template_parameter_list")
            for name in re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|>|$)", self.tree.of(node))
        }
        self.types = {n for item in items if item.kind == "type" for n in item.names}
        for item in items:
            self._functions_of(item)
        operators = [f for name, found in self.by_name.items() if name.startswith("operator")
                     for f in found]  # fmt: skip
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
        kernels = [f for f in self.by_name.get(kernel.name, []) if f.kernel]
        count = len(kernels[0].params)
        self.kernel = self._instance(kernels[0], [UNIFORM] * count, UNIFORM, UNIFORM)
        for function in operators:
            self._instance(function, [ANY_LANE] * len(function.params), ANY_LANE, ANY_LANE)
        for _ in range(_ROUNDS):
            self._changed = False
            for instance in list(self.functions):
                self._run(instance)
            if not self._changed:
                break
        else:
            raise RuntimeError("the analysis does not come to an end")

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
        name = self.tree.of(type_node).split("<")[0].split("::")[-1].strip()
        return name if name in self.types else "=" if type_node.type == "primitive_type" else ""

    def _instance(
        self, made: Function, values: Sequence[Value], owner: Value, control: Value
    ) -> Function:
        """The function as it is called with arguments of these levels; its parameters join them."""
        given = tuple((v.level, v.form) for v in values)
        signature: Signature = (given, owner.level, control.level)
        instance = made.instances.get(signature)
        if instance is None:
            self._count += 1
            instance = Function(made.name, made.node, made.body, self._count, made.scope,
                                made.owner, made.kernel, least=made.least)  # fmt: skip
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

    # Statements.

    def _run(self, function: Function) -> None:
        this = function.this if function.owner else None
        scope = Scope(outer=function.scope, this=this)
        for key, _, _ in function.params:
            if key[0]:
                scope.names[key[0]] = key
        control = function.calls or UNIFORM
        for goto in find(function.body, "goto_statement"):
            if self._control.get((function.number, goto.start_byte), UNIFORM).level > BLOCK:
                control = join(control, ANY_LANE)
        for child in function.node.children:
            if child.type == "field_initializer_list":
                self._statement(child, scope, function, control)
        self._statement(function.body, scope, function, control)

    def _statement(self, node: "Node", scope: Scope, function: Function, control: Value) -> None:
        kind = node.type
        if kind == "goto_statement":
            here = (function.number, node.start_byte)
            self._control[here] = join(self._control.get(here), control)
        if kind == "compound_statement":
            inner = Scope(outer=scope)
            for child in node.named_children:
                self._statement(child, inner, function, control)
        elif kind == "declaration":
            self._declaration(node, scope, function, control)
        elif kind == "if_statement":
            self._if(node, scope, function, control)
        elif kind in LOOPS:
            self._loop(node, scope, function, control)
        elif kind == "switch_statement":
            condition = node.child_by_field_name("condition")
            value = self._condition(condition, scope, function, control)
            value = join(value, self._escapes.get((function.number, node.start_byte), UNIFORM))
            self._decide(node, function, value)
            self._children(node.child_by_field_name("body"), scope, function, join(control, value))
        elif kind == "return_statement":
            value = UNIFORM
            for child in node.named_children:
                value = self._expression(child, scope, function, control)
            after = join(function.result, under(value, control))
            if after != function.result:
                function.result = after
                self._changed = True
        elif kind in ("break_statement", "continue_statement"):
            target = self.target(node)
            if target is not None:
                self._escape(target, function, control)
        elif kind in ("goto_statement", "comment") or kind.startswith("preproc_call"):
            pass
        elif kind in ("expression_statement", "labeled_statement", "case_statement", "else_clause",
                      "attributed_statement", "field_initializer_list", "init_statement",
                      "declaration_list") or kind.startswith("preproc"):  # fmt: skip
            self._children(node, scope, function, control)
        elif kind in ("alias_declaration", "type_definition", "using_declaration",
                      "static_assert_declaration", "struct_specifier", "class_specifier"):  # fmt: skip
            pass
        else:
            self._expression(node, scope, function, control)

    def _children(
        self, node: "Node | None", scope: Scope, function: Function, control: Value
    ) -> None:
        if node is None:
            return
        if node.type == "compound_statement":
            self._statement(node, scope, function, control)
            return
        for child in node.named_children:
            self._statement(child, scope, function, control)

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

    def _if(self, node: "Node", scope: Scope, function: Function, control: Value) -> None:
        inner = Scope(outer=scope)
        condition = node.child_by_field_name("condition")
        value = self._condition(condition, inner, function, control)
        self._decide(node, function, value)
        below = self._below(control, value)
        for name in ("consequence", "alternative"):
            part = node.child_by_field_name(name)
            if part is not None:
                self._statement(part, inner, function, below)

    def _below(self, control: Value, value: Value) -> Value:
        level = max(control.level, value.level)
        return Value(level, None if level else (0, 0, 0), 1, None, control.memory or value.memory)

    def _condition(
        self, node: "Node | None", scope: Scope, function: Function, control: Value
    ) -> Value:
        if node is None:
            return UNIFORM
        value = UNIFORM
        for child in node.named_children:
            if child.type in ("declaration", "init_statement"):
                self._statement(child, scope, function, control)
                for declarator in find(child, "init_declarator"):
                    name = declared(declarator)
                    key = scope.find(self.tree.of(name)) if name is not None else None
                    value = self.value(key) if key is not None else ANY_LANE
            else:
                value = self._expression(child, scope, function, control)
        return value

    def _loop(self, node: "Node", scope: Scope, function: Function, control: Value) -> None:
        inner = Scope(outer=scope)
        initial = node.child_by_field_name("initializer")
        if initial is not None:
            self._statement(initial, inner, function, control)
        escape = self._escapes.get((function.number, node.start_byte), UNIFORM)
        value = self._control.get((function.number, -1 - node.start_byte), UNIFORM)
        below = self._below(control, join(value, escape))
        if node.type == "for_range_loop":
            right = node.child_by_field_name("right")
            value = self._expression(right, inner, function, below)
            for declarator in declarators(node):
                self._declare(declarator, None, None, inner, function, below)
                name = declared(declarator)
                if name is not None:
                    self._join(inner.names[self.tree.of(name)], under(mixed(value), below))
        else:
            condition = node.child_by_field_name("condition")
            if condition is not None:
                value = (
                    self._condition(condition, inner, function, below)
                    if condition.type == "condition_clause"
                    else self._expression(condition, inner, function, below)
                )
        value = join(value, escape)
        self._decide(node, function, value)
        below = self._below(control, value)
        update = node.child_by_field_name("update")
        body = node.child_by_field_name("body")
        if body is not None:
            self._statement(body, inner, function, below)
        if update is not None:
            self._expression(update, inner, function, below)

    # Declarations.

    def _declaration(self, node: "Node", scope: Scope, function: Function, control: Value) -> None:
        head = self.tree.text[node.start_byte : node.end_byte].split("=")[0]
        is_shared = bool(re.search(r"\b__shared__\b", head))
        type_node = node.child_by_field_name("type")
        for declarator in declarators(node):
            self._declare(declarator, type_node, is_shared, scope, function, control)

    def _declare(
        self,
        declarator: "Node",
        type_node: "Node | None",
        is_shared: bool | None,
        scope: Scope,
        function: Function,
        control: Value,
    ) -> None:
        name = declared(declarator)
        if name is None or declarator.type == "structured_binding_declarator":
            for inner in find(declarator, "identifier"):
                key = (self.tree.of(inner), inner.start_byte, function.number)
                scope.names[key[0]] = key
                self._join(key, ANY_LANE)
            return
        key = (self.tree.of(name), name.start_byte, function.number)
        value_node = declarator.child_by_field_name("value")
        if declarator.type == "function_declarator":  # or an object made from arguments
            scope.names[key[0]] = key
            self._join(key, ANY_LANE)
            return
        if value_node is None and declarator.type != "init_declarator":
            value_node = next((c for c in declarator.children if c.type == "argument_list"), None)
        if value_node is not None and value_node.type == "lambda_expression":
            self._callable.setdefault(key, set()).add(self._lambda(value_node, scope, function))
            scope.names[key[0]] = key
            return
        value = None
        if value_node is not None:
            value = self._expression(value_node, scope, function, control)
        scope.names[key[0]] = key
        shape = self.tree.of(declarator)[: name.start_byte - declarator.start_byte]
        is_array = any(
            c.type == "array_declarator" for c in walk(declarator, ("argument_list",))
            if c.end_byte <= (value_node.start_byte if value_node is not None else c.end_byte)
        )  # fmt: skip
        self._types[key] = kind = self._type_of(type_node, self.tree.of(declarator).split("=")[0])
        if is_shared:
            self.shared.add(key)
            return
        if is_array and "*" not in shape and "&" not in shape:
            self.arrays.add(key)
            self._make_local(key)
        pointer = "*" in shape or (
            type_node is not None and self.tree.of(type_node).strip() in ("auto", "decltype(auto)")
        )
        if value_node is not None and ("&" in shape or pointer):
            self._alias(key, value_node, scope, by_reference="&" in shape)
        if value is not None:
            self._join(key, under(value, control))
        if kind in self._placed:
            self._join(key, ANY_LANE)
        builders = [f for f in self.by_name.get(kind, []) if f.builds]
        for made in builders:  # what its constructors know of threads, the object knows
            values = [value or UNIFORM] * len(made.params)
            self._union(key, self._instance(made, values, UNIFORM, control).this)

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

    # Expressions.

    def _expression(
        self, node: "Node | None", scope: Scope, function: Function, control: Value
    ) -> Value:
        if node is None:
            return UNIFORM
        kind = node.type
        text = self.tree.of(node) if node.child_count == 0 else ""
        if kind == "identifier":
            return self._name(text, scope)
        if kind in ("number_literal", "true", "false", "char_literal"):
            const = self.constants.value(self.tree.of(node)) if kind != "char_literal" else None
            return UNIFORM if const is None else number(const)
        if kind == "sizeof_expression":
            const = self.constants.value(self.tree.of(node))
            return UNIFORM if const is None else number(const)
        if kind == "this":
            return self._name("this", scope)
        if kind in _CONSTANT:
            return UNIFORM
        if kind in ("parenthesized_expression", "condition_clause", "comma_expression",
                    "argument_list", "initializer_list", "expression_statement", "subscript_argument_list",
                    "compound_literal_expression", "initializer_pair"):  # fmt: skip
            values = [self._expression(c, scope, function, control) for c in node.named_children
                      if c.type != "comment"]  # fmt: skip
            if kind in ("argument_list", "initializer_list", "compound_literal_expression"):
                return values[0] if len(values) == 1 else mixed(*values)
            return values[-1] if values else UNIFORM
        if kind == "field_expression":
            return self._field(node, scope, function, control)
        if kind == "binary_expression":
            return self._binary(node, scope, function, control)
        if kind == "unary_expression":
            value = self._expression(node.child_by_field_name("argument"), scope, function, control)
            operator = self.tree.of(node)[:1]
            if operator == "-":
                return self.block.binary("-", number(0), value)
            return value if operator == "+" else mixed(value)
        if kind == "cast_expression":
            return self._expression(node.child_by_field_name("value"), scope, function, control)
        if kind == "assignment_expression":
            return self._assignment(node, scope, function, control)
        if kind == "update_expression":
            target = node.child_by_field_name("argument")
            old = self._expression(target, scope, function, control)
            sign = "+" if "++" in self.tree.of(node) else "-"
            value = self.block.binary(sign, old, number(1))
            self._assign(target, value, scope, function, control)
            return value if value.level else mixed(old, value)
        if kind == "subscript_expression":
            base = node.child_by_field_name("argument")
            index = [self._expression(c, scope, function, control) for c in node.named_children
                     if c != base]  # fmt: skip
            value = mixed(self._expression(base, scope, function, control), *index)
            return self._read(value, base, scope)
        if kind == "pointer_expression":
            argument = node.child_by_field_name("argument")
            value = mixed(self._expression(argument, scope, function, control))
            if self.tree.of(node).startswith("&"):
                return value
            return self._read(value, argument, scope)
        if kind == "conditional_expression":
            value = self._expression(
                node.child_by_field_name("condition"), scope, function, control
            )
            self._decide(node, function, value)
            below = self._below(control, value)
            parts = [
                self._expression(node.child_by_field_name(n), scope, function, below)
                for n in ("consequence", "alternative")
            ]
            return under(join(*parts), value) if value.level else join(*parts)
        if kind == "lambda_expression":
            self._lambda(node, scope, function)
            return UNIFORM
        if kind == "call_expression":
            return self._call(node, scope, function, control)
        if kind == "gnu_asm_expression":
            for operand in find(node, "gnu_asm_output_operand"):
                target = operand.child_by_field_name("value")
                self._assign(target, ANY_LANE, scope, function, control)
            return ANY_LANE
        if kind in ("qualified_identifier", "template_function", "template_type"):
            const = self.constants.value(self.tree.of(node))
            name = known.plain_name(self.tree.of(node))
            return number(const) if const is not None else self._name(name, scope)
        values = [self._expression(c, scope, function, control) for c in node.named_children]
        this = scope.object
        if kind == "field_initializer" and this is not None:
            self._join(this, mixed(*values[1:]))
        return ANY_LANE

    def _name(self, name: str, scope: Scope) -> Value:
        key = scope.find(name)
        if key is not None:
            if key in self.shared:
                return Value(BLOCK, (0, 0, 0), 1, None, True)
            return self.value(key)
        this = scope.object
        if name == "this" and this is not None:
            return self.value(this)
        if name == "threadIdx":
            return ANY_LANE
        if name in ("blockIdx", "blockDim", "gridDim", "warpSize"):
            return number(32) if name == "warpSize" else UNIFORM
        constant = self.constants.value(name)
        if constant is not None:
            return number(constant)
        if this is not None:
            return self.value(this)
        if name in self.parameters or re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
            return UNIFORM  # of a template; a macro of CUDA's own headers
        if name in self.by_name or any(name in item.names for item in self.unit.items):
            return Value(BLOCK, (0, 0, 0), 1, None, True)
        return ANY_LANE

    def _read(self, value: Value, base: "Node | None", scope: Scope) -> Value:
        """An element read: what memory of all threads holds at a uniform place is uniform."""
        roots = self._roots(base, scope)
        own = any(self._is_local(root) for root in roots)
        if own:
            value = mixed(value, *(self.value(root) for root in roots))
        return Value(value.level, value.form if value.level == BLOCK else None, 1, None,
                     value.memory or not own)  # fmt: skip

    def _field(self, node: "Node", scope: Scope, function: Function, control: Value) -> Value:
        argument = node.child_by_field_name("argument")
        base = self.tree.of(argument) if argument is not None else ""
        name_node = node.child_by_field_name("field")
        name = self.tree.of(name_node) if name_node is not None else ""
        axis = {"x": 0, "y": 1, "z": 2}.get(name)
        if base in _INDICES and axis is not None and scope.find(base) is None:
            if base == "threadIdx":
                return self.block.index(axis)
            if base == "blockDim":
                return number((self.block.x, self.block.y, self.block.z)[axis])
            return UNIFORM
        value = mixed(self._expression(argument, scope, function, control))
        return self._read(value, argument, scope) if "->" in self.tree.of(node) else value

    def _binary(self, node: "Node", scope: Scope, function: Function, control: Value) -> Value:
        operator_node = node.child_by_field_name("operator")
        operator = self.tree.of(operator_node) if operator_node is not None else ""
        left = self._expression(node.child_by_field_name("left"), scope, function, control)
        below = control
        if operator in ("&&", "||", "and", "or"):
            self._decide(node, function, left)
            below = self._below(control, left)
        right = self._expression(node.child_by_field_name("right"), scope, function, below)
        return ANY_LANE if self._wild else self.block.binary(operator, left, right)

    def _assignment(self, node: "Node", scope: Scope, function: Function, control: Value) -> Value:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        value = self._expression(right, scope, function, control)
        operator_node = node.child_by_field_name("operator")
        operator = self.tree.of(operator_node) if operator_node is not None else "="
        if operator != "=":
            old = self._expression(left, scope, function, control)
            value = self.block.binary(operator[:-1], old, value)
        elif left is not None and left.type == "identifier" and right is not None:
            key = scope.find(self.tree.of(left))
            if key is not None and key not in self.shared and self._types.get(key) != "=":
                for root in self._decayed(right, scope):
                    self._union(key, root)
                    self._make_local(key)
        self._assign(left, value, scope, function, control)
        return value

    def _assign(
        self, left: "Node | None", value: Value, scope: Scope, function: Function, control: Value
    ) -> None:
        if left is None:
            return
        value = under(value, control)
        if left.type == "identifier":
            key = scope.find(self.tree.of(left))
            if key is not None and key not in self.shared:
                self._join(key, value)
            elif key is None and scope.object is not None:
                self._join(scope.object, mixed(value))
            return
        if left.type == "parenthesized_expression" and left.named_children:
            self._assign(left.named_children[0], value, scope, function, control)
            return
        through = self._leads_away(left) or "->" in self.tree.of(left)
        index = mixed(
            *(self._expression(n, scope, function, control)
              for n in find(left, "subscript_argument_list"))
        )  # fmt: skip
        roots = self._roots(left, scope)
        if not roots and scope.object is not None and not through:
            self._join(scope.object, mixed(value, index))
        for root in roots:
            if root in self.shared or (through and not self._is_local(root)):
                continue
            self._join(root, mixed(value, index))

    # Calls.

    def _lambda(self, node: "Node", scope: Scope, function: Function) -> Function:
        here = (node.start_byte, function.number)
        made = self._lambdas.get(here)
        if made is None:
            body = node.child_by_field_name("body")
            assert body is not None
            made = Function("lambda", node, body)
            declarator = node.child_by_field_name("declarator")
            if declarator is not None:
                self._parameters(made, declarator.child_by_field_name("parameters"))
            self._lambdas[here] = made
        made.scope = scope
        return made

    def _lambdas_in(self, node: "Node", scope: Scope, function: Function) -> set[Function]:
        """The lambdas that an argument may be."""
        found: set[Function] = set()
        for here in walk(node, ("lambda_expression",)):
            if here.type == "lambda_expression":
                found.add(self._lambda(here, scope, function))
            elif here.type == "identifier":
                key = scope.find(self.tree.of(here))
                found |= self._callable.get(key, set()) if key is not None else set()
        return found

    def _candidates(self, node: "Node", given: Sequence["Node"], scope: Scope) -> list[Function]:
        """The functions of the file that a call may mean."""
        function = node.child_by_field_name("function")
        if function is None or function.type == "lambda_expression":
            return []
        name = self.callee_name(function)
        if function.type == "identifier":
            key = scope.find(name)
            if key is not None:
                return list(self._callable.get(key, ()))
        found = self.by_name.get(name, [])
        fitting = [f for f in found if f.least <= len(given) <= len(f.params)] or found
        if len(fitting) > 1:
            kinds = [self._kind(c, scope) for c in given]
            fitting = [
                f for f in fitting
                if not any(_differ(a, b) for a, (_, _, b) in zip(kinds, f.params, strict=False))
            ] or fitting  # fmt: skip
        return fitting

    def _kind(self, node: "Node", scope: Scope) -> str:
        key = scope.find(self.tree.of(node)) if node.type == "identifier" else None
        return self._types.get(key, "") if key is not None else ""

    def callee_name(self, function: "Node") -> str:
        """The plain name of what a call calls."""
        while True:
            inner = function.child_by_field_name("name") or function.child_by_field_name("field")
            if (
                function.type in ("identifier", "field_identifier", "primitive_type")
                or inner is None
            ):
                return known.plain_name(self.tree.of(function))
            function = inner

    def _call(self, node: "Node", scope: Scope, function: Function, control: Value) -> Value:
        callee = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        given = [c for c in arguments.named_children if c.type != "comment"] if (
            arguments is not None) else []  # fmt: skip
        if callee is None:
            return ANY_LANE
        name = self.callee_name(callee)
        values = [self._expression(c, scope, function, control) for c in given]
        if name in known.CASTS and len(given) == 1:
            return values[0]
        targets = self._candidates(node, given, scope)
        if callee.type == "lambda_expression":
            targets = [self._lambda(callee, scope, function)]
        lambdas = [self._lambdas_in(c, scope, function) for c in given]
        if targets:
            here = (node.start_byte, node.end_byte)
            self.targets.setdefault(here, set()).update(f.node.start_byte for f in targets)
            parts = [
                self._bind(target, callee, given, values, lambdas, scope, function, control)
                for target in targets
            ]
            return parts[0] if len(parts) == 1 else mixed(*parts)
        for found in lambdas:
            for made in found:  # others call it, with whatever arguments
                self._instance(made, [ANY_LANE] * len(made.params), ANY_LANE, ANY_LANE)
        return self._builtin(name, callee, given, values, scope, function, control)

    def _bind(
        self,
        made: Function,
        callee: "Node",
        given: Sequence["Node"],
        values: Sequence[Value],
        lambdas: Sequence[set[Function]],
        scope: Scope,
        function: Function,
        control: Value,
    ) -> Value:
        owner, objects = UNIFORM, list[Key]()
        if made.owner and callee.type == "field_expression":
            argument = callee.child_by_field_name("argument")
            owner = mixed(self._expression(argument, scope, function, control))
            objects = self._roots(argument, scope)
        elif made.owner and not made.builds and scope.object is not None:
            owner, objects = self.value(scope.object), [scope.object]
        least = Value(control.level, (0, 0, 0) if control.level == BLOCK else None)
        target = self._instance(made, values, owner, least)
        for (key, shape, _), node, found in zip(target.params, given, lambdas, strict=False):
            if found - self._callable.get(key, set()):
                self._callable.setdefault(key, set()).update(found)
                self._changed = True
            if "&" in shape:
                for root in self._roots(node, scope):
                    if root not in self.shared:
                        self._union(key, root)
                        if not self._leads_away(node):
                            self._make_local(key)
            elif self._types.get(key) != "=":
                for root in self._decayed(node, scope):
                    self._union(key, root)
                    self._make_local(key)
        if not re.search(r"\)\s*const\b", self._head(made)):
            for root in objects:
                if root not in self.shared:
                    self._union(root, target.this)
        if made.builds:
            return self.value(target.this)
        return target.result or UNIFORM

    def _head(self, made: Function) -> str:
        return self.tree.text[made.node.start_byte : made.body.start_byte]

    def _builtin(
        self,
        name: str,
        callee: "Node",
        given: Sequence["Node"],
        values: Sequence[Value],
        scope: Scope,
        function: Function,
        control: Value,
    ) -> Value:
        if name in known.BARRIERS:
            return UNIFORM
        whole = bool(given) and self.tree.of(given[0]) in (
            "~0u", "~0", "0xffffffff", "0xFFFFFFFF", "0xffffffffu", "0xFFFFFFFFu", "-1", "0xffffffffU",
            "0xFFFFFFFFU", "FULL_MASK", "unsigned(-1)",
        )  # fmt: skip
        if name == "__shfl_sync" and len(values) == 3 and whole:
            if values[1].level == BLOCK:
                return mixed(values[1])
            return ANY_WARP if values[2].level <= WARP else ANY_LANE
        if known.ONE_A_WARP.fullmatch(name):
            return ANY_WARP if whole else ANY_LANE
        if re.fullmatch(r"__shfl_(?:xor|up|down)_sync", name) and len(values) > 1:
            return mixed(values[1]) if values[1].level == BLOCK else ANY_LANE
        if known.LOADS.fullmatch(name) and values:
            value = mixed(*values)
            return self._read(value, given[0], scope)
        if known.is_pure(name) or callee.type == "primitive_type":
            if len(values) == 1 and known.TYPES.fullmatch(name):
                return values[0]
            return mixed(*values)
        for node in given:  # an unknown function may write through what it is given
            for root in self._roots(node, scope):
                if root not in self.shared and (
                    root in self.arrays or self._is_local(root) or "&" in self.tree.of(node)
                ):
                    self._join(root, ANY_LANE)
        if callee.type == "field_expression":
            for root in self._roots(callee.child_by_field_name("argument"), scope):
                if root not in self.shared:
                    self._join(root, mixed(*values, under(UNIFORM, control)))
        return ANY_LANE


def _differ(given: str, wanted: str) -> bool:
    """Whether an argument of one type is none of another: pointer, class, plain number."""
    return bool(given and wanted and given != wanted and "auto" not in (given, wanted))


def _ancestors(node: "Node", top: "Node") -> Iterator["Node"]:
    here = node.parent
    while here is not None:
        yield here
        if here == top:
            return
        here = here.parent
