"""Every op of the library, in every form the CPU has: lawful, and the standalone kernel's bits."""

import pytest

from mkport.library import all_ops
from mkport.testing import FORMS
from mkport.testing.suite import Unit, left_out, run_unit, units

LIBRARY = list(all_ops().values())
UNITS = [*units(LIBRARY, dtypes=["f32"]), *units(LIBRARY, dtypes=["bf16"])]


def name(unit: Unit) -> str:
    return f"{unit.op.name}-{unit.form}-{unit.dtype}"


def test_no_op_lacks_a_form() -> None:
    assert left_out(LIBRARY) == {}
    assert len(UNITS) == 2 * len(FORMS) * len(LIBRARY)


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_a_form_is_lawful_and_has_the_standalone_kernels_bits(unit: Unit) -> None:
    for verdict in run_unit(unit, LIBRARY, workers=3):
        assert verdict.ok, verdict
