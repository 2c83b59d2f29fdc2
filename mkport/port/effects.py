"""What a kernel does beside reading and writing its tensors: everything a task may not do.

Names and inline assembly are looked for in all that the kernel reaches, macros expanded. The words
of each refusal stand here.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from mkport.port.finding import Finding
from mkport.port.kernel import Kernel
from mkport.port.lexer import tokens
from mkport.port.syntax import find
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node


from mkport.port.polling import atomics, waiting
from mkport.port.rules import ASM_RULES, PARTS, RULES, Rule

CALLS = ("MK158", "MK159", "MK303", "MK306")  # rules for names that mean it only when called


def effects(
    unit: Unit, kernel: Kernel, items: Sequence[Item], unnamed: Sequence[tuple[int, int]] = ()
) -> list[Finding]:
    """Everything a kernel reaches that a task may not do, or must be warned of; nothing of the
    member functions that it does not name, by their places."""
    found: list[Finding] = []
    for item in items:
        found += _names(unit, item)
        found += library_names(unit, item)
        found += _assembly(unit, item)
        found += waiting(unit, item)
        found += atomics(unit, items, item)
        found += _launches(unit, item)
        found += _variables(unit, item)
    if barriers := list(_grid_barriers(unit, items)):
        found = [f for f in found if f.code not in ("MK150", "MK157")] + barriers
    lines = unit.text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    found = [
        f for f in found
        if not any(a <= starts[max(f.line, 1) - 1] + f.column - 1 < b for a, b in unnamed)
    ]  # fmt: skip
    unique = {(f.code, f.line): f for f in reversed(found)}
    return sorted(unique.values(), key=lambda f: (f.line, f.code))


def _names(unit: Unit, item: Item) -> Iterator[Finding]:
    text = unit.text_of(item)
    start = item.outer.start_byte
    given = [t for t in tokens(text) if not t.blank]
    for at, token in enumerate(given):
        if token.kind != "name":
            continue
        before = given[at - 1].text if at else ""
        after = given[at + 1].text if at + 1 < len(given) else ""
        for rule in RULES:
            if not re.fullmatch(rule.names, token.text):
                continue
            if before in (".", "->", "asm", "__asm__", "__asm"):
                continue
            if rule.code in CALLS and not _is_use(token.text, after):
                continue
            if rule.code == "MK105" and after != "::" and not token.text.startswith(
                ("curand", "__pipeline", "cudnn", "cublas", "memcpy_async")
            ):  # fmt: skip
                continue
            if rule.code in (
                "MK105",
                "MK150",
                "MK156",
                "MK157",
                "MK305",
            ) and token.text in _own_names(unit):
                continue
            yield _finding(unit, rule, start + token.start, token.text)


def library_names(unit: Unit, item: Item) -> Iterator[Finding]:
    """Names of a library that are not among the part of it that mkport has."""
    text = unit.text_of(item)
    given = [t for t in tokens(text) if not t.blank]
    aliases = dict(re.findall(r"\bnamespace\s+(\w+)\s*=\s*(?:::\s*)?(\w+)\s*;", unit.text))
    at = 0
    while at < len(given):
        first = given[at]
        space = aliases.get(first.text, first.text) if first.kind == "name" else ""
        at += 1
        if space not in PARTS or at >= len(given) or given[at].text != "::":
            continue
        path = [space]
        while at + 1 < len(given) and given[at].text == "::" and given[at + 1].kind == "name":
            path.append(given[at + 1].text)
            at += 2
        if _declared(unit, path):
            continue
        code, why, fix = PARTS[space]
        name = "::".join(path)
        if any(re.fullmatch(rule.names, word) and rule.code in ("MK150", "MK153")
               for rule in RULES for word in path[1:]):  # fmt: skip
            continue  # these have words of their own
        rule = Rule(code, "", why, fix, cause="`{text}` is not among what mkport has of a library.")
        yield _finding(unit, rule, item.outer.start_byte + first.start, name)


def _declared(unit: Unit, path: Sequence[str]) -> bool:
    """True where a namespace's name is one of the text's own; what stands in a class may be."""
    for item in unit.items:
        for depth in range(1, len(path)):
            if item.namespace == tuple(path[:depth]) and path[depth] in item.names:
                return True
    return False


def _is_use(name: str, after: str) -> bool:
    if name in ("new", "delete"):
        return True
    return after == "("


def _own_names(unit: Unit) -> set[str]:
    return {name for item in unit.items for name in item.names}


def _finding(unit: Unit, rule: Rule, place: int, text: str) -> Finding:
    line = unit.text.count("\n", 0, place) + 1
    column = place - unit.text.rfind("\n", 0, place)
    return Finding(
        rule.code, line, column, rule.cause.format(text=text), rule.consequence, rule.fix,
        rule.severity,
    )  # fmt: skip


def _assembly(unit: Unit, item: Item) -> Iterator[Finding]:
    for node in find(item.outer, "gnu_asm_expression"):
        text = unit.tree.of(node)
        code = " ".join(re.findall(r'"((?:\\.|[^"\\])*)"', text))
        for rule in ASM_RULES:
            hit = re.search(rule.names, code)
            if hit:
                yield _finding(unit, rule, node.start_byte, hit[0].strip())
                break


def _launches(unit: Unit, item: Item) -> Iterator[Finding]:
    for node in find(item.outer, "kernel_call_syntax"):
        call = node.parent
        text = " ".join(unit.tree.of(call if call is not None else node).split())
        yield Finding(
            "MK154", unit.tree.line(node), unit.tree.column(node),
            f"`{text[:60]}` starts a kernel from a kernel.",
            "A task cannot start kernels: the megakernel holds every block of the GPU.",
            "Make the kernel it starts an op of its own that runs after this one.",
        )  # fmt: skip


def _variables(unit: Unit, item: Item) -> Iterator[Finding]:
    """Device and constant variables of the file, and what functions keep from call to call."""
    if item.kind == "function":
        for node in find(item.node, "declaration"):
            text = " ".join(unit.tree.of(node).split())
            kept = re.match(r"static\b", text) and not re.search(
                r"__shared__|\bconst(expr)?\b", text.split("=")[0]
            )
            if kept:
                yield _mutable(unit, node, text, "is kept from call to call, for all threads")
    if item.kind != "variable":
        return
    text = " ".join(unit.text_of(item).split())
    words = item.words
    head = text.split("=")[0]
    if "__shared__" in words:
        return
    constant = bool(re.search(r"\bconst(expr)?\b", head))
    if ("__device__" in words or "__managed__" in words) and not constant:
        yield _mutable(unit, item.node, text, "is a variable that every launch and task shares")
    if "__constant__" in words:
        copied = any(re.search(rf"cudaMemcpyToSymbol\w*\s*\(\s*&?{name}\b", unit.text)
                     for name in item.names)  # fmt: skip
        if "=" not in text and "{" not in text or copied:
            yield _mutable(unit, item.node, text, "is filled by the host")


def _mutable(unit: Unit, node: "Node", text: str, what: str) -> Finding:
    return Finding(
        "MK141", unit.tree.line(node), unit.tree.column(node),
        f"`{text[:60]}` {what}.",
        "A megakernel is another module: the variable would be another one, and hold nothing.",
        "Pass a pointer to it as a parameter; declare a table that never changes const, with its "
        "values.",
    )  # fmt: skip


def _grid_barriers(unit: Unit, items: Sequence[Item]) -> Iterator[Finding]:
    """Each barrier of a grid group, as a place to split at."""
    groups: set[str] = set()
    for item in items:
        text = unit.text_of(item)
        groups |= set(re.findall(r"\b(\w+)\s*=\s*(?:\w+\s*::\s*)*this_grid\s*\(", text))
        groups |= set(re.findall(r"\bgrid_group\s+(\w+)", text))
    lines = []
    for item in items:
        for call in find(item.outer, "call_expression"):
            text = "".join(unit.tree.of(call).split())
            if any(text == f"{group}.sync()" for group in groups) or re.fullmatch(
                r"(?:\w+::)*this_grid\(\)\.sync\(\)", text
            ):
                lines.append((unit.tree.line(call), unit.tree.column(call)))
    if not lines:
        return
    listed = ", ".join(str(line) for line, _ in lines)
    for line, column in lines:
        yield Finding(
            "MK150", line, column,
            f"All blocks of the grid meet here (split points: line{'s' if len(lines) > 1 else ''} "
            f"{listed}).",
            "The blocks of one launch are tasks that run one after another: one that waits for all "
            "of them never gets to run the rest.",
            f"Split the kernel at line{'s' if len(lines) > 1 else ''} {listed} into "
            f"{len(lines) + 1} ops; each barrier becomes their dependency.",
        )  # fmt: skip


def host_calls(unit: Unit, kernels: Sequence[str]) -> list[Finding]:
    """Library calls that the host makes between launches of kernels that are ported together."""
    found = []
    launches = [
        unit.tree.line(node) for node in find(unit.tree.root, "kernel_call_syntax")
        if node.parent is not None
        and any(re.match(rf"(?:\w+::)*{name}\b", unit.tree.of(node.parent)) for name in kernels)
    ]  # fmt: skip
    if len(launches) < 2:
        return []
    for call in find(unit.tree.root, "call_expression"):
        function = call.child_by_field_name("function")
        name = unit.tree.of(function) if function is not None else ""
        line = unit.tree.line(call)
        if not min(launches) < line < max(launches):
            continue
        if re.match(r"(?:cublas|cudnn|cusparse|cufft|cusolver|curand|thrust|cub|nccl)\w*", name):
            found.append(
                Finding(
                    "MK106", line, unit.tree.column(call),
                    f"Between the launches the host calls `{name.split('(')[0]}`.",
                    "A megakernel is one launch: nothing of the host happens in its middle.",
                    "Port the kernels before and after it apart, or replace the call by an op.",
                )
            )  # fmt: skip
    return found
