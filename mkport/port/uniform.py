"""Which values are the same for all threads of a block: an analysis of a kernel and its helpers.

It follows assignments, references, pointers to locals and control flow through all functions that
the kernel reaches, again and again until nothing changes. What it does not know it takes to differ
from thread to thread. It reads text whose macros are expanded; judgements are in `control.py`. This
is the layer of statements, on those of `expressions.py`, `calls.py` and `facts.py`.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mkport.port.expressions import Expressions
from mkport.port.facts import LOOPS
from mkport.port.finding import Finding, RefusedPort
from mkport.port.functions import Function, Scope
from mkport.port.kernel import Kernel
from mkport.port.levels import ANY_LANE, BLOCK, UNIFORM, Value, join, mixed, number, under
from mkport.port.syntax import declarators, declared, find, walk
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

_ROUNDS = 60


class Uniformity(Expressions):
    """The analysis of one kernel; `whole`: as if every call in it were made by a whole block.

    Raises RefusedPort where it does not come to an end.
    """

    def __init__(
        self,
        unit: Unit,
        kernel: Kernel,
        items: Sequence[Item],
        block: tuple[int, int, int],
        whole: bool = False,
    ) -> None:
        super().__init__(unit, kernel, items, block, whole)
        kernels = [f for f in self.by_name.get(kernel.name, []) if f.node == kernel.item.node]
        count = len(kernels[0].params)
        self.kernel = self._instance(kernels[0], [UNIFORM] * count, UNIFORM, UNIFORM)
        for function in self._operators:
            self._instance(function, [ANY_LANE] * len(function.params), ANY_LANE, ANY_LANE)
        for _ in range(_ROUNDS):
            self._changed = False
            for instance in list(self.functions):
                self._run(instance)
            if not self._changed:
                break
        else:
            raise RefusedPort(
                Finding(
                    "MK134", kernel.line, 1,
                    f"What {kernel.name} does was not understood: the analysis comes to no end.",
                    "Whether its threads stay in step is not known.",
                    "Split it into smaller functions, or write its loops more plainly.",
                )
            )  # fmt: skip

    def _run(self, function: Function) -> None:
        this = function.this if function.owner else None
        scope = Scope(outer=function.scope, this=this, owner=function.owner)
        for key, _, _ in function.params:
            if key[0]:
                scope.names[key[0]] = key
        for name, const in function.bound:
            key = (name, function.node.start_byte, function.number)
            scope.names[name] = key
            self._values[key] = number(const)
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
                      "static_assert_declaration", "struct_specifier",
                      "class_specifier"):  # fmt: skip
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

    def _condition(
        self, node: "Node | None", scope: Scope, function: Function, control: Value
    ) -> Value:
        if node is None:
            return UNIFORM
        value = UNIFORM
        for child in node.named_children:
            if child.type in ("declaration", "init_statement"):
                self._statement(child, scope, function, control)
                for declarator in [*find(child, "init_declarator"), *declarators(child)]:
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

    def _declaration(self, node: "Node", scope: Scope, function: Function, control: Value) -> None:
        head = self.tree.text[node.start_byte : node.end_byte].split("=")[0]
        is_shared = bool(re.search(r"\b__shared__\b", head))
        type_node = node.child_by_field_name("type")
        for declarator in declarators(node):
            self._declare(declarator, type_node, is_shared, scope, function, control)
        value = node.child_by_field_name("value")  # of a condition: `while (int i = f())`
        if value is not None:
            level = under(self._expression(value, scope, function, control), control)
            for declarator in declarators(node):
                name = declared(declarator)
                if name is not None:
                    self._join(scope.names[self.tree.of(name)], level)

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
            self._types[key] = self._type_of(type_node, "")
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
        kind = self._type_of(type_node, self.tree.of(declarator).split("=")[0])
        if kind == "auto":
            kind = self._class_of(value_node, scope) or kind
        self._types[key] = kind
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
        elif value_node is not None and kind != "=":  # an object may hold a pointer
            for root in self._decayed(value_node, scope):
                self._union(key, root)
                self._make_local(key)
        if value is not None:
            self._join(key, under(value, control))
        named = self._class_named(self.tree.of(type_node)) if type_node is not None else ""
        if kind in self._placed or named in self._placed:
            self._join(key, ANY_LANE)
        builders = [f for f in self.by_name.get(kind, []) if f.builds]
        for made in builders:  # what its constructors know of threads, the object knows
            values = [value or UNIFORM] * len(made.params)
            self._union(key, self._instance(made, values, UNIFORM, control).this)
