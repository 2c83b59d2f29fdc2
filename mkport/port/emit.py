"""The port as text: the task file, the op's declaration, and the lines that changed.

Everything is the user's own text but for the places named here; nothing is judged or run.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mkport.declare.generate import struct_name
from mkport.port.geometry import Geometry
from mkport.port.kernel import Kernel, Param, template_of
from mkport.port.lexer import Token, names, tokens
from mkport.port.ptx import HEADER as PTX
from mkport.port.ptx import host_code, statements
from mkport.port.shared import SharedArray, SharedLayout
from mkport.port.syntax import declared, find
from mkport.port.unit import Item, Unit, host_ranges, whole_item

COMPUTERS = 256
RESERVED = {"head", "unused"}  # members of the argument structs
# What a composed file may include.
HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "math_constants.h")
# What files have of the C library's headers, which NVRTC lacks.
LIMITS = {
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623158e+308", "INT_MAX": "2147483647", "INT_MIN": "(-2147483647 - 1)",
    "UINT_MAX": "4294967295u", "INFINITY": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)", "M_PI": "3.14159265358979323846", "M_PI_F": "3.14159274f",
    "M_SQRT2": "1.41421356237309504880", "M_SQRT1_2": "0.70710678118654752440",
    "INT8_MAX": "127", "INT8_MIN": "(-128)", "UINT8_MAX": "255", "INT16_MAX": "32767",
    "INT16_MIN": "(-32768)", "UINT16_MAX": "65535", "INT32_MAX": "2147483647",
    "INT32_MIN": "(-2147483647 - 1)", "UINT32_MAX": "4294967295u",
    "INT64_MAX": "9223372036854775807ll", "INT64_MIN": "(-9223372036854775807ll - 1)",
    "UINT64_MAX": "18446744073709551615ull", "LLONG_MAX": "9223372036854775807ll",
    "ULLONG_MAX": "18446744073709551615ull", "LONG_MAX": "9223372036854775807l",
    "SIZE_MAX": "18446744073709551615ull", "CHAR_BIT": "8", "FLT_MANT_DIG": "24",
    "HUGE_VALF": "__int_as_float(0x7f800000)", "M_PI_2": "1.57079632679489661923",
    "M_PI_4": "0.78539816339744830962", "M_LN2": "0.69314718055994530942",
    "M_LN10": "2.30258509299404568402", "M_E": "2.7182818284590452354",
    "M_2_SQRTPI": "1.12837916709551257390", "M_LOG2E": "1.4426950408889634074", "NULL": "0",
}  # fmt: skip
# For an ordinary file under NVRTC; a composed one has the types already.
PRELUDE = """\
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t;
typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t; typedef unsigned int uint;
typedef unsigned short ushort; typedef unsigned long ulong; typedef unsigned long long uintptr_t;
""" + "".join(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in LIMITS.items())


DEFINES = (
    ("threadIdx", "(mk_port_thread<MkBlock>())"),
    ("blockIdx", "(mk_port_block())"),
    ("blockDim", "(dim3(MkBlock::X, MkBlock::Y, MkBlock::Z))"),
    ("gridDim", "(mk_port_grid())"),
    ("__syncthreads()", "mk_port_sync<MkBlock>()"),
    ("__syncthreads_or(p)", "mk_port_sync_or<MkBlock>(p)"),
    ("__syncthreads_and(p)", "mk_port_sync_and<MkBlock>(p)"),
    ("__syncthreads_count(p)", "mk_port_sync_count<MkBlock>(p)"),
)


@dataclass(frozen=True)
class Plan:
    """All that is decided about a port before it is written."""

    name: str
    kernel: Kernel
    launch: Geometry
    layout: SharedLayout
    items: tuple[Item, ...]
    macros: frozenset[str]
    system: tuple[str, ...]  # headers the file includes
    immutable: frozenset[str]
    modes: dict[str, str]  # of each tensor parameter: read, write, update, immutable
    meets: bool  # threads meet at barriers, or share memory
    drains: bool  # starts copies in the background
    asserts: bool
    file: str


def argument_names(kernel: Kernel) -> dict[str, str]:
    """What each parameter is called in the op."""

    def safe(name: str) -> str:
        taken = name in RESERVED or name.startswith(("place_of_", "no_", "grid_", "mk_"))
        return f"{name}_" if taken else name

    return {param.name: safe(param.name) for param in kernel.params}


def grid_args(launch: Geometry) -> tuple[str, ...]:
    """The integer arguments that carry the grid: as many as it has dimensions."""
    _, y, z = launch.grid or (1, 1, 1)
    return ("grid_x", "grid_y", "grid_z")[: 3 if z > 1 else 2 if y > 1 else 1]


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


def task_text(unit: Unit, plan: Plan) -> str:
    """The task file: the user's code in a namespace of its own, and the body that calls it."""
    x, y, z = plan.launch.block or (1, 1, 1)
    section = f"{plan.name}_port"
    headers = [name for name in HEADERS if name in plan.system]
    lines = [
        f"// {plan.kernel.call} of {plan.file}, ported by mkport for blocks of {x} x {y} x {z}."
    ]
    for header in headers:
        lines += ["#ifdef MK_HOST", f'#include "include/{header}"', "#else"]
        lines += [f"#include <{header}>", "#endif"]
    section_text = user_section(unit, plan)
    if "mk_ptx::" in section_text or "mk_fault(" in section_text:
        lines += ["#ifdef MK_HOST", f'#include "{PTX}"', "#endif"]
    used = names("".join(unit.text_of(item) for item in plan.items)) | {
        name for macro in plan.macros for name in names(unit.macros[macro].text)
    }
    for limit, value in LIMITS.items():
        if limit in used and limit not in plan.macros:
            lines += [f"#ifndef {limit}", f"#define {limit} {value}", "#endif"]
    lines += [
        f"namespace {section} {{",
        f"struct MkBlock {{ enum {{ X = {x}, Y = {y}, Z = {z}, THREADS = {x * y * z} }}; }};",
    ]
    defines = list(DEFINES)
    if plan.asserts:
        lines.append("#undef assert")
        defines.append(("assert(condition)", "((void)0)"))
    lines += [f"#define {name} {value}" for name, value in defines]
    lines += ["", section_text]
    undefined = [name.split("(")[0] for name, _ in defines] + sorted(plan.macros)
    undefined += [array.name for array in plan.layout.arrays if not array.function]
    lines += [f"#undef {name}" for name in undefined]
    lines += ["", call_text(plan), f"}}  // namespace {section}", "", body_text(plan)]
    return "\n".join(lines)


def call_text(plan: Plan) -> str:
    """The call of the kernel with a record's arguments, where the types that it takes are known."""
    labels = argument_names(plan.kernel)
    given = ", ".join(_passed(param, labels[param.name]) for param in plan.kernel.params)
    spaces = plan.kernel.item.namespace
    lines = [f"namespace {name} {{".replace("  ", " ") for name in spaces]
    lines += [
        f"MK_DEVICE inline void mk_call(const {struct_name_of(plan.name)}& a) {{",
        f"  {plan.kernel.call}({given});",
        "}",
    ]
    return "\n".join([*lines, *("}" for _ in spaces)]) + "\n"


def body_text(plan: Plan) -> str:
    """The body: opens the block that the tile stands for, and calls the kernel."""
    scope = "::".join([f"{plan.name}_port", *(n for n in plan.kernel.item.namespace if n)])
    call = f"{scope}::mk_call(a);"
    axes = grid_args(plan.launch)
    grid = ", ".join([f"a.{axis}" for axis in axes] + ["1"] * (3 - len(axes)))
    threads = plan.launch.threads
    lines = [
        f"struct {plan.name} : MkPort {{",
        f"  MK_DEVICE static void compute(const {struct_name_of(plan.name)}& a, int tile, "
        "MkCompute& c) {",
    ]
    if plan.meets:
        lines.append("    c.sync();  // all threads are through with the block before this one")
    if threads > COMPUTERS:
        lines += [
            f"    for (int first = 0; first < {threads}; first += MK_COMPUTERS) {{",
            f"      open(c, tile, first, {grid});",
            f"      if (first + mk_thread() < {threads}) {call}",
            "    }",
        ]
    else:
        lines.append(f"    open(c, tile, 0, {grid});")
        guard = f"if (mk_thread() < {threads}) " if threads < COMPUTERS else ""
        lines.append(f"    {guard}{call}")
    if plan.drains:
        lines.append("    mk_drain_copies();  // nothing may arrive in what is another's by then")
    return "\n".join([*lines, "  }", "};"]) + "\n"


def struct_name_of(name: str) -> str:
    """The name of the argument struct of an op called `name`."""
    return "".join(part.capitalize() for part in name.split("_")) + "Args"


def _passed(param: Param, name: str) -> str:
    if param.boxed:
        return f"*reinterpret_cast<const {param.type}*>(a.{name})"
    if param.kind == "tensor":
        return f"reinterpret_cast<{param.type}>(a.{name})"
    return f"a.{name}" if param.type in ("int", "float") else f"static_cast<{param.type}>(a.{name})"


def op_text(plan: Plan) -> str:
    """The declaration: `OP`, as an op's `op.py` has it."""
    labels = argument_names(plan.kernel)
    axes = grid_args(plan.launch)
    x, y, z = plan.launch.block or (1, 1, 1)
    args, touches = [], []
    for param in plan.kernel.params:
        label = labels[param.name]
        doc = f"{param.type}, by value" if param.boxed else param.type
        if param.kind == "tensor":
            optional = "" if param.boxed else ", optional=True"
            args.append(f'tensor("{label}", "{param.dtype}", "{doc}"{optional})')
            mode = plan.modes[param.name]
            apart = "" if mode == "immutable" or param.boxed else ", apart=True"
            touches.append(f'    yield from whole(a, "{label}", {mode}{apart})')
        elif param.kind == "int":
            args.append(f'integer("{label}", "{doc}")')
        else:
            args.append(f'real("{label}", "{doc}")')
    args += [f'integer("{axis}", "blocks of the launch")' for axis in axes]
    modes = sorted({plan.modes[p.name] for p in plan.kernel.params if p.kind == "tensor"})
    makers = {"tensor": "tensor", "int": "integer", "float": "real"}
    kinds = sorted({"integer"} | {makers[param.kind] for param in plan.kernel.params})
    imports = ", ".join(["Op", *sorted([*modes, *kinds, "whole"])])
    tiles = " * ".join(f"a.{axis}" for axis in axes)
    body = "\n".join(touches) or "    yield from ()"
    listed = "\n".join(f"        {arg}," for arg in args)
    return f'''"""{plan.kernel.call} of {plan.file}, ported by mkport.

A tile is one block of its launch. What tiles touch is declared as whole tensors, which is safe for
whoever comes before and after; the blocks of one launch run in any order and side by side, as in
the original.
"""

from pathlib import Path

from mkport.declare import {imports}


def access(a, tile):
    """A tile is one block of {x} x {y} x {z} threads."""
{body}


OP = Op(
    name="{plan.name}",
    doc="{plan.kernel.call} of {plan.file}",
    args=(
{listed}
    ),
    tiles=lambda a: {tiles},
    access=access,
    block_shared=lambda a: {plan.layout.total},
    order="the original's",
    folder=Path(__file__).parent,
)
'''


def changed(before: str, after: str, name: str) -> tuple[str, int, int]:
    """The unified difference of the user's section, and how many lines went and came."""
    lines = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), name, "ported", lineterm="", n=0
        )
    )
    removed = sum(line.startswith("-") for line in lines[2:])
    added = sum(line.startswith("+") for line in lines[2:])
    return "\n".join(lines), removed, added


__all__ = ["Plan", "changed", "op_text", "struct_name", "task_text", "user_section"]
