"""The user's text as a port has it: what goes, and what comes in its place."""

import re
from collections.abc import Iterable, Iterator, Sequence

from mkport.port.decided import Plan
from mkport.port.kernel import template_of
from mkport.port.lexer import Token, names, tokens
from mkport.port.ptx import host_code, statements
from mkport.port.shared import SharedArray
from mkport.port.syntax import declared, find
from mkport.port.unit import Item, Unit, host_ranges, whole_item


def user_section(unit: Unit, plan: Plan) -> str:
    """The user's text with its edits, without what the kernel does not reach."""
    edits = [
        (start, end, "")
        for start, end in host_ranges(unit, [plan.kernel.item], " ".join(plan.kernel.arguments))
    ]
    edits += _edits(unit, plan)
    text = apply(unit.text, edits)
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"(?m)^[ \t]*namespace(?:\s+\w+)?\s*\{\s*\}[^\n]*\n", "", text)
    text = re.sub(r"(?m)^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def left_over(text: str, immutable: Iterable[str]) -> str | None:
    """A word in a port's text that ought to have been rewritten and was not."""
    words = {"__global__", "__shared__", "__launch_bounds__", "__cluster_dims__", "extern"}
    if not immutable:
        words |= {"__ldg", "__restrict__", "__restrict"}
    return next((t.text for t in tokens(text) if t.kind == "name" and t.text in words), None)


def apply(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """A text with ranges replaced; an edit inside of an earlier, wider one is void."""
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda e: (e[0], -e[1])):
        if start < at:
            continue
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _edits(unit: Unit, plan: Plan) -> list[tuple[int, int, str]]:
    tree = unit.tree
    edits: list[tuple[int, int, str]] = []
    for node in find(tree.root, "linkage_specification"):
        body = node.child_by_field_name("body")
        value = node.child_by_field_name("value")
        if body is None or value is None:
            continue
        block = body.type == "declaration_list"
        edits.append((node.start_byte, body.start_byte, "namespace " if block else ""))
    item = plan.kernel.item
    if unit.special(item) is not None:  # an ordinary function by then: nothing else has its name
        name = declared(item.node)
        assert name is not None
        edits.append((item.outer.start_byte, item.node.start_byte, ""))
        edits.append((name.start_byte, name.end_byte, plan.kernel.name))
    edits += _spaces(unit, plan)
    edits += _assembly(unit, plan)
    for array in plan.layout.arrays:
        edits.append(_shared_edit(unit, plan.items, array, plan.layout.arrays))
    edits += _places(unit, plan)
    given = list(tokens(unit.text))
    pointers = _immutable_spans(unit, plan)
    for at, token in enumerate(given):
        if token.kind != "name":
            continue
        start, end = token.start, token.start + len(token.text)
        if token.text == "__global__":
            edits.append((start, end, "__device__"))
        elif token.text in ("__launch_bounds__", "__cluster_dims__", "__maxnreg__"):
            close = _closing(given, at)
            space = 1 if unit.text[close : close + 1] == " " else 0
            edits.append((start, close + space, ""))
        elif token.text in ("__restrict__", "__restrict", "__grid_constant__"):
            if token.text != "__grid_constant__" and any(lo <= start < hi for lo, hi in pointers):
                continue
            space = 1 if unit.text[end : end + 1] == " " else 0
            edits.append((start, end + space, ""))
        elif token.text == "__ldg":
            edits.append((start, end, _load_name(unit, plan, given, at)))
    return edits


def _spaces(unit: Unit, plan: Plan) -> Iterator[tuple[int, int, str]]:
    """Functions that do not say where they run, such as constexpr ones, run on the device."""
    for item in plan.items:
        for node in find(item.outer, "function_definition"):
            body = node.child_by_field_name("body")
            inside = item.kind == "function" and node != item.node
            if body is None or inside or node.parent is None:
                continue
            head = unit.text[max(item.outer.start_byte, node.start_byte) : body.start_byte]
            words = names(head) | item.words if node == item.node else names(head)
            if not words & ({"__device__", "__global__"} | set(unit.macros)):
                yield node.start_byte, node.start_byte, "__device__ "


def _assembly(unit: Unit, plan: Plan) -> Iterator[tuple[int, int, str]]:
    """Inline assembly with what a CPU runs in its place."""
    kept = [(item.outer.start_byte, item.outer.end_byte) for item in plan.items]
    for node in statements(unit.tree):
        start, end = node.start_byte, node.end_byte
        inside = any(first <= start < last for first, last in kept)
        if inside:
            code, text = host_code(unit.tree.of(node), unit.tree.line(node)), unit.text[start:end]
            yield start, end, f"\n#ifdef MK_HOST\n{code}\n#else\n{text}\n#endif\n"


def _closing(given: Sequence[Token], at: int) -> int:
    depth = 0
    for token in given[at + 1 :]:
        if token.kind == "mark":
            depth += (token.text == "(") - (token.text == ")")
            if token.text == ")" and depth == 0:
                return int(token.start) + 1
    return int(given[at].start) + len(given[at].text)


def _immutable_spans(unit: Unit, plan: Plan) -> list[tuple[int, int]]:
    """Where the kernel's own parameters stand that were declared immutable."""
    spans = []
    declarator = next(find(plan.kernel.item.node, "function_declarator"))
    for node in find(declarator, "parameter_declaration", "optional_parameter_declaration"):
        text = unit.tree.of(node)
        if any(re.search(rf"\b{name}\b", text) for name in plan.immutable):
            spans.append((node.start_byte, node.end_byte))
    return spans


def _load_name(unit: Unit, plan: Plan, given: Sequence[Token], at: int) -> str:
    """`__ldg` stays where the kernel itself reads a buffer that was declared immutable."""
    inside = plan.kernel.item.node
    if not inside.start_byte <= given[at].start < inside.end_byte:
        return "mk_port_load"
    end = _closing(given, at)
    named = [t.text for t in given[at + 1 :] if t.start < end and t.kind == "name"]
    return "__ldg" if named and named[0] in plan.immutable else "mk_port_load"


def _places(unit: Unit, plan: Plan) -> list[tuple[int, int, str]]:
    """For templates that exist several times: which place in the arena is whose."""
    edits = []
    for item in plan.items:
        slots = next((a.slots for a in plan.layout.arrays if a.slots and _inside(a, item)), ())
        if not slots:
            continue
        head = item.outer.child_by_field_name("parameters")
        assert head is not None
        label = f"mk_place_of_{item.name}"
        first = f"template {unit.tree.of(head)}\nstruct {label};\n"
        lines = [
            f"template <> struct {label}<{', '.join(slot)}> {{ enum {{ AT = {at} }}; }};"
            for at, slot in enumerate(slots)
        ]
        start, end = whole_item(unit.text, item.outer.start_byte, item.outer.end_byte)
        edits.append((start, start, first))
        edits.append((end, end, "\n" + "\n".join(lines) + "\n"))
    return edits


def _inside(array: SharedArray, item: Item) -> bool:
    return item.outer.start_byte <= array.node.start_byte < item.outer.end_byte


def _shared_edit(
    unit: Unit, items: Sequence[Item], array: SharedArray, arrays: Sequence[SharedArray]
) -> tuple[int, int, str]:
    """The declaration that holds an array; those it shares it with come along."""
    node = array.node
    together = [other for other in arrays if other.node == node]
    parts = []
    for one in together:
        alias = f"mk_shared_{one.name}"
        if one.dynamic and not one.function:
            parts.append(f"\n#define {one.name} (&mk_port_shared<{one.type}>({one.offset}))\n")
            continue
        if one.dynamic:
            parts.append(f"{one.type}* {one.name} = &mk_port_shared<{one.type}>({one.offset});")
            continue
        place = str(one.offset)
        if one.slots:
            item = next(item for item in items if _inside(one, item))
            given = ", ".join(template_of(unit, item)[0])
            place += f" + {one.size} * mk_place_of_{item.name}<{given}>::AT"
        parts.append(
            f"typedef {one.type} {alias}{one.dims}; "
            f"static_assert(sizeof({alias}) {'==' if one.exact else '<='} {one.size}, "
            '"the size the arena was laid out for"); '
            f"{alias}& {one.name} = mk_port_shared<{alias}>({place});"
        )
    return node.start_byte, node.end_byte, " ".join(parts)
