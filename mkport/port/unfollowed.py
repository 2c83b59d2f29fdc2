"""Barriers that the analysis of control flow has not come by: in functions that something calls
without a call's name, or by a call that was not followed. None of them may be passed.

It goes by names alone, through all that the kernel reaches, so that it sees more than `control.py`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.finding import Finding
from mkport.port.syntax import declared, find, walk
from mkport.port.uniform import Uniformity
from mkport.port.unit import Item

if TYPE_CHECKING:
    from tree_sitter import Node

_BODIES = ("function_definition", "lambda_expression")
_NAMES = ("identifier", "field_identifier", "template_function", "template_method")
_UNEVALUATED = ("sizeof_expression", "decltype", "alignof_expression")
_SLIP = (
    "In a megakernel the threads that skip it do not leave: they go on to the next task's barriers "
    "and slip out of step, silently."
)


class Unfollowed:
    """What has barriers in it, by name, and who names it."""

    def __init__(self, uniformity: Uniformity, items: Sequence[Item]) -> None:
        self.u, self.tree = uniformity, uniformity.tree
        outer = {(item.outer.start_byte, item.outer.end_byte): item.outer for item in items}
        self.outer = list(outer.values())
        self.bodies = [node for top in self.outer for node in find(top, *_BODIES)]
        self.followed = {f.node.start_byte for f in uniformity.functions}
        self.called = {start for starts in uniformity.targets.values() for start in starts}
        self.types = self.u.types | {
            self.tree.of(name) for top in self.outer
            for node in find(top, "alias_declaration", "type_definition")
            for name in [*node.children_by_field_name("declarator"),
                         *node.children_by_field_name("name")]
        }  # fmt: skip
        self.meeting = self._meeting()
        self.names = {name for node in self.meeting if (name := self._name(node))}

    def findings(self) -> Iterator[Finding]:
        """One for each barrier's body, and each call of one, that was passed by."""
        for node in self.meeting:
            if node.type == "lambda_expression":
                if node.start_byte not in self.called:
                    yield self._finding(node, "A lambda with a barrier in it")
            elif self._implicit(node):
                yield self._finding(node, f"{self._name(node)} has a barrier in it, and")
        for top in self.outer:
            for call in find(top, "call_expression"):
                callee = call.child_by_field_name("function")
                name = "" if callee is None else self.u.callee_name(callee)
                if name not in self.names or name in self.types:
                    continue  # a class's constructors are told of as such
                here = (call.start_byte, call.end_byte)
                if here in self.u.targets or self._idle(call):
                    continue
                yield self._finding(call, f"`{self._short(call)}` leads to a barrier, and")
            for node in find(top, "identifier"):
                if self._handed_on(node):
                    yield self._finding(node, f"{self.tree.of(node)} has a barrier in it, and")

    def _meeting(self) -> "list[Node]":
        """Functions and lambdas with a barrier, and those that name one of them."""
        found: dict[int, Node] = {}
        names: set[str] = set()
        while True:
            more = {
                node.start_byte: node for node in self.bodies
                if node.start_byte not in found and self._meets(node, names)
            }  # fmt: skip
            if not more:
                return list(found.values())
            found |= more
            names |= {name for node in more.values() if (name := self._name(node))}

    def _meets(self, body: "Node", names: set[str]) -> bool:
        inner = body.child_by_field_name("body")
        parts = [c for c in body.children if c.type == "field_initializer_list"]
        for part in [*parts, *([inner] if inner is not None else [])]:
            for node in walk(part, _BODIES):
                if node.type == "call_expression":
                    callee = node.child_by_field_name("function")
                    name = "" if callee is None else self.u.callee_name(callee)
                    if name in known.BARRIERS or name in names:
                        return True
        return False

    def _name(self, body: "Node") -> str:
        """The function's own name, or that of the variable that holds a lambda."""
        named: Node | None = declared(body)
        if body.type == "lambda_expression":
            holder = body.parent
            held = holder is not None and holder.type == "init_declarator"
            named = declared(holder) if holder is not None and held else None
        return "" if named is None else known.plain_name(self.tree.of(named))

    def _implicit(self, body: "Node") -> bool:
        """Whether a member function is called without its name: made, ended, converted to."""
        here = body.parent
        while here is not None and here.type not in ("struct_specifier", "class_specifier"):
            here = here.parent
        head = self.tree.of(body).split("{")[0]
        if "operator" in head or "~" in head:
            return True
        named = here.child_by_field_name("name") if here is not None else None
        owner = "" if named is None else self.tree.of(named).split("<")[0]
        return bool(owner) and owner == self._name(body)

    def _idle(self, call: "Node") -> bool:
        """Whether a call stands where it never runs, or in a function that nothing calls."""
        here = call.parent
        while here is not None and here.type not in _BODIES:
            if here.type in _UNEVALUATED:
                return True
            if here.type in ("field_declaration", "optional_parameter_declaration"):
                return False  # runs wherever an object is made, or the argument is left out
            here = here.parent
        if here is None:
            return False
        if here.type == "lambda_expression":
            return here.start_byte not in self.called  # told of as a lambda
        return here.start_byte not in self.followed and not self._implicit(here)

    def _handed_on(self, node: "Node") -> bool:
        """Whether a lambda's variable is used for anything but calling it."""
        name = self.tree.of(node)
        lambdas = (body for body in self.meeting if body.type == "lambda_expression")
        holders = [body for body in lambdas if self._name(body) == name]
        if not holders or node.parent is None:
            return False
        around = holders[0].parent
        while around is not None and around.type not in _BODIES:
            around = around.parent
        if around is None or not around.start_byte <= node.start_byte < around.end_byte:
            return False
        parent = node.parent
        if parent.type == "init_declarator" and parent.child_by_field_name("declarator") == node:
            return False
        if parent.type == "call_expression":
            return parent.child_by_field_name("function") != node
        here: Node | None = parent
        while here is not None and here.type not in ("compound_statement", *_BODIES):
            if here.type in _UNEVALUATED:
                return False
            here = here.parent
        return True

    def _finding(self, node: "Node", what: str) -> Finding:
        joined = f"{what[:-5]}: who" if what.endswith(", and") else f"{what}: who"
        return Finding(
            "MK134", self.tree.line(node), self.tree.column(node),
            f"{joined} comes to it, and when, was not followed.",
            _SLIP,
            "Call it by its name, in a statement, under conditions that are the same for all "
            "threads.",
        )  # fmt: skip

    def _short(self, node: "Node") -> str:
        text = " ".join(self.tree.of(node).split())
        return text if len(text) <= 40 else text[:37] + "..."
