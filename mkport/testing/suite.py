"""Checks many ops in many forms, unit by unit: which units there are, and one program for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mkport.compose import Program, compose_cpu
from mkport.declare import Op
from mkport.errors import UserError
from mkport.testing import tiny
from mkport.testing.check import FORMS, Form, Verdict, check_op

DTYPES = ("bf16", "f32")


@dataclass(frozen=True)
class Unit:
    """One op, in one form, with one storage type: a call of `check_op`."""

    op: Op
    form: Form
    dtype: str


def units(
    ops: Sequence[Op], forms: Sequence[str] = FORMS, dtypes: Sequence[str] = DTYPES
) -> list[Unit]:
    """Every unit that exists for these ops: a form without its file, or an op that stands in no
    model's step, gives none.

    Raises UserError for an unknown form or dtype.
    """
    for form in forms:
        if form not in FORMS:
            raise UserError(f"There is no form {form!r}; the forms are {', '.join(FORMS)}.")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UserError(f"There is no dtype {dtype!r}; the dtypes are {', '.join(DTYPES)}.")
    return [
        Unit(op, form, dtype)
        for op in ops
        for form in FORMS
        if form in forms and has_form(op, form)
        for dtype in dtypes
    ]


def has_form(op: Op, form: Form) -> bool:
    """Whether the op can be checked in this form."""
    if not (op.folder / "oracle.py").is_file() or not (op.folder / "standalone.py").is_file():
        return False
    if form == "standalone":
        return True
    if not (op.folder / "task.py").is_file():
        return False
    return form != "step" or op.name in _in_steps()


def run_unit(unit: Unit, library: Sequence[Op], workers: int = 2) -> list[Verdict]:
    """The verdicts of one unit, one a shape.

    `library` is the ops that are composed together, so that one program serves all units.
    """
    alone = unit.form in ("standalone", "step")
    program = None if alone else _program(tuple(library), unit.dtype)
    return check_op(unit.op, form=unit.form, dtype=unit.dtype, workers=workers, program=program)


@cache
def _in_steps() -> frozenset[str]:
    """The ops that the steps of the small models use."""
    graphs = tiny.graphs(tiny.SHAPE).values()
    return frozenset(node.op.name for graph in graphs for node in graph.nodes)


@cache
def _program(library: tuple[Op, ...], dtype: str) -> Program:
    ops = [op for op in library if (op.folder / "task.py").is_file()]
    return compose_cpu(ops, dtype, dtype, "Every op of the library")
