"""Expressions, as the analysis of uniformity values them, and what they assign to."""

import re
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.calls import Calls
from mkport.port.functions import Function, Key, Scope
from mkport.port.levels import (
    ANY_LANE,
    BLOCK,
    UNIFORM,
    Value,
    join,
    mixed,
    number,
    under,
)
from mkport.port.syntax import find

if TYPE_CHECKING:
    from tree_sitter import Node

_INDICES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_CONSTANT = (
    "string_literal", "null", "nullptr", "comment", "type_descriptor", "concatenated_string",
    "primitive_type", "raw_string_literal", "type_identifier", "user_defined_literal",
    "alignof_expression",
)  # fmt: skip


class Expressions(Calls):
    """The layer of expressions."""

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
                    "argument_list", "initializer_list", "expression_statement",
                    "subscript_argument_list", "compound_literal_expression",
                    "initializer_pair"):  # fmt: skip
            values = [self._expression(c, scope, function, control) for c in node.named_children
                      if c.type != "comment"]  # fmt: skip
            made = node.child_by_field_name("type")
            if made is not None and self._class_named(self.tree.of(made)) in self._placed:
                return ANY_LANE
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
        own = (scope.class_name, name) in self.unit.constants[2]
        constant = self.constants.value(name, inside=own)
        if constant is not None:
            return number(constant)
        if own:
            return UNIFORM  # for the arguments that the class is made with, whichever
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
        elif left is not None and right is not None:  # a pointer into an object
            for key in self._roots(left, scope):
                for root in self._decayed(right, scope) if key not in self.shared else ():
                    self._union(key, root)
                    self._make_local(key)
        if operator == "=" and left is not None and left.type != "identifier":
            self._expression(left, scope, function, control)  # for the calls in it
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
        if left.type == "call_expression" and not self._is_cast(left):
            self._spoil(scope, mixed(value))  # a reference to anything that is in sight
            return
        through = self._leads_away(left) or "->" in self.tree.of(left)
        index = mixed(
            *(self._expression(n, scope, function, control)
              for n in find(left, "subscript_argument_list"))
        )  # fmt: skip
        roots = self._roots(left, scope)
        if not roots and scope.object is not None and not through:
            self._join(scope.object, mixed(value, index))
        taken = set(self._decayed(left, scope))
        if through and any(self._may_lead(root) for root in roots):
            for root in self.exposed:
                self._join(root, mixed(value, index))
        for root in roots:
            if root in self.shared or (through and not self._is_local(root) and root not in taken):
                continue
            self._join(root, mixed(value, index))

    def _is_cast(self, call: "Node") -> bool:
        function = call.child_by_field_name("function")
        return function is not None and self.callee_name(function) in known.CASTS

    def _may_lead(self, root: Key) -> bool:
        """Whether what a variable holds may lead to a local whose address was taken: an object of
        a class, or of a type that was not followed. Pointers are followed by themselves."""
        return self._types.get(root, "") not in ("*", "=") and root not in self.arrays

    def _spoil(self, scope: Scope, value: Value) -> None:
        here: Scope | None = scope
        while here is not None:
            for key in here.names.values():
                if key not in self.shared:
                    self._join(key, value)
            here = here.outer
