"""Long rows and attention on the CUDA source, in the host build.

What holds for every op is in `test_every_op_host.py`.
"""

from typing import Any

import numpy as np
import pytest

from mkport.library import find_op
from mkport.testing import check_op
from mkport.testing.check import as_torch
from mkport.testing.cuda_forms import run_solo, run_standalone
from mkport.testing.parts import load_part
from tests.cuda.host_ops import program
from tests.kernels.cases import made

pytestmark = pytest.mark.usefixtures("host")

ATTENTION = find_op("attention")
HEADS: dict[str, Any] = {"heads": 12, "kv_heads": 1, "head_dim": 128, "page": 32}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("k", [1024, 4096, 4112, 8192])
def test_a_long_row(name: str, k: int) -> None:
    shape = {"tokens": 2, "rows": 2, "k": k} | ({"groups": 1} if name == "rmsnorm" else {})
    shapes = {f"k = {k}": shape}
    for verdict in check_op(find_op(name), "host", "solo", shapes, program=program(name)):
        assert verdict.ok, verdict


def test_a_group_of_more_queries_than_are_multiplied_at_once() -> None:
    shapes = {"12 queries a key": {"places": [(0, 270), (1, 16)], **HEADS}}
    for verdict in check_op(ATTENTION, "host", "solo", shapes, program=program("attention")):
        assert verdict.ok, verdict


def test_attention_has_the_same_bits_in_any_company_and_interleaving() -> None:
    """A token alone and in a batch, by any number of workers."""
    places = [(0, 270), (1, 16), (2, 143), (3, 255)]
    case = made("attention", places=places, **HEADS)
    whole = run_standalone(ATTENTION, case, "host")["partial"]
    for seed in range(4):
        case.arrays["count"][0] = live = len(places) - seed
        got = run_solo(ATTENTION, case, program("attention"), "host", 1 + seed, seed)["partial"]
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
