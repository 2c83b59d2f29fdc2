"""What blocks tell each other through memory: loops that wait for others, and atomics."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.facts import LOOPS
from mkport.port.finding import Finding
from mkport.port.syntax import find
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node


def waiting(unit: Unit, item: Item) -> Iterator[Finding]:
    """Loops that poll memory: their block waits for another one."""
    for loop in find(item.outer, *LOOPS):
        condition = loop.child_by_field_name("condition")
        body = loop.child_by_field_name("body")
        if condition is None:
            continue
        text = unit.tree.of(condition)
        polls = re.search(
            r"\batomic\w*\s*\(|\bvolatile\b|__ldcv|__ldcg|ld_acquire\w*|\bload_acquire\w*|"
            r"\bld_volatile\w*|\.load\s*\(", text
        )  # fmt: skip
        inside = unit.tree.of(body) if body is not None else ""
        idle = not re.search(r"[^\s;{}]", re.sub(r"__nanosleep\s*\([^)]*\)|__threadfence\w*\(\)|"
                                                 r"__syncwarp\(\)", "", inside))  # fmt: skip
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        watched = names & _volatiles(unit, item)
        reads = re.search(r"\[|\*\s*[A-Za-z_(]", text)
        spins = idle and reads and not re.search(r"\+\+|--|[-+*/]=|[^=!<>]=[^=]", text)
        exits = re.search(
            r"\bif\s*\([^;{}]*(?:\batomic\w*\s*\(|\bvolatile\b|__ldcv)[^;]*\)\s*\{?\s*break", inside
        )  # fmt: skip
        if polls or watched or spins or exits:
            head = " ".join(text.split())
            yield Finding(
                "MK151", unit.tree.line(loop), unit.tree.column(loop),
                f"The loop `{head[:60]}` waits until other threads have changed memory.",
                "The block it waits for may be a task that has not begun on the same worker: the "
                "megakernel hangs.",
                "Split the kernel into two ops where one block waits for another; the wait becomes "
                "their dependency.",
            )  # fmt: skip


def _volatiles(unit: Unit, item: Item) -> set[str]:
    """Names declared volatile that are not shared memory."""
    found = set()
    for node in find(item.outer, "declaration", "parameter_declaration"):
        text = unit.tree.of(node)
        head = text.split("=")[0]
        if re.search(r"\bvolatile\b", head) and "__shared__" not in head:
            words = re.findall(r"[A-Za-z_]\w*", head)
            found.add(words[-1])
    return found


def _discarded(unit: Unit, items: Sequence[Item], item: Item, call: "Node") -> bool:
    """True where what a call returns is not used: not here, or by nobody who calls the function
    that returns it."""
    node, parent = call, call.parent
    while parent is not None and parent.type in _PASSED_ON:
        if parent.type == "conditional_expression":
            if parent.child_by_field_name("condition") == node:
                return False
        node, parent = parent, parent.parent
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            if function is None or not known.is_pure(unit.tree.of(function)):
                return False
    if parent is None or parent.type == "expression_statement":
        return True
    if item.kernel or item.kind != "function":
        return False
    if parent.type != "return_statement" and not _returned_alone(unit, item, node, parent):
        return False
    return all(
        other.parent is not None and other.parent.type == "expression_statement"
        for caller in items for other in find(caller.outer, "call_expression")
        if _calls(unit, other, item)
    )  # fmt: skip


def _returned_alone(unit: Unit, item: Item, value: "Node", parent: "Node") -> bool:
    """Whether a value goes to a variable of a function's own that is returned and not used
    otherwise."""
    if parent.type == "init_declarator" and parent.child_by_field_name("value") == value:
        target = parent.child_by_field_name("declarator")
    elif parent.type == "assignment_expression" and parent.child_by_field_name("right") == value:
        outer, operator = parent.parent, parent.child_by_field_name("operator")
        if outer is None or outer.type != "expression_statement" or operator is None:
            return False
        target = parent.child_by_field_name("left") if unit.tree.of(operator) == "=" else None
    else:
        return False
    if target is None or target.type != "identifier":
        return False
    name, declared = unit.tree.of(target), False
    for node in find(item.outer, "identifier"):
        around = node.parent
        if unit.tree.of(node) != name or around is None:
            continue
        if around.child_by_field_name("declarator") == node:
            if around.type not in ("declaration", "init_declarator"):
                return False  # a parameter, a reference or a pointer
            declared = True
        elif around.type == "assignment_expression":
            if around.child_by_field_name("left") != node:
                return False
        elif around.type != "return_statement":
            return False
    return declared


_PASSED_ON = (
    "parenthesized_expression", "conditional_expression", "cast_expression", "argument_list",
    "call_expression",
)  # fmt: skip


def _calls(unit: Unit, call: "Node", item: Item) -> bool:
    function = call.child_by_field_name("function")
    text = unit.tree.of(function) if function is not None else ""
    words = re.findall(r"\w+", re.split(r"[<(]", text)[0])
    return bool(words) and words[-1] in item.names


def atomics(unit: Unit, items: Sequence[Item], item: Item) -> Iterator[Finding]:
    """Atomics on memory of all blocks: locks, tickets, and sums."""
    shared = set(re.findall(r"__shared__[^;]*?\b(\w+)\s*(?:\[|;)", unit.text_of(item)))
    for call in find(item.outer, "call_expression"):
        function = call.child_by_field_name("function")
        name = unit.tree.of(function) if function is not None else ""
        if not known.ATOMICS.fullmatch(name):
            continue
        arguments = call.child_by_field_name("arguments")
        target = unit.tree.of(arguments.named_children[0]) if (
            arguments is not None and arguments.named_children) else ""  # fmt: skip
        root = next(iter(re.findall(r"[A-Za-z_]\w*", target)), "")
        if root in shared:
            continue
        used = not _discarded(unit, items, item, call)
        line, column = unit.tree.line(call), unit.tree.column(call)
        if used and name != "atomicCAS":
            yield Finding(
                "MK152", line, column,
                f"`{name}({' '.join(target.split())}, ...)` is used for what it returns.",
                "That is the order in which blocks come, and in a megakernel they come in another: "
                "tickets, compactions and last-block sums change.",
                "Compute the place from blockIdx, or do what the last block does in an op of its "
                "own.",
            )  # fmt: skip
            continue
        if used:
            yield Finding(
                "MK151", line, column,
                f"`{name}({' '.join(target.split())}, ...)` is a lock or a retry on global memory.",
                "A block that waits for another may wait for a task that has not begun.",
                "Use atomicAdd, atomicMax or a reduction in an op of its own.",
            )  # fmt: skip
            continue
        ordered = re.match(r"atomic(?:Add|Sub|Exch|Inc|Dec)", name)
        yield Finding(
            "MK301", line, column,
            f"`{name}({' '.join(target.split())}, ...)` adds up in the order in which blocks come."
            if ordered else
            f"`{name}({' '.join(target.split())}, ...)` joins what blocks find, in any order.",
            "With floats the last bits differ from run to run, as in the original; the target must "
            "hold its start value before each step." if ordered else
            "The result is the same in every order, but the target must hold its start value "
            "before each step.",
            "Write partial results and join them in a fixed order to have the same bits always."
            if ordered else "Have an op that runs before it set the target.",
            "warning",
        )  # fmt: skip
