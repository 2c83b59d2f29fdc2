"""Lookups, norms, rotation, attention, choice of a token: the CUDA source in the host build.

Every op by the law and bit for bit in every form. A program of all these ops serves the default
tests.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare.case import Case
from mkport.library import find_op
from mkport.testing import check_op
from mkport.testing.check import Form, as_torch
from mkport.testing.cuda_forms import run_solo, run_standalone
from mkport.testing.parts import load_part

pytestmark = pytest.mark.usefixtures("host")

OPS = (
    "embed", "select", "rmsnorm", "layernorm", "rope", "attention", "attention_combine", "argmax",
)  # fmt: skip
ATTENTION = find_op("attention")
HEADS: dict[str, Any] = {"heads": 12, "kv_heads": 1, "head_dim": 128, "page": 32}


@cache
def program(dtype: str = "bf16") -> CudaProgram:
    """All of `OPS` in one file."""
    return compose_cuda([find_op(name) for name in OPS], dtype, dtype)


def made(name: str, **shape: Any) -> Case:
    """A case as the op's oracle makes it."""
    oracle = load_part(find_op(name), "oracle")
    return oracle.make(np.random.default_rng(0), "bf16", "bf16", **shape)


@pytest.mark.parametrize("form", ["ported", "solo"])
@pytest.mark.parametrize("name", OPS)
def test_an_op_is_lawful_and_has_the_standalone_s_bits(name: str, form: Form) -> None:
    for verdict in check_op(find_op(name), "host", form, workers=3, program=program()):
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("form", ["standalone", "ported", "solo"])
@pytest.mark.parametrize("name", OPS)
def test_an_op_with_float32_weights(name: str, form: Form) -> None:
    given = None if form == "standalone" else program("f32")
    for verdict in check_op(find_op(name), "host", form, dtype="f32", workers=3, program=given):
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("k", [1024, 4096, 4112, 8192])
def test_a_long_row(name: str, k: int) -> None:
    shape = {"tokens": 2, "rows": 2, "k": k} | ({"groups": 1} if name == "rmsnorm" else {})
    shapes = {f"k = {k}": shape}
    for verdict in check_op(find_op(name), "host", "solo", shapes, program=program()):
        assert verdict.ok, verdict


def test_a_group_of_more_queries_than_are_multiplied_at_once() -> None:
    shapes = {"12 queries a key": {"places": [(0, 270), (1, 16)], **HEADS}}
    for verdict in check_op(ATTENTION, "host", "solo", shapes, program=program()):
        assert verdict.ok, verdict


def test_attention_has_the_same_bits_in_any_company_and_interleaving() -> None:
    """A token alone and in a batch, by any number of workers."""
    places = [(0, 270), (1, 16), (2, 143), (3, 255)]
    case = made("attention", places=places, **HEADS)
    whole = run_standalone(ATTENTION, case, "host")["partial"]
    for seed in range(4):
        case.arrays["count"][0] = live = len(places) - seed
        got = run_solo(ATTENTION, case, program(), "host", 1 + seed, seed)["partial"]
        assert got[:live].tobytes() == whole[:live].tobytes()
        assert (got[live:] == 7).all()


def test_what_attention_narrows_is_all_that_it_rounds() -> None:
    """Queries and weights are rounded to bfloat16: half a unit in the eighth bit of each."""
    case = made("attention", places=[(0, 255), (1, 200)], **HEADS)
    case.arrays["q"] = np.round(case.arrays["q"] * 8) / 8  # bfloat16 holds them
    got = run_standalone(ATTENTION, case, "host")["partial"][:, 0]
    wanted = load_part(ATTENTION, "oracle").oracle(as_torch(case, "float64"))["partial"][:, 0]
    dim = HEADS["head_dim"]
    sums = np.abs(got[..., :dim] - wanted[..., :dim].numpy()).max()
    weights = wanted[..., dim + 1].max().item()
    assert sums <= 2.0**-9 * weights
    assert np.abs(got[..., dim : dim + 2] - wanted[..., dim : dim + 2].numpy()).max() < 1e-4


def test_attention_inside_every_model_s_step() -> None:
    verdicts = check_op(ATTENTION, "host", "step", workers=2)
    assert len(verdicts) > 3
    for verdict in verdicts:
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", [name for name in OPS if name != "attention"])
def test_an_op_inside_every_model_s_step(name: str, dtype: str) -> None:
    for verdict in check_op(find_op(name), "host", "step", dtype=dtype, workers=3, seed=1):
        assert verdict.ok, verdict
