"""What the mixture-of-experts ops promise beyond their oracles: `transformers`' routers, ties,
containment of NaN, batch invariance, and that one expert is a dense feed-forward, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mkport.compose import Program
from mkport.declare.case import Case, from_bf16
from mkport.library import find_op
from mkport.testing.forms import Outputs, run_ported
from mkport.testing.law import EPS, measure
from mkport.testing.parts import load_part
from tests.kernels.cases import made
from tests.kernels.moe_chain import Arrays, Sizes, random_arrays, run

Programs = Callable[[str], Program]


@pytest.fixture
def program(library_program: Programs) -> Program:
    return library_program("bf16")


def chosen(program: Program, z: np.ndarray, k: int, **rule: Any) -> Outputs:
    """ids and weights of the rows of z."""
    case = made("topk", tokens=len(z), rows=len(z), experts=z.shape[1], k=k, **rule)
    case.arrays["z"][...] = z
    return run_ported(find_op("topk"), case, program)


# Each family's router in transformers: (module and class, config fields, the op's rule).
ROUTERS: dict[str, tuple[str, str, dict[str, Any], dict[str, int]]] = {
    "cohere2_moe sigmoid": (
        "cohere2_moe", "Cohere2MoeTopKRouter",
        {"expert_selection_fn": "sigmoid", "norm_topk_prob": False}, {},
    ),
    "cohere2_moe sigmoid renormalised": (
        "cohere2_moe", "Cohere2MoeTopKRouter",
        {"expert_selection_fn": "sigmoid", "norm_topk_prob": True}, {"renormalise": 1},
    ),
    "cohere2_moe softmax": (  # over the chosen ones alone: the same as renormalising
        "cohere2_moe", "Cohere2MoeTopKRouter",
        {"expert_selection_fn": "softmax", "norm_topk_prob": False},
        {"softmax": 1, "renormalise": 1},
    ),
    "qwen3_moe": (
        "qwen3_moe", "Qwen3MoeTopKRouter", {"norm_topk_prob": False}, {"softmax": 1},
    ),
    "qwen3_moe renormalised": (
        "qwen3_moe", "Qwen3MoeTopKRouter", {"norm_topk_prob": True},
        {"softmax": 1, "renormalise": 1},
    ),
    "mixtral": ("mixtral", "MixtralTopKRouter", {}, {"softmax": 1, "renormalise": 1}),
}  # fmt: skip


@pytest.mark.parametrize("family", ROUTERS)
@pytest.mark.parametrize(("experts", "k"), [(128, 8), (8, 2), (5, 5), (9, 1)])
def test_router_is_transformers(family: str, experts: int, k: int, program: Program) -> None:
    name, kind, fields, rule = ROUTERS[family]
    module = getattr(
        __import__(f"transformers.models.{name}.modeling_{name}", fromlist=[kind]), kind
    )
    config = SimpleNamespace(
        num_experts_per_tok=k,
        num_experts=experts,
        num_local_experts=experts,
        hidden_size=experts,
        **fields,
    )
    router = module(config)
    router.weight.data = torch.eye(experts)  # so that the hidden state is the logits
    z = 3 * np.random.default_rng(1).standard_normal((8, experts), np.float32)
    with torch.no_grad():
        _, plain, ids = router(torch.from_numpy(z))
    got = chosen(program, z, k, **rule)
    np.testing.assert_array_equal(got["ids"], ids.numpy())
    settings = {"softmax": 0, "renormalise": 0} | rule
    exact = SimpleNamespace(
        count=[8], z=torch.from_numpy(z.astype(np.float64)), k=k, scale=1.0, **settings
    )
    truth = load_part(find_op("topk"), "oracle").oracle(exact)["weights"].numpy()
    assert np.abs(plain.numpy() - truth).max() < 1e-6  # the rule is theirs
    assert measure(got["weights"], truth, plain.numpy(), EPS["float32"]).ok


def test_lower_index_wins_ties(program: Program) -> None:
    z = np.zeros((4, 20), np.float32)
    z[1, ::2] = -0.0  # equal to 0.0
    z[2] = np.tile([1, 3, 3, 2, 3], 4)
    z[3] = -7.5
    ids = chosen(program, z, 5)["ids"]
    np.testing.assert_array_equal(ids[[0, 1, 3]], np.tile(np.arange(5), (3, 1)))
    np.testing.assert_array_equal(ids[2], [1, 2, 4, 6, 7])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("softmax", [0, 1])
@pytest.mark.parametrize("place", [0, 16, 36])
def test_strange_logit_stays_in_its_row(
    bad: float, softmax: int, place: int, program: Program
) -> None:
    z = np.random.default_rng(2).standard_normal((4, 37), np.float32)
    clean = chosen(program, z, 3, softmax=softmax)
    z[1, place] = bad
    got = chosen(program, z, 3, softmax=softmax)
    assert (got["ids"][1] == -1).all() and np.isnan(got["weights"][1]).all()
    for name in ("ids", "weights"):
        others = [0, 2, 3]
        assert got[name][others].tobytes() == clean[name][others].tobytes()


CHAINS = {
    "sigmoid": Sizes(),
    "softmax, renormalised": Sizes(softmax=True, renormalise=True),
    "one of many": Sizes(experts=37, top=1, ffn=37 + 11),
    "all experts": Sizes(experts=4, top=4, softmax=True),
    "one expert": Sizes(experts=1, top=1),
    "8 of 128": Sizes(experts=128, top=8, hidden=48, ffn=16),
    "more than four tokens an expert": Sizes(tokens=13, experts=2, top=1),
    "two layers": Sizes(layers=2, renormalise=True),
    "grouped at once": Sizes(layers=2, softmax=True, at_once=True),
}


def reference(s: Sizes, arrays: Arrays, kind: str, ids: np.ndarray) -> np.ndarray:
    """The layer in torch, expert after expert, with the given choices: x afterwards."""

    def wide(name: str) -> torch.Tensor:
        array = arrays[name]
        return torch.from_numpy(
            (from_bf16(array) if array.dtype == np.uint16 else array).astype(kind)
        )

    rows = int(arrays["count"][0])
    x = wide("x")[:rows]
    h = x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6) * wide("norm0")
    z = h @ wide("router0").T
    scores = torch.softmax(z, 1) if s.softmax else torch.sigmoid(z)
    weights = scores.gather(1, torch.from_numpy(ids[:rows].astype(np.int64)))
    if s.renormalise:
        weights = weights / weights.sum(1, keepdim=True)
    out = torch.zeros_like(x)
    for t in range(rows):
        for c in range(s.top):
            gate, up = (wide("gate_up0")[ids[t, c]] @ h[t]).split(s.ffn)
            down = wide("down0")[ids[t, c]] @ (torch.nn.functional.silu(gate) * up)
            out[t] += weights[t, c] * down
    return (x + out).numpy()


@pytest.mark.parametrize("name", [n for n, s in CHAINS.items() if s.layers == 1])
def test_chain_against_torch(name: str, program: Program) -> None:
    s = CHAINS[name]
    rows = s.tokens - 1
    arrays = random_arrays(s, np.random.default_rng(3), rows)
    got = run(s, arrays, program)
    best_first = np.argsort(-got["z"][:rows], axis=1, kind="stable")[:, : s.top]
    np.testing.assert_array_equal(got["ids"][:rows], best_first)
    truth, plain = (reference(s, arrays, kind, got["ids"]) for kind in ("float64", "float32"))
    found = measure(got["x"][:rows], truth, plain, EPS["float32"])
    assert found.ok, found
    assert np.isnan(got["x"][rows:]).all()  # the idle row was not touched


@pytest.mark.parametrize("name", CHAINS)
def test_token_does_not_see_its_batch(name: str, program: Program) -> None:
    s = CHAINS[name]
    arrays = random_arrays(s, np.random.default_rng(4), s.tokens)
    whole = run(s, arrays, program, workers=3)
    for t in range(0, s.tokens, 3):
        alone = replace(s, tokens=1)
        got = run(alone, arrays | {"x": arrays["x"][t : t + 1], "count": one()}, program)
        for tensor in ("ids", "chosen", "x"):
            assert got[tensor][0].tobytes() == whole[tensor][t].tobytes(), (tensor, t)
    order = np.random.default_rng(5).permutation(s.tokens)
    shuffled = run(s, arrays | {"x": arrays["x"][order]}, program, workers=1)
    assert shuffled["x"].tobytes() == whole["x"][order].tobytes()


def one() -> np.ndarray:
    return np.array([1], np.int32)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["sigmoid", "softmax, renormalised", "8 of 128", "two layers"])
def test_strange_token_stays_in_its_row(name: str, bad: float, program: Program) -> None:
    s = CHAINS[name]
    arrays = random_arrays(s, np.random.default_rng(6), s.tokens)
    clean = run(s, arrays, program)
    arrays["x"][3, 5] = bad
    got = run(s, arrays, program)
    others = [t for t in range(s.tokens) if t != 3]
    assert (got["ids"][3] == -1).all() and np.isnan(got["x"][3]).all()
    assert got["x"][others].tobytes() == clean["x"][others].tobytes()
    assert got["slots"][-1, 1] == len(others) * s.top  # it is in no expert's list


def test_a_choice_that_groups_is_a_choice_then_a_grouping(program: Program) -> None:
    case = made("topk", tokens=8, rows=7, experts=37, k=5, softmax=1, lost=(0, 3), group=1)
    got = run_ported(find_op("topk"), case, program)
    alone = case.copy()
    lists = {name: alone.arrays.pop(name) for name in ("pairs", "slots")}
    slots, alone.values["slot_count"] = alone.values["slot_count"], 0
    alone.outputs = ("ids", "weights")
    want = run_ported(find_op("topk"), alone, program)
    arrays = {"count": alone.arrays["count"], "ids": want["ids"], **lists}
    values = {"experts": 37, "k": 5, "slot_count": slots}
    want |= run_ported(find_op("moe_group"), Case(arrays, values, ("slots", "pairs")), program)
    assert {name: a.tobytes() for name, a in got.items()} == {
        n: a.tobytes() for n, a in want.items()
    }
    assert (got["pairs"][:25] >= 0).all() and (got["pairs"][25:] == -7).all()


@pytest.mark.parametrize(("norm", "op"), [("root", "rmsnorm"), ("mean", "layernorm")])
@pytest.mark.parametrize("n", [16, 80, 1040])
def test_a_sum_that_norms_is_a_sum_then_a_norm(
    norm: str, op: str, n: int, program: Program
) -> None:
    case = made("moe_combine", tokens=4, rows=3, n=n, top=5, norm=norm)
    got = run_ported(find_op("moe_combine"), case, program)
    alone = case.copy()
    w, h = (alone.arrays.pop(name) for name in ("w", "h"))
    alone.outputs = ("x",)
    x = run_ported(find_op("moe_combine"), alone, program)["x"]
    values = {"k": n, "eps": case.values["eps"]} | ({"groups": 1} if op == "rmsnorm" else {})
    arrays = {"count": alone.arrays["count"], "x": x, "w": w, "y": h}
    y = run_ported(find_op(op), Case(arrays, values, ("y",)), program)["y"]
    assert got["x"].tobytes() == x.tobytes() and got["h"].tobytes() == y.tobytes()
    assert np.isnan(got["h"][3:]).all() and np.isfinite(got["h"][:3]).all()


def test_all_tokens_to_the_same_experts(program: Program) -> None:
    s = Sizes(tokens=11, experts=16, top=3)
    arrays = random_arrays(s, np.random.default_rng(7), s.tokens)
    arrays["x"][:] = arrays["x"][0]
    got = run(s, arrays, program)
    assert (got["slots"][:3, 0] == np.sort(got["ids"][0])).all()
    np.testing.assert_array_equal(got["slots"][:3, 1], [0, 11, 22])
    assert (got["slots"][3:] == (-1, 33)).all()  # the other 13 experts have no token
    assert len({row.tobytes() for row in got["x"]}) == 1


def test_gate_and_up_in_one_tensor(program: Program) -> None:
    op = find_op("moe_up")
    case = made("moe_up", tokens=7, experts=5, top=2, n=37, k=80, fused=True)
    split = case.copy()
    both = split.arrays["w_gate"]
    split.arrays["w_gate"] = np.ascontiguousarray(both[:, :37])
    split.arrays["w_up"] = np.ascontiguousarray(both[:, 37:])
    split.values["up_row"] = 0
    got, want = (run_ported(op, c, program)["act"] for c in (case, split))
    assert got.tobytes() == want.tobytes() and not np.isnan(got).any()


def test_one_expert_is_gemm_silu_then_gemm(program: Program) -> None:
    n, k, tokens = 53, 176, 6
    up = made("moe_up", tokens=tokens, experts=1, top=1, n=n, k=k)
    act = run_ported(find_op("moe_up"), up, program)["act"]
    dense = made("gemm_silu", tokens=tokens, rows=tokens, n=n, k=k)
    for name in ("w_gate", "w_up"):
        dense.arrays[name] = up.arrays[name][0].copy()
    dense.arrays["x"] = up.arrays["x"]
    assert run_ported(find_op("gemm_silu"), dense, program)["y"].tobytes() == act.tobytes()

    down = made("moe_down", tokens=tokens, experts=1, top=1, n=n, k=k)
    y = run_ported(find_op("moe_down"), down, program)["y"]
    dense = made("gemm", tokens=tokens, rows=tokens, n=n, k=k)
    dense.arrays["w"] = down.arrays["w"][0].copy()
    dense.arrays["x"] = down.arrays["act"]
    assert run_ported(find_op("gemm"), dense, program)["y"].tobytes() == y.tobytes()
