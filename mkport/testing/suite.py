"""Checks many ops in many forms, unit by unit: which units there are, and one program for all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from mkport.compose import Program, compose_cpu
from mkport.declare import Op
from mkport.errors import UserError
from mkport.testing import tiny
from mkport.testing.check import FORMS, MACHINES, Form, Verdict, check_op
from mkport.testing.parts import is_port

DTYPES = ("bf16", "f32")
CUDA_FILES = ("standalone.cu", "task.cuh")
FILES = {"cpu": ("standalone.py", "task.py"), "host": CUDA_FILES, "cuda": CUDA_FILES}


@dataclass(frozen=True)
class Unit:
    """One op, in one form, with one storage type, on one machine: a call of `check_op`."""

    op: Op
    form: Form
    dtype: str
    machine: str = "cpu"


def units(
    ops: Sequence[Op],
    forms: Sequence[str] = FORMS,
    dtypes: Sequence[str] = DTYPES,
    machine: str = "cpu",
) -> list[Unit]:
    """Every unit that exists for these ops on this machine; the others are in `left_out`.

    Raises UserError for an unknown form, dtype or machine.
    """
    if machine not in MACHINES:
        raise UserError(f"There is no machine {machine!r}; the machines are {', '.join(MACHINES)}.")
    for form in forms:
        if form not in FORMS:
            raise UserError(f"There is no form {form!r}; the forms are {', '.join(FORMS)}.")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UserError(f"There is no dtype {dtype!r}; the dtypes are {', '.join(DTYPES)}.")
    return [
        Unit(op, form, dtype, machine)
        for op in ops
        for form in FORMS
        if form in forms and has_form(op, form, machine)
        for dtype in (dtypes[:1] if is_port(op) else dtypes)  # its types are its own
    ]


def left_out(
    ops: Sequence[Op], forms: Sequence[str] = FORMS, machine: str = "cpu"
) -> dict[str, list[str]]:
    """The forms that ops lack on this machine, with the names of those ops."""
    lacking = {
        form: [op.name for op in ops if not has_form(op, form, machine)]
        for form in FORMS
        if form in forms
    }
    return {form: names for form, names in lacking.items() if names}


def has_form(op: Op, form: Form, machine: str = "cpu") -> bool:
    """Whether the op can be checked in this form on this machine: it has the files (the machines
    "host" and "cuda" take the CUDA ones), and for the step form a model's step holds it."""
    standalone, task = FILES[machine]
    if is_port(op):  # of an @njit function, or of a CUDA kernel
        return form != "step" and (op.folder / task).is_file()
    if not (op.folder / "oracle.py").is_file() or not (op.folder / standalone).is_file():
        return False
    if form == "standalone":
        return True
    if not (op.folder / task).is_file():
        return False
    return form != "step" or any(replace(one, folder=op.folder) == op for one in _in_steps())


def run_unit(unit: Unit, library: Sequence[Op], workers: int = 2) -> list[Verdict]:
    """The verdicts of one unit, one a shape.

    `library` is the ops that are composed together for the CPU, so that one program serves all
    units; a CUDA file of one op compiles in less time than the part of it that others add.
    """
    alone = unit.machine != "cpu" or unit.form in ("standalone", "step")
    program = None if alone else _program(tuple(library), unit.dtype)
    return check_op(
        unit.op, unit.machine, unit.form, dtype=unit.dtype, workers=workers, program=program
    )


@cache
def _in_steps() -> frozenset[Op]:
    """The ops that the steps of the small models use."""
    graphs = tiny.graphs(tiny.SHAPE).values()
    return frozenset(node.op for graph in graphs for node in graph.nodes)


@cache
def _program(library: tuple[Op, ...], dtype: str) -> Program:
    ops = [op for op in library if (op.folder / "task.py").is_file()]
    return compose_cpu(ops, dtype, dtype, "Every op of the library")
