"""Every op of the library, in every form the CPU has: lawful, and the standalone kernel's bits."""

from collections.abc import Callable

import pytest

from mkport.compose import Program
from mkport.library import all_ops, find_op
from mkport.testing import FORMS, check_op
from mkport.testing.suite import Unit, left_out, run_unit, units
from tests.kernels.cases import WIDE

LIBRARY = list(all_ops().values())
UNITS = [*units(LIBRARY, dtypes=["f32"]), *units(LIBRARY, dtypes=["bf16"])]


def name(unit: Unit) -> str:
    return f"{unit.op.name}-{unit.form}-{unit.dtype}"


def test_no_op_lacks_a_form() -> None:
    assert left_out(LIBRARY) == {"step": ["moe_group"]}  # only steps of more than 8 rows have it
    assert len(UNITS) == 2 * (len(FORMS) * len(LIBRARY) - 1)


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_a_form_is_lawful_and_has_the_standalone_kernels_bits(unit: Unit) -> None:
    for verdict in run_unit(unit, LIBRARY, workers=3):
        assert verdict.ok, verdict


@pytest.mark.parametrize("op", WIDE)
def test_a_wide_step_s_tiles_have_the_standalone_kernels_bits(
    op: str, library_program: Callable[[str], Program]
) -> None:
    """As a GPU cuts the work: tiles of blocks of tokens, and slots of few pairs."""
    program = library_program("bf16")
    for verdict in check_op(find_op(op), "cpu", "solo", WIDE[op], workers=3, program=program):
        assert verdict.ok, verdict
