"""What the analysis of uniformity knows: functions by instance, variables, and who shares memory.

Nothing here evaluates anything: expressions, calls and statements are in modules of their own, each
a layer on this one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mkport.port.constants import Constants
from mkport.port.functions import Declared, Function, Key, Scope, Signature
from mkport.port.kernel import Kernel
from mkport.port.levels import UNIFORM, Block, Value, join
from mkport.port.syntax import find
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")


class Facts(Declared):
    """The state of the analysis of one kernel."""

    def __init__(
        self,
        unit: Unit,
        kernel: Kernel,
        items: Sequence[Item],
        block: tuple[int, int, int],
        whole: bool = False,
    ) -> None:
        super().__init__(unit, items)
        self.whole = whole  # as if every call were made by a whole block
        self.block = Block(*block)
        self.constants = Constants(unit, kernel.bindings)
        self.functions: list[Function] = []  # the instances that are called
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

    # Functions as they are called.

    def _instance(
        self,
        made: Function,
        values: Sequence[Value],
        owner: Value,
        control: Value,
        bound: tuple[tuple[str, int], ...] = (),
    ) -> Function:
        """The function as it is called with arguments of these levels; its parameters join them."""
        control = UNIFORM if self.whole else control
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


def _ancestors(node: "Node", top: "Node") -> Iterator["Node"]:
    here = node.parent
    while here is not None:
        yield here
        if here == top:
            return
        here = here.parent
