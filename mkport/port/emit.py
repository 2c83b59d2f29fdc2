"""The port as text: the task file, the op's declaration, and the lines that changed.

Everything is the user's own text but for the places named here; nothing is judged or run.
"""

import difflib

from mkport.declare.generate import struct_name
from mkport.port.decided import Plan, argument_names, grid_args
from mkport.port.edits import user_section
from mkport.port.kernel import Param
from mkport.port.lexer import names
from mkport.port.prelude import HEADERS, LIMITS, STANDARD
from mkport.port.ptx import HEADER as PTX
from mkport.port.unit import Unit

COMPUTERS = 256
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
    if "std::" in section_text:
        lines += STANDARD.rstrip().split("\n")
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


__all__ = ["Plan", "argument_names", "changed", "grid_args", "op_text", "struct_name", "task_text"]
