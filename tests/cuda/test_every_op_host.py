"""Every op on the CUDA source, in the host build: by the law, and bit for bit in every form."""

import pytest

from mkport.library import find_op
from mkport.testing import check_op
from mkport.testing.check import Form
from tests.cuda.host_ops import DENSE, ROUTED, program

pytestmark = pytest.mark.usefixtures("host")


@pytest.mark.parametrize("form", ["ported", "solo"])
@pytest.mark.parametrize("name", DENSE + ROUTED)
def test_an_op_is_lawful_and_has_the_standalone_s_bits(name: str, form: Form) -> None:
    for verdict in check_op(find_op(name), "host", form, workers=3, program=program(name)):
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("form", ["standalone", "ported", "solo"])
@pytest.mark.parametrize("name", DENSE + ROUTED)
def test_an_op_with_float32_weights(name: str, form: Form) -> None:
    given = None if form == "standalone" else program(name, "f32")
    for verdict in check_op(find_op(name), "host", form, dtype="f32", workers=3, program=given):
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", [name for name in DENSE if name != "attention"])
def test_an_op_inside_every_model_s_step(name: str, dtype: str) -> None:
    for verdict in check_op(find_op(name), "host", "step", dtype=dtype, workers=3, seed=1):
        assert verdict.ok, verdict
