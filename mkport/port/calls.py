"""Calls, as the analysis of uniformity follows them: the file's functions, lambdas, and CUDA's own.

An instance of a function is analysed for each way it is called; what is unknown may do anything to
what it is given.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.facts import Facts
from mkport.port.functions import Function, Key, Scope
from mkport.port.levels import ANY_LANE, ANY_WARP, BLOCK, UNIFORM, WARP, Value, mixed, under
from mkport.port.syntax import walk

if TYPE_CHECKING:
    from tree_sitter import Node


class Calls(Facts, ABC):
    """The layer of calls; the one above it evaluates expressions."""

    @abstractmethod
    def _expression(
        self, node: "Node | None", scope: Scope, function: Function, control: Value
    ) -> Value: ...

    @abstractmethod
    def _read(self, value: Value, base: "Node | None", scope: Scope) -> Value: ...

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

    def _candidates(
        self, node: "Node", given: Sequence["Node"], scope: Scope, caller: Function
    ) -> list[Function]:
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
        if function.type == "field_expression":
            kind = self._class_of(function.child_by_field_name("argument"), scope)
            found = [f for f in found if kind and f.owner == kind] or found
        else:
            found = self._in_sight(function, found, caller)
        fitting = [f for f in found if f.least <= len(given) <= len(f.params)] or found
        if len(fitting) > 1:
            kinds = [self._kind(c, scope) for c in given]
            fitting = [
                f for f in fitting
                if not any(_differ(a, b) for a, (_, _, b) in zip(kinds, f.params, strict=False))
            ] or fitting  # fmt: skip
        return fitting

    def _in_sight(self, callee: "Node", found: list[Function], caller: Function) -> list[Function]:
        """Which functions of a name a call without an object can mean: methods only from within
        their class, or with its name in front."""
        text = self.tree.of(callee).split("(")[0]
        if "::" in text:
            kind = self._class_named(re.split(r"::\s*\w+\s*(?:<[^:]*>)?\s*$", text)[0])
            if kind in self.types and not self._derived(kind):
                return [f for f in found if f.owner == kind] or found
            if any(kind in item.namespace for item in self.unit.items):
                return [f for f in found if not f.owner or f.builds]
            return found
        if caller.name == "lambda" or self._derived(caller.owner):
            return found
        own = [f for f in found if caller.owner and f.owner == caller.owner]
        return own or [f for f in found if not f.owner or f.builds]

    def _class_of(self, node: "Node | None", scope: Scope) -> str:
        """The class of the file that an object is of; "" where that was not followed."""
        if node is None:
            return ""
        if node.type == "parenthesized_expression" and len(node.named_children) == 1:
            return self._class_of(node.named_children[0], scope)
        kind = ""
        if node.type == "identifier":
            kind = self._kind(node, scope)
        elif node.type == "call_expression":
            function = node.child_by_field_name("function")
            if function is None or function.type in ("field_expression", "lambda_expression"):
                return ""
            kind = self._class_named(self.tree.of(function))
            if kind not in self.types:
                made = {
                    self._class_named(self.tree.of(kind_node))
                    for f in self.by_name.get(self.callee_name(function), [])
                    if (kind_node := f.node.child_by_field_name("type")) is not None
                }
                kind = made.pop() if len(made) == 1 else ""
        return kind if kind in self.types and not self._derived(kind) else ""

    def _derived(self, kind: str) -> bool:
        """True for a class with bases: its methods may be theirs."""
        return kind in self._with_bases

    def _kind(self, node: "Node", scope: Scope) -> str:
        if node.type == "call_expression":
            return self._class_of(node, scope)
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
        targets = self._candidates(node, given, scope, function)
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
        static = bool(re.search(r"\bstatic\b", self._head(made)))  # it has no object
        if static:
            pass
        elif made.owner and callee.type == "field_expression":
            argument = callee.child_by_field_name("argument")
            owner = mixed(self._expression(argument, scope, function, control))
            objects = self._roots(argument, scope)
        elif made.owner and not made.builds and scope.object is not None:
            owner, objects = self.value(scope.object), [scope.object]
        least = Value(control.level, (0, 0, 0) if control.level == BLOCK else None)
        target = self._instance(made, values, owner, least, self._numbers(made, callee, scope))
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

    def _numbers(self, made: Function, callee: "Node", scope: Scope) -> tuple[tuple[str, int], ...]:
        """The numbers that a call names as template arguments, by the template's parameter."""
        given = next((c for c in walk(callee) if c.type == "template_argument_list"), None)
        if given is None or given.end_byte != callee.end_byte:
            return ()
        found = []
        names = self.template_names(made)
        for name, node in zip(names, given.named_children, strict=False):
            text = self.tree.of(node)
            key = scope.find(text)
            number = self.value(key).const if key is not None else self.constants.value(text)
            if name and number is not None:
                found.append((name, number))
        return tuple(found)

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
            "~0u", "~0", "-1", "FULL_MASK", "unsigned(-1)", "0xffffffff", "0xFFFFFFFF",
            "0xffffffffu", "0xFFFFFFFFu", "0xffffffffU", "0xFFFFFFFFU",
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
        for node in given:  # an unknown function may write what it is given
            touched = set(self._decayed(node, scope))
            if node.type == "identifier" and not known.ATOMICS.fullmatch(name):
                touched |= set(self._roots(node, scope)) - self.shared
            for root in touched:
                self._join(root, ANY_LANE)
        if callee.type == "field_expression":
            for root in self._roots(callee.child_by_field_name("argument"), scope):
                if root not in self.shared:
                    self._join(root, mixed(*values, under(UNIFORM, control)))
        return ANY_LANE


def _differ(given: str, wanted: str) -> bool:
    """Whether an argument of one type is none of another: pointer, class, plain number."""
    return bool(given and wanted and given != wanted and "auto" not in (given, wanted))
