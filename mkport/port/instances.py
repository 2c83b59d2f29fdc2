"""How many times a helper with shared arrays exists: once, or once for each of its instances.

A static array in a function template is one array an instance; in the arena each needs a place of
its own. What instances there are is read off the calls, or all plain types are made room for.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mkport.port.finding import Finding, RefusedPort
from mkport.port.kernel import Kernel, template_of
from mkport.port.lexer import names, replace_names, split_list
from mkport.port.storage import Types
from mkport.port.syntax import find
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

Instance = tuple[str, ...]  # a template's arguments
# What a type that is left to the compiler may be.
PLAIN = (
    "float", "double", "int", "unsigned int", "long long", "unsigned long long", "float2", "float4",
    "int2", "bool",
)  # fmt: skip
HALVES = {
    "cuda_fp16.h": ("__half", "__half2"), "cuda_bf16.h": ("__nv_bfloat16", "__nv_bfloat162"),
    "cuda_fp8.h": ("__nv_fp8_e4m3", "__nv_fp8_e5m2"),
}  # fmt: skip
_DEPTH = 8


def calls_of(unit: Unit, items: Sequence[Item], helper: Item) -> list[tuple[Item, str]]:
    """Where a function is called, and how it is named there."""
    found = []
    for item in items:
        for call in find(item.outer, "call_expression"):
            function = call.child_by_field_name("function")
            text = unit.tree.of(function) if function is not None else ""
            words = re.findall(r"\w+", re.split(r"[<(]", text)[0])
            if words and words[-1] in helper.names:
                found.append((item, re.sub(r"\s+", " ", text)))
    return found


def bindings_of(
    unit: Unit, kernel: Kernel, items: Sequence[Item], item: Item, depth: int = 0
) -> dict[str, str]:
    """A template's arguments, where the one place that uses it says them."""
    if item == kernel.item:
        return kernel.bindings
    if item.outer.type != "template_declaration" or depth > _DEPTH:
        return {}
    calls = calls_of(unit, items, item)
    if len({text for _, text in calls}) != 1 or "<" not in calls[0][1]:
        return {}
    caller, text = calls[0]
    outer = bindings_of(unit, kernel, items, caller, depth + 1)
    given = split_list(text[text.index("<") + 1 : text.rindex(">")])
    parameters, _ = template_of(unit, item)
    return {
        name: replace_names(value, outer.get)
        for name, value in zip(parameters, given, strict=False)
    }


def instances_of(
    unit: Unit,
    kernel: Kernel,
    items: Sequence[Item],
    helper: Item,
    node: "Node",
    headers: Sequence[str],
) -> tuple[Instance, ...]:
    """The instances of a helper with the array `node`; nothing where there is one alone.

    Raises RefusedPort where it cannot be told.
    """
    inner = _lambda(node)
    if inner is not None and re.search(r"\bauto\b", unit.tree.of(inner).split("{")[0]):
        raise RefusedPort(_refusal(unit, node, "a lambda with `auto` parameters"))
    if helper.kernel or helper.outer.type != "template_declaration":
        return ()
    if helper.kind != "function":
        raise RefusedPort(_refusal(unit, node, f"the class template {helper.name}"))
    if _once(unit, items, helper, 0):
        return ()
    parameters, defaults = template_of(unit, helper)
    types = Types(unit, {})
    found: dict[Instance, None] = {}
    for caller, text in calls_of(unit, items, helper):
        given = split_list(text[text.index("<") + 1 : text.rindex(">")]) if "<" in text else []
        outer = bindings_of(unit, kernel, items, caller)
        given += [d for d in defaults[len(given) :] if d] if given else []
        values = tuple(types.resolve(replace_names(value, outer.get)) for value in given)
        open_names = set(template_of(unit, caller)[0]) & names(" ".join(values))
        if len(values) == len(parameters) and not open_names:
            found[values] = None
        elif len(parameters) == 1 and _is_type(unit, helper):
            halves = [t for header in headers for t in HALVES.get(header, ())]
            found |= {(types.resolve(name),): None for name in (*PLAIN, *halves)}
        else:
            count = len(calls_of(unit, items, helper))
            raise RefusedPort(_refusal(unit, node, f"the template {helper.name}, which is used in "
                                       f"{count} place{'s' if count > 1 else ''}"))  # fmt: skip
    return tuple(found)


def _once(unit: Unit, items: Sequence[Item], helper: Item, depth: int) -> bool:
    """Whether there is one instance of a function at most."""
    if helper.kernel or helper.outer.type != "template_declaration":
        return True
    calls = calls_of(unit, items, helper)
    texts = {text for _, text in calls}
    if depth > _DEPTH or len(texts) > 1 or (len(calls) > 1 and "<" not in calls[0][1]):
        return False
    return all(_once(unit, items, caller, depth + 1) for caller, _ in calls)


def _is_type(unit: Unit, helper: Item) -> bool:
    head = helper.outer.child_by_field_name("parameters")
    return head is not None and "type_parameter" in head.named_children[0].type


def _lambda(node: "Node") -> "Node | None":
    here = node.parent
    while here is not None and here.type not in ("lambda_expression", "function_definition"):
        here = here.parent
    return here if here is not None and here.type == "lambda_expression" else None


def _refusal(unit: Unit, node: "Node", where: str) -> Finding:
    return Finding(
        "MK123", unit.tree.line(node), unit.tree.column(node),
        f"`{' '.join(unit.tree.of(node).split())}` stands in {where}.",
        "Each instance has an array of its own in the original, and which instances there are was "
        "not found out; in the arena they would be one, and overwrite each other.",
        "Declare the array in the kernel and pass it on, or name the template's arguments in each "
        "call.",
    )  # fmt: skip
