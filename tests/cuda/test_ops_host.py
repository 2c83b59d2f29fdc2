"""Products with epilogues, routing and experts on the CUDA source, in the host build.

A token's bits in any company; what does not fit or is not there. What holds for every op is in
`test_every_op_host.py`.
"""

from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import compose_cuda
from mkport.declare.case import Case
from mkport.library import find_op
from mkport.machines.host.machine import HostMachine
from mkport.plan import deal
from mkport.testing import check_op
from mkport.testing.cuda_forms import run_solo, run_standalone
from mkport.verify import verify
from tests.cuda.host_ops import program
from tests.kernels.cases import made, normed_apart
from tests.kernels.moe_chain import OPS as CHAIN_OPS
from tests.kernels.moe_chain import Sizes, chain, random_arrays

pytestmark = pytest.mark.usefixtures("host")

EXPERTS: dict[str, Any] = {"tokens": 8, "experts": 9, "top": 4, "n": 21, "k": 48}


def solo(name: str, case: Case, workers: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    """The outputs of a megakernel of one op."""
    return run_solo(find_op(name), case, program(name), "host", workers, seed)


@pytest.mark.parametrize("k", [16, 1040, 4096])
@pytest.mark.parametrize("name", ["gemm_rope", "gemm_silu"])
def test_a_product_of_normed_rows_is_rmsnorm_then_the_product(name: str, k: int) -> None:
    fused, after = normed_apart(name, k, lambda op, case: solo(op, case)["y"])
    assert solo(name, fused)["y"].tobytes() == solo(name, after)["y"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("k", [1024, 1040])
@pytest.mark.parametrize("name", ["gemm_silu", "gemm_rope", "moe_up", "moe_down"])
def test_more_than_one_slice(name: str, k: int) -> None:
    sizes: dict[str, Any] = {
        "gemm_silu": {"tokens": 8, "rows": 7, "n": 24},
        "gemm_rope": {"tokens": 8, "rows": 7, "heads": 1, "head_dim": 32},
    }.get(name, {"tokens": 8, "experts": 4, "top": 2, "n": 24})
    for verdict in check_op(
        find_op(name), "host", "solo", {f"k = {k}": {**sizes, "k": k}}, program=program(name)
    ):
        assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["gemm_silu", "gemm_rope"])
def test_a_token_has_the_same_bits_in_any_batch(name: str) -> None:
    sizes: dict[str, Any] = {"n": 20} if name == "gemm_silu" else {"heads": 1, "head_dim": 32}
    case = made(name, tokens=8, rows=8, k=80, **sizes)
    whole = solo(name, case)["y"]
    for rows in (0, 1, 3, 8):
        case.arrays["count"][0] = rows
        y = solo(name, case, seed=rows)["y"]
        assert y[:rows].tobytes() == whole[:rows].tobytes()
        assert np.isnan(y[rows:]).all()


@pytest.mark.parametrize(
    ("name", "source", "output"), [("moe_up", "x", "act"), ("moe_down", "act", "y")]
)
def test_a_pair_has_the_same_bits_with_any_mates(name: str, source: str, output: str) -> None:
    """Each of an expert's pairs again, alone with its expert; the others' activations are NaN."""
    case = made(name, **{**EXPERTS, "top": 1}, only=2)
    whole = solo(name, case)[output]
    for pair in (0, 3, 7):
        alone = case.copy()
        token = int(case.arrays["pairs"][pair])
        alone.arrays[source][np.arange(8) != (token if name == "moe_up" else pair)] = np.nan
        row = pair if name == "moe_up" else token
        assert solo(name, alone)[output][row].tobytes() == whole[row].tobytes()
        first = case.copy()  # the pair is its slot's first and only one
        first.arrays["pairs"][0] = token
        first.arrays["slots"][1:, 1] = 1
        if name == "moe_down":
            first.arrays["act"][0] = case.arrays["act"][pair]
        row = 0 if name == "moe_up" else token
        want = whole[pair if name == "moe_up" else token]
        assert solo(name, first)[output][row].tobytes() == want.tobytes()


@pytest.mark.parametrize("window", [0, 700])
def test_splits_are_joined_to_the_same_bits_by_one_warp_and_by_eight(window: int) -> None:
    shape: dict[str, Any] = {"heads": 5, "head_dim": 80, "window": window, "tokens": 4}
    joined = []
    for warps in (1, 8):
        case = made("attention_combine", positions=[40000, 17, 5119], warps=warps, **shape)
        joined.append(solo("attention_combine", case)["y"])
    assert np.isfinite(joined[0][:3]).all()
    assert joined[0].tobytes() == joined[1].tobytes()


@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_experts_whose_inputs_do_not_fit_are_fetched(tokens: int) -> None:
    """One worker has all slots, up to 32 pairs, of which a stage buffer holds 24."""
    case = made("moe_down", **{**EXPERTS, "tokens": tokens})
    alone = solo("moe_down", case, workers=1)["y"]
    assert run_standalone(find_op("moe_down"), case, "host")["y"].tobytes() == alone.tobytes()
    for workers in (2, 5, 9):
        assert solo("moe_down", case, workers, seed=workers)["y"].tobytes() == alone.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_row_of_logits_has_no_experts(bad: float) -> None:
    case = made("topk", tokens=3, rows=3, experts=40, k=6, softmax=1)
    whole = solo("topk", case)
    case.arrays["z"][1, 17] = bad
    for got in (solo("topk", case), run_standalone(find_op("topk"), case, "host")):
        assert (got["ids"][1] == -1).all() and np.isnan(got["weights"][1]).all()
        assert (got["ids"][[0, 2]] == whole["ids"][[0, 2]]).all()
        assert (got["weights"][[0, 2]] == whole["weights"][[0, 2]]).all()


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_a_choice_that_groups_is_a_choice_then_a_grouping(tokens: int) -> None:
    """8 tokens have more choices than are placed at a time."""
    lost = range(1, tokens, 4)
    sizes: dict[str, Any] = {"tokens": tokens, "rows": tokens, "experts": 200, "k": 20}
    case = made("topk", **sizes, lost=lost, renormalise=1, group=1)
    alone = case.copy()
    lists = {name: alone.arrays.pop(name) for name in ("pairs", "slots")}
    slots, alone.values["slot_count"] = alone.values["slot_count"], 0
    alone.outputs = ("ids", "weights")
    want = solo("topk", alone)
    arrays = {"count": alone.arrays["count"], "ids": want["ids"], **lists}
    values = {"experts": 200, "k": 20, "slot_count": slots}
    want |= solo("moe_group", Case(arrays, values, ("slots", "pairs")))
    live = 20 * (tokens - len(lost))
    for got in (solo("topk", case), run_standalone(find_op("topk"), case, "host")):
        for name, array in want.items():
            assert got[name].tobytes() == array.tobytes(), name
        assert (got["slots"][-1] == (-1, live)).all() and (got["pairs"][live:] == -7).all()


@pytest.mark.parametrize("softmax", [0, 1])
def test_equal_logits_on_a_gpu_are_taken_in_their_order(softmax: int) -> None:
    case = made("topk", tokens=3, rows=3, experts=300, k=40, softmax=softmax)
    case.arrays["z"][0] = np.where(np.arange(300) % 2, 0.0, -0.0)
    case.arrays["z"][1] = np.tile([-2, 3, 3, 1, 3], 60)
    case.arrays["z"][2] = -np.finfo(np.float32).max
    ids = solo("topk", case)["ids"]
    np.testing.assert_array_equal(ids[0], np.arange(40))
    np.testing.assert_array_equal(ids[1], np.flatnonzero(case.arrays["z"][1] == 3)[:40])
    np.testing.assert_array_equal(ids[2], np.arange(40))


@pytest.mark.parametrize(("norm", "op"), [("root", "rmsnorm"), ("mean", "layernorm")])
@pytest.mark.parametrize("n", [16, 1040, 2064])
def test_a_sum_that_norms_is_a_sum_then_a_norm(norm: str, op: str, n: int) -> None:
    case = made("moe_combine", tokens=4, rows=3, n=n, top=9, norm=norm)
    got = solo("moe_combine", case)
    alone = case.copy()
    w, h = (alone.arrays.pop(name) for name in ("w", "h"))
    alone.outputs = ("x",)
    x = solo("moe_combine", alone)["x"]
    values = {"k": n, "eps": case.values["eps"]} | ({"groups": 1} if op == "rmsnorm" else {})
    y = solo(op, Case({"count": alone.arrays["count"], "x": x, "w": w, "y": h}, values, ("y",)))[
        "y"
    ]
    assert got["x"].tobytes() == x.tobytes() and got["h"].tobytes() == y.tobytes()
    assert np.isnan(got["h"][3:]).all() and np.isfinite(got["h"][:3]).all()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_layer_of_experts_is_the_same_for_all_workers_and_seeds(at_once: bool) -> None:
    """Router to sum, twice: the loaders of expert ops wait for what the router has chosen."""
    sizes = Sizes(tokens=4, experts=6, top=2, hidden=64, ffn=48, layers=2, at_once=at_once)
    ops = [find_op(name) for name in CHAIN_OPS]
    whole = compose_cuda(ops, "bf16", "bf16")
    arrays = random_arrays(sizes, np.random.default_rng(0), 3)
    seen = set()
    for seed in range(6):
        schedule = deal(chain(sizes, ops), 1 + seed, share="strided")
        verify(schedule)
        given = {name: array.copy() for name, array in arrays.items()}
        machine = HostMachine(whole, schedule, given, seed=seed)
        machine.poison()
        for _ in range(2):
            machine.step()
        x = machine.tensors["x"]
        assert np.isfinite(x[:3]).all() and (x[:3] != arrays["x"][:3]).any()
        seen.add(x[:3].tobytes())
    assert len(seen) == 1
