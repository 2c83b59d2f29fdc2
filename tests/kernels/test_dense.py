"""What the dense ops promise beyond their oracles: batch invariance, containment of NaN, ties,
other libraries' rotary pairs and norms, and that a fused op is its parts, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mkport.compose import Program, compose_cpu
from mkport.declare.case import Case, from_bf16
from mkport.errors import UserError
from mkport.kernels.gemm.op import WIDENED, wide_bytes
from mkport.library import find_op
from mkport.machines.cpu.dot import MANY, NEAR
from mkport.testing import check_op
from mkport.testing.forms import run_ported
from tests.kernels.cases import PRODUCTS, made, normed_apart

Programs = Callable[[str], Program]
Run = Callable[[str, Case], np.ndarray]

BATCH = 8
BATCHED: dict[str, dict[str, Any]] = {
    "gemm": {"n": 77, "k": 176, "residual": True},
    "gemm_silu": {"n": 77, "k": 176, "norm": 2.0},
    "gemm_rope": {"heads": 2, "head_dim": 48, "k": 176},
    "rope": {"heads": 2, "head_dim": 48},
    "rmsnorm": {"groups": 3, "k": 80},
    "layernorm": {"k": 80},
}
BY_TOKEN = ("x", "rows", "residual", "y")  # arguments with a row for each token


@pytest.fixture
def run(library_program: Programs) -> Run:
    """Runs a case through the op's body and returns its one output."""

    def run_case(name: str, case: Case) -> np.ndarray:
        outputs = run_ported(find_op(name), case, library_program("bf16"))
        return outputs[case.outputs[0]]

    return run_case


def batch_of(name: str) -> Case:
    return made(name, tokens=BATCH, rows=BATCH, **BATCHED[name])


def only(case: Case, rows: slice) -> Case:
    """The case with some of its tokens alone."""
    part = case.copy()
    for name in BY_TOKEN:
        if name in part.arrays:
            part.arrays[name] = part.arrays[name][rows].copy()
    part.arrays["count"][0] = len(part.arrays["x"])
    return part


def bits(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("name", BATCHED)
def test_a_row_has_the_same_bits_in_any_batch(name: str, run: Run) -> None:
    case = batch_of(name)
    whole = run(name, case)
    for end in range(1, BATCH + 1):
        assert bits(run(name, only(case, slice(0, end)))) == bits(whole[:end])
    for row in range(BATCH):
        assert bits(run(name, only(case, slice(row, row + 1)))) == bits(whole[row])


@pytest.mark.parametrize("k", [176, WIDENED, WIDENED + 16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_row_has_the_same_bits_where_weights_are_widened(name: str, k: int, run: Run) -> None:
    case = made(name, tokens=40, rows=40, k=k, **PRODUCTS[name])
    whole = run(name, case)
    for end in (MANY - 1, MANY, MANY + 1, 2 * MANY):
        assert bits(run(name, only(case, slice(0, end)))) == bits(whole[:end])
    for row in (0, MANY, 39):
        assert bits(run(name, only(case, slice(row, row + 1)))) == bits(whole[row])


def test_a_tile_of_the_longest_rows_that_are_widened_has_room() -> None:
    assert WIDENED == NEAR
    assert wide_bytes(NEAR) == 4 * 16 * NEAR


def test_a_body_that_writes_behind_its_arena_is_refused() -> None:
    less = replace(find_op("gemm_silu"), arena=lambda a: 2 * 12288)
    case = made("gemm_silu", tokens=MANY, rows=MANY, n=40, k=48)
    with pytest.raises(
        UserError, match=r"gemm_silu writes to byte \d+ of its arena, which has 24576"
    ):
        run_ported(less, case, compose_cpu([less], "bf16", "bf16", "One op"))


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_stays_alone(name: str, bad: float, run: Run) -> None:
    case = batch_of(name)
    whole = run(name, case)
    case.arrays["x"][3, 5] = bad
    broken = run(name, case)
    others = np.arange(BATCH) != 3
    assert bits(broken[others]) == bits(whole[others])
    assert not np.isfinite(broken[3]).all()


def test_a_broken_row_reaches_its_own_slot_of_the_cache_alone(run: Run) -> None:
    case = made("gemm_rope", tokens=8, rows=8, heads=2, head_dim=32, k=48, cached=True)
    whole = from_bf16(run("gemm_rope", case))
    case.arrays["x"][3] = np.nan
    broken = from_bf16(run("gemm_rope", case))
    sequence, position = case.arrays["rows"][3]
    page = case.arrays["page_table"][sequence, position // case.values["page"]]
    slot = (page, slice(None), position % case.values["page"])
    assert np.isnan(broken[slot]).all()
    broken[slot] = whole[slot]
    assert bits(broken) == bits(whole)


@pytest.mark.parametrize("k", [16, 48, 80, 576])
@pytest.mark.parametrize("half_split", [0, 1])
@pytest.mark.parametrize("cached", [False, True])
def test_gemm_rope_is_gemm_then_rope(k: int, half_split: int, cached: bool, run: Run) -> None:
    shape: dict[str, Any] = {"tokens": 6, "rows": 5, "heads": 3, "head_dim": 48}
    fused = made("gemm_rope", **shape, k=k, half_split=half_split, cached=cached)
    n = 3 * 48
    arrays = {name: fused.arrays[name] for name in ("count", "x", "w")}
    product = Case(arrays | {"y": np.full((6, n), np.nan, np.float32)}, {"n": n, "k": k}, ("y",))
    y = run("gemm", product)
    arrays = {name: array for name, array in fused.arrays.items() if name not in ("w", "x")}
    gone = ("k", "block", "norm_eps")
    values = {name: value for name, value in fused.values.items() if name not in gone}
    after = Case(arrays | {"x": y}, values | {"eps": 0.0}, fused.outputs, fused.logical)
    assert bits(run("gemm_rope", fused)) == bits(run("rope", after))


@pytest.mark.parametrize("k", [16, 80, 4096])
@pytest.mark.parametrize("name", ["gemm", "gemm_rope", "gemm_silu"])
def test_a_product_of_normed_rows_is_rmsnorm_then_the_product(name: str, k: int, run: Run) -> None:
    fused, after = normed_apart(name, k, run)
    assert bits(run(name, fused)) == bits(run(name, after))


@pytest.mark.parametrize("head_dim", [16, 48, 128, 272])
@pytest.mark.parametrize("cached", [False, True])
def test_rope_of_normed_heads_is_rmsnorm_then_rope(head_dim: int, cached: bool, run: Run) -> None:
    shape: dict[str, Any] = {"tokens": 3, "rows": 2, "heads": 11, "head_dim": head_dim}
    fused = made("rope", **shape, cached=cached, eps=1e-5)
    first = {name: fused.arrays[name] for name in ("count", "x", "w")}
    first["y"] = np.full((3, 11 * head_dim), np.nan, np.float32)
    normed = run("rmsnorm", Case(first, {"groups": 11, "k": head_dim, "eps": 1e-5}, ("y",)))
    arrays = {name: array for name, array in fused.arrays.items() if name not in ("w", "x")}
    values = fused.values | {"eps": 0.0}
    after = Case(arrays | {"x": normed}, values, fused.outputs, fused.logical)
    assert bits(run("rope", fused)) == bits(run("rope", after))


@pytest.mark.parametrize("half_split", [1, 0])
def test_rope_rotates_as_transformers_does(half_split: int, run: Run) -> None:
    import torch
    from transformers.models.cohere import modeling_cohere
    from transformers.models.llama import modeling_llama

    case = made("rope", tokens=8, rows=8, heads=3, head_dim=64, half_split=half_split)
    angles = torch.from_numpy(case.arrays["rope"])[case.arrays["rows"][:, 1].tolist()]
    c, s = angles.chunk(2, dim=-1)  # [tokens, pairs]
    x = torch.from_numpy(case.arrays["x"]).reshape(8, 3, 64).transpose(0, 1)[None]
    if half_split:
        full = [torch.cat([part, part], dim=-1)[None] for part in (c, s)]
        theirs, _ = modeling_llama.apply_rotary_pos_emb(x, x, *full)
    else:
        full = [part.repeat_interleave(2, dim=-1)[None] for part in (c, s)]
        theirs, _ = modeling_cohere.apply_rotary_pos_emb(x, x, *full)
    close(run("rope", case).reshape(8, 3, 64), theirs[0].transpose(0, 1).numpy())


def test_rmsnorm_is_llama_s(run: Run) -> None:
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    case = batch_of("rmsnorm")
    norm = LlamaRMSNorm(80, eps=case.values["eps"])
    norm.weight.data = torch.from_numpy(case.arrays["w"])
    with torch.no_grad():
        theirs = norm(torch.from_numpy(case.arrays["x"]).reshape(BATCH, 3, 80))
    close(run("rmsnorm", case), theirs.reshape(BATCH, 240).numpy())


def test_layernorm_is_cohere_s(run: Run) -> None:
    import torch
    from transformers.models.cohere.modeling_cohere import CohereLayerNorm

    case = batch_of("layernorm")
    norm = CohereLayerNorm(80, eps=case.values["eps"])
    norm.weight.data = torch.from_numpy(case.arrays["w"])
    with torch.no_grad():
        theirs = norm(torch.from_numpy(case.arrays["x"]))
    close(run("layernorm", case), theirs.numpy())


def test_layernorm_keeps_its_digits_far_from_zero(run: Run) -> None:
    case = made("layernorm", tokens=8, rows=8, k=576, mean=1000.0)
    x = case.arrays["x"].astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    exact = centred / np.sqrt(variance + case.values["eps"]) * case.arrays["w"]
    close(run("layernorm", case), exact.astype(np.float32))


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal but for float32 rounding: four units in the last place of the largest value."""
    assert ours.dtype == theirs.dtype == np.float32
    assert np.abs(ours - theirs).max() <= 4 * np.finfo(np.float32).eps * np.abs(theirs).max()


TAILED: dict[str, dict[str, Any]] = {
    "gemm": {"tokens": 5, "n": 20},
    "gemm_silu": {"tokens": 5, "n": 20},
    "gemm_rope": {"tokens": 5, "heads": 1, "head_dim": 32},
    "rmsnorm": {"tokens": 2, "groups": 2},
    "layernorm": {"tokens": 2},
}


@pytest.mark.parametrize("name", TAILED)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_tail_of_k(name: str, dtype: str, library_program: Programs) -> None:
    shape = TAILED[name] | {"rows": TAILED[name]["tokens"]}
    shapes = {f"k = {k}": shape | {"k": k} for k in (16, 48, 80, 576)}
    lawful(name, shapes, library_program(dtype))


@pytest.mark.parametrize("name", ["gemm", "gemm_silu"])
def test_every_tail_of_the_columns(name: str, library_program: Programs) -> None:
    shapes = {
        f"n = {n}": {"tokens": 6, "rows": 5, "n": n, "k": 48} for n in (1, 2, 15, 16, 17, 31, 33)
    }
    lawful(name, shapes, library_program("bf16"))


def lawful(name: str, shapes: dict[str, dict[str, Any]], program: Program) -> None:
    """Within the tolerance law and with the standalone kernel's bits."""
    for verdict in check_op(find_op(name), shapes=shapes, dtype=program.weights, program=program):
        assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["gemm", "rope", "rmsnorm", "layernorm"])
def test_in_place_gives_the_same_bits(name: str, run: Run) -> None:
    apart = batch_of(name)
    together = apart.copy()
    source = "residual" if name == "gemm" else "x"
    together.arrays["y"] = together.arrays[source]
    assert bits(run(name, together)) == bits(run(name, apart))


# Around the bodies' vectors of 16 and blocks of 512, for rows with and without a tail.
PLACES = (0, 1, 15, 16, 511, 512, 527, 1023, 1024, 1039)


def logits(*rows: np.ndarray) -> Case:
    x = np.stack(rows).astype(np.float32)
    y = np.full(len(x), -7, np.int32)
    return Case({"count": np.array([len(x)], np.int32), "x": x, "y": y}, {"n": x.shape[1]}, ("y",))


@pytest.mark.parametrize("n", [1040, 1044])
def test_argmax_finds_the_first_of_equals_anywhere(n: int, run: Run) -> None:
    places = [*PLACES, n - 1]
    base = -1 - np.random.default_rng(n).random(n, np.float32)  # all below -1
    rows, wanted = [], []
    for i, first in enumerate(places):
        for second in places[i:]:
            row = base.copy()
            row[[first, second]] = -0.5
            rows.append(row)
            wanted.append(first)
    assert run("argmax", logits(*rows)).tolist() == wanted


def test_argmax_of_equal_and_extreme_rows(run: Run) -> None:
    lowest, zeros = np.full(600, np.finfo(np.float32).min), np.zeros(600)
    zeros[:40] = -0.0  # equal to 0.0, so the first one wins
    assert run("argmax", logits(lowest, zeros, np.arange(600), -np.arange(600))).tolist() == [
        0, 0, 599, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_argmax_refuses_a_row_that_is_not_finite(bad: float, run: Run) -> None:
    rows = []
    for place in (*PLACES, 1043):
        row = np.arange(1044, dtype=np.float32)
        row[place] = bad
        rows += [row, np.arange(1044, dtype=np.float32)]
    assert run("argmax", logits(*rows)).tolist() == [-1, 1043] * (len(rows) // 2)


def test_argmax_leaves_idle_rows_alone(run: Run) -> None:
    case = logits(np.arange(5), np.arange(5), np.arange(5))
    case.arrays["count"][0] = 2
    assert run("argmax", case).tolist() == [4, 4, -7]


def test_embed_and_select_copy_a_broken_row_to_itself_alone(run: Run) -> None:
    embed = made("embed", tokens=8, rows=8, vocabulary=8, k=48)
    embed.arrays["tokens"][:] = [3, 0, 1, 2, 4, 5, 6, 7]
    embed.arrays["table"][3] = 0x7FC0  # NaN
    y = run("embed", embed)
    assert np.isnan(y[0]).all() and np.isfinite(y[1:]).all()
    select = made("select", tokens=8, rows=3, selected=3, k=48)
    select.arrays["x"][select.arrays["index"][1]] = np.nan
    y = run("select", select)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()
