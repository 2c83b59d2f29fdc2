"""Whether all threads of a block meet the same barriers: returns, loops and conditions around them.

The levels come from `uniform.py`. What cannot be decided is refused, never passed.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.facts import LOOPS
from mkport.port.finding import Finding
from mkport.port.functions import Function
from mkport.port.levels import BLOCK, WARP, Value
from mkport.port.syntax import find, walk
from mkport.port.uniform import Uniformity

if TYPE_CHECKING:
    from tree_sitter import Node

_FUNCTIONS = ("lambda_expression", "function_definition")
_NAMES = ("template_function", "qualified_identifier")  # a function's name with more around it
_SLIP = (
    "In a megakernel the threads that skip it do not leave: they go on to the next task's barriers "
    "and slip out of step, silently."
)


class Control:
    """Barriers and warp operations of a kernel, and what stands in their way."""

    def __init__(self, uniformity: Uniformity) -> None:
        self.u = uniformity
        self.tree = uniformity.tree
        nodes = {f.node.start_byte: f for f in uniformity.functions}
        self.functions = list(nodes.values())  # one instance of each
        self._at = nodes
        self.meeting = self._reaching(self._is_barrier)
        self.warping = self._reaching(self._is_warp_op)

    # What a node is.

    def _call_name(self, node: "Node") -> str:
        function = node.child_by_field_name("function")
        return "" if function is None else self.u.callee_name(function)

    def _is_barrier(self, node: "Node") -> bool:
        return node.type == "call_expression" and self._call_name(node) in known.BARRIERS

    def _is_warp_op(self, node: "Node") -> bool:
        if node.type == "call_expression":
            return bool(known.WARP_OPS.fullmatch(self._call_name(node)))
        return node.type == "gnu_asm_expression" and bool(known.WARP_ASM.search(self.tree.of(node)))

    def _own(self, function: Function) -> Iterator["Node"]:
        """The nodes of a function's body, without those of the lambdas in it."""
        return walk(function.body, ("lambda_expression",))

    def _targets(self, node: "Node") -> list[Function]:
        starts = self.u.targets.get((node.start_byte, node.end_byte), ())
        return [self._at[start] for start in starts if start in self._at]

    def _reaching(self, test) -> set[Function]:  # type: ignore[no-untyped-def]
        """The functions that do something, or call one that does."""
        found = {f for f in self.functions if any(test(node) for node in self._own(f))}
        while True:
            more = {
                f for f in self.functions if f not in found
                and any(found & set(self._targets(node)) for node in self._own(f))
            }  # fmt: skip
            if not more:
                return found
            found |= more

    def sites(self, function: Function, warps: bool = False) -> "list[Node]":
        """Where a function meets: its barriers, and calls of functions that meet."""
        test = self._is_warp_op if warps else self._is_barrier
        reaching = self.warping if warps else self.meeting
        return [
            node for node in self._own(function)
            if test(node) or reaching & set(self._targets(node))
        ]  # fmt: skip

    @property
    def meets(self) -> bool:
        """True when the kernel has a barrier of the block."""
        return bool(self.meeting)

    @property
    def warps(self) -> bool:
        """True when lanes of a warp work together."""
        return bool(self.warping)

    # Judgements.

    def findings(self) -> list[Finding]:
        """Everything that lets threads slip out of step, and what could not be decided."""
        found: list[Finding] = []
        for function in self.functions:
            sites = self.sites(function)
            if sites:
                found += self._around(function, sites)
                found += self._exits(function, sites)
        found += self._passed_on()
        found += self._taken()
        found += self._recursion()
        for function in self.functions:
            found += self._lane_returns(function, self.sites(function, warps=True))
        unique = {(f.code, f.line, f.column): f for f in found}
        return sorted(unique.values(), key=lambda f: (f.line, f.column))

    def _ancestors(self, node: "Node", function: Function) -> "Iterator[tuple[Node, Node]]":
        """Each ancestor within a function, with its child on the way down."""
        child, here = node, node.parent
        while here is not None and child != function.body:
            yield here, child
            child, here = here, here.parent

    def _decider(self, here: "Node", child: "Node") -> Value | None:
        """What decides whether the part `child` of a node runs; None where it always does."""
        kind = here.type
        if kind == "if_statement":
            parts = ("consequence", "alternative")
            return self.u.decides(here) if any(
                here.child_by_field_name(name) == child for name in parts
            ) else None  # fmt: skip
        if kind in LOOPS:
            if here.child_by_field_name("initializer") == child:
                return None
            return self.u.decides(here)
        if kind == "switch_statement":
            return self.u.decides(here) if here.child_by_field_name("body") == child else None
        if kind == "conditional_expression":
            first = here.child_by_field_name("condition") == child
            return None if first else self.u.decides(here)
        if kind == "binary_expression" and here.child_by_field_name("right") == child:
            operator = here.child_by_field_name("operator")
            if operator is not None and self.tree.of(operator) in ("&&", "||", "and", "or"):
                return self.u.decides(here)
        return None

    def level_at(self, node: "Node", function: Function) -> int:
        """Up to which level threads may differ in coming to a node of a function."""
        deciders = (self._decider(here, child) for here, child in self._ancestors(node, function))
        return max((d.level for d in deciders if d is not None), default=BLOCK)

    def _around(self, function: Function, sites: "Iterable[Node]") -> Iterator[Finding]:
        for site in sites:
            for here, child in self._ancestors(site, function):
                value = self._decider(here, child)
                if value is None or value.level == BLOCK:
                    continue
                loop = here.type in LOOPS
                what = self._head(here)
                unequal = ", so that threads may go round it unequally often"
                yield Finding(
                    "MK131" if loop else "MK132", self.tree.line(here), self.tree.column(here),
                    f"`{what}` around {self._site(site)} is not seen to be the same for all "
                    f"threads of a block{unequal if loop else ''}.",
                    _SLIP,
                    "Let all threads go round equally often, and put the condition around the work "
                    "alone." if loop else "Move the barrier out of the condition.",
                )  # fmt: skip
                break

    def _exits(self, function: Function, sites: "list[Node]") -> Iterator[Finding]:
        for node in self._own(function):
            if node.type == "goto_statement":
                yield Finding(
                    "MK134", self.tree.line(node), self.tree.column(node),
                    f"`{self.tree.of(node)}` stands in a function with barriers; where it leads "
                    "was not followed.",
                    _SLIP,
                    "Write it as a loop or a condition.",
                )  # fmt: skip
            if node.type not in ("return_statement", "break_statement", "continue_statement"):
                continue
            if self.level_at(node, function) == BLOCK:
                continue
            if node.type == "return_statement":
                if site := self._after(node, function, sites):
                    yield Finding(
                        "MK130", self.tree.line(node), self.tree.column(node),
                        f"Threads that `return` here are not seen to be whole blocks, and "
                        f"{self._site(site)} comes after.",
                        _SLIP,
                        "Let every thread reach the barrier: guard the loads and stores with the "
                        "condition instead of returning.",
                    )  # fmt: skip
                continue
            target = self.u.target(node)
            inside = [s for s in sites if target is not None and _within(s, target)]
            if inside:
                word = self.tree.of(node).rstrip("; ")
                yield Finding(
                    "MK131", self.tree.line(node), self.tree.column(node),
                    f"Threads that `{word}` here are not seen to be whole blocks, and "
                    f"{self._site(inside[0])} stands in the same loop.",
                    _SLIP,
                    "Let all threads go round equally often, and skip the work alone.",
                )  # fmt: skip

    def _after(self, node: "Node", function: Function, sites: "list[Node]") -> "Node | None":
        """A site that may run after a node: behind it, or in a loop around both."""
        for site in sites:
            if site.start_byte >= node.end_byte:
                return site
            for here, _ in self._ancestors(node, function):
                if here.type in LOOPS and _within(site, here):
                    return site
        return None

    def _lane_returns(self, function: Function, sites: "list[Node]") -> Iterator[Finding]:
        for node in self._own(function):
            if node.type != "return_statement" or self.level_at(node, function) <= WARP:
                continue
            if site := self._after(node, function, sites):
                yield Finding(
                    "MK133", self.tree.line(node), self.tree.column(node),
                    f"Lanes that `return` here are not seen to be whole warps, and "
                    f"{self._site(site)} comes after.",
                    "In the original the lanes are gone by then; in a megakernel they wait behind "
                    "the task, and the warp hangs or takes garbage from them.",
                    "Let every lane reach the warp operation, and guard the loads and stores with "
                    "the condition.",
                )  # fmt: skip

    def _passed_on(self) -> Iterator[Finding]:
        """Barriers in what is called through a parameter: nobody knows when."""
        called = {start for starts in self.u.targets.values() for start in starts}
        hidden = [
            f for f in self.meeting
            if f.name.startswith("operator")
            or (f.node.type == "lambda_expression" and f.node.start_byte not in called)
        ]  # fmt: skip
        for function in hidden:
            yield Finding(
                "MK134", self.tree.line(function.node), self.tree.column(function.node),
                "A function object with a barrier in it is passed on, and who calls it was not "
                "followed.",
                _SLIP,
                "Call it directly, or write the barrier where the object is called.",
            )  # fmt: skip

    def _taken(self) -> Iterator[Finding]:
        """Functions with barriers that are used as values: who calls them was not followed."""
        names = self._names_that_meet()
        for function in self.functions:
            mine = names - self._declared(function)
            for node in self._own(function):
                if node.type != "identifier" or self.tree.of(node) not in mine:
                    continue
                parent = node.parent
                owners = {f.owner for f in self.u.by_name.get(self.tree.of(node), [])}
                within = "" in owners or function.owner in owners or "lambda" == function.name
                if not within and (parent is None or parent.type not in _NAMES):
                    continue  # a method is not named like this outside of its class
                while parent is not None and parent.type in _NAMES:
                    node, parent = parent, parent.parent
                if parent is not None and parent.type == "call_expression":
                    if parent.child_by_field_name("function") == node:
                        continue
                yield Finding(
                    "MK134", self.tree.line(node), self.tree.column(node),
                    f"{self.tree.of(node)} meets other threads and is used as a value; who calls "
                    "it, and when, was not followed.",
                    _SLIP,
                    "Call it by its name, under conditions that are the same for all threads.",
                )  # fmt: skip

    def _declared(self, function: Function) -> set[str]:
        """The names of a function's own variables and parameters."""
        return {
            self.tree.of(node) for node in walk(function.node)
            if node.type == "identifier" and node.parent is not None
            and node.parent.child_by_field_name("declarator") == node
            and node.parent.type != "function_declarator"
        }  # fmt: skip

    def _names_that_meet(self) -> set[str]:
        """Functions of the file with a barrier or a warp operation, whether a call reaches them or
        not; and those that name one of them."""
        names: set[str] = set()
        while True:
            more = {
                name for name, functions in self.u.by_name.items() if name not in names
                and any(
                    self._is_barrier(node) or self._is_warp_op(node)
                    or (node.type == "identifier" and self.tree.of(node) in names)
                    for function in functions for node in self._own(function)
                )
            }  # fmt: skip
            if not more:
                return names
            names |= more

    def _recursion(self) -> Iterator[Finding]:
        for function in self.meeting:
            reach: set[Function] = set()
            queue = [function]
            while queue:
                for node in self._own(queue.pop()):
                    for target in set(self._targets(node)) - reach:
                        reach.add(target)
                        queue.append(target)
            if function in reach:
                yield Finding(
                    "MK134", self.tree.line(function.node), self.tree.column(function.node),
                    f"{function.name} has a barrier and calls itself; how often was not followed.",
                    _SLIP,
                    "Write it as a loop.",
                )  # fmt: skip

    def memory_conditions(self) -> list[Finding]:
        """Barriers and returns that depend on what is read from memory: taken to be uniform."""
        found: dict[int, Finding] = {}
        for function in self.functions:
            sites = self.sites(function)
            exits = [n for n in self._own(function) if n.type == "return_statement" and sites]
            for node in [*sites, *exits]:
                for here, child in self._ancestors(node, function):
                    value = self._decider(here, child)
                    if value is None or not value.memory or value.level != BLOCK:
                        continue
                    found[here.start_byte] = Finding(
                        "MK304", self.tree.line(here), self.tree.column(here),
                        f"`{self._head(here)}` decides about barriers and depends on memory.",
                        "All threads of a block must read the same there: another task that writes "
                        "it at the same time would split them.",
                        "Have no task write it while this one runs; declared reads see to that.",
                        "warning",
                    )  # fmt: skip
        return list(found.values())

    def _site(self, site: "Node") -> str:
        text = " ".join(self.tree.of(site).split())
        text = text if len(text) <= 40 else text[:37] + "..."
        return f"`{text}` in line {self.tree.line(site)}"

    def _head(self, node: "Node") -> str:
        text = " ".join(self.tree.of(node).split())
        if node.type in ("if_statement", *LOOPS, "switch_statement"):
            part = node.child_by_field_name("condition")
            if node.type == "for_statement":
                body = node.child_by_field_name("body")
                end = body.start_byte if body is not None else node.end_byte
                text = " ".join(self.tree.text[node.start_byte : end].split())
            elif part is not None:
                word = {"if_statement": "if", "switch_statement": "switch"}.get(node.type, "while")
                text = f"{word} {' '.join(self.tree.of(part).split())}"
        return text if len(text) <= 70 else text[:67] + "..."


def _within(node: "Node", outer: "Node") -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def has(node: "Node", *types: str) -> bool:
    """True when there is a node of some types at or below this one."""
    return next(find(node, *types), None) is not None
