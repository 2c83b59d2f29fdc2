"""Attention and its combine, chained: against PyTorch, and what may not change a row."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mkport.compose import Program
from mkport.declare import Op, spread_step
from mkport.declare.case import Case, from_bf16
from mkport.kernels.attention import oracle as attention
from mkport.kernels.attention.op import OP as ATTENTION
from mkport.kernels.attention.op import splits_kept
from mkport.kernels.attention_combine.op import OP as COMBINE
from mkport.testing.forms import run_ported, run_standalone
from mkport.testing.law import EPS, measure

Chain = Callable[[Case], np.ndarray]


@pytest.fixture(params=["standalone", "ported"])
def attend(request: pytest.FixtureRequest, library_program: Callable[[str], Program]) -> Chain:
    """Runs both ops of a case in one form; gives y [tokens, heads * head_dim]."""

    def form(op: Op, case: Case) -> np.ndarray:
        if request.param == "standalone":
            return run_standalone(op, case)[case.outputs[0]]
        return run_ported(op, case, library_program("bf16"))[case.outputs[0]]

    def run(case: Case) -> np.ndarray:
        values = {name: case.values[name] for name in ("heads", "head_dim", "splits", "window")}
        arrays = {name: case.arrays[name] for name in ("count", "rows")}
        arrays["partial"] = form(ATTENTION, case)
        arrays["y"] = np.full_like(case.arrays["q"], np.nan)
        return form(COMBINE, Case(arrays, values, ("y",), case.logical))

    return run


def make(seed: int, places: list[tuple[int, int]], **shape: int) -> Case:
    """A case with a bfloat16 cache; splits that nobody writes are NaN, as a poisoned step's are."""
    rng = np.random.default_rng(seed)
    case = attention.make(rng, "bf16", "bf16", places, **shape)
    case.arrays["partial"][...] = np.nan
    return case


def sdpa(case: Case, token: int, dtype: torch.dtype) -> np.ndarray:
    """One token's output by PyTorch: [heads * head_dim]."""
    a = case.a
    sequence, position = a.rows[token]
    oldest = max(position - a.window + 1, 0) if a.window else 0
    j = np.arange(oldest, position + 1)
    pages = a.page_table[sequence, j // a.page]
    keys, values = (
        torch.from_numpy(from_bf16(pool[pages, :, j % a.page])).to(dtype).transpose(0, 1)
        for pool in (a.k_pages, a.v_pages)
    )
    q = torch.from_numpy(a.q[token].reshape(a.heads, 1, a.head_dim)).to(dtype)
    group = a.heads // a.kv_heads
    out = torch.nn.functional.scaled_dot_product_attention(
        q, keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0), scale=a.scale
    )
    return out.flatten().numpy()


def assert_lawful(case: Case, y: np.ndarray) -> None:
    live = range(int(case.a.count[0]))
    truth = np.stack([sdpa(case, token, torch.float64) for token in live])
    plain = np.stack([sdpa(case, token, torch.float32) for token in live])
    found = measure(y[: len(live)], truth, plain, EPS["float32"])
    assert found.ok, f"{found.error} > {found.allowed} at {found.where}"
    assert np.isnan(y[len(live) :]).all()


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    longest = int(rng.choice([20, 300, 1500]))
    chunk = int(rng.integers(1, 4))  # tokens of each sequence
    places = [
        (sequence, int(start) + i)
        for sequence, start in enumerate(rng.integers(0, longest, int(rng.integers(1, 4))))
        for i in range(chunk)
    ]
    return make(
        seed,
        [places[i] for i in rng.permutation(len(places))],
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=int(rng.choice([16, 32, 64, 80, 128])),
        page=int(rng.choice([16, 48, 64])),
        window=int(rng.choice([0, 0, 1, 7, 16, 100, 512, 900])),
        tokens=len(places) + int(rng.integers(0, 3)),
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_against_pytorch(attend: Chain, seed: int) -> None:
    case = random_case(seed)
    assert_lawful(case, attend(case))


@pytest.mark.parametrize("window", [1, 16, 17, 511, 512, 513])
def test_windows_at_their_edges(attend: Chain, window: int) -> None:
    positions = sorted({max(window + by, 0) for by in (-2, -1, 0, 1)} | {1023, 1024, 1025})
    places = list(enumerate(positions))
    case = make(window, places, heads=2, kv_heads=1, head_dim=64, page=16, window=window)
    assert_lawful(case, attend(case))


def row_of(batch: Case, token: int, splits: int) -> Case:
    """A batch's token in a step of its own, with places for so many splits."""
    alone = batch.copy()
    alone.arrays["count"][0] = 1
    for name in ("rows", "q"):
        alone.arrays[name] = alone.arrays[name][token : token + 1].copy()
    kept(alone, splits, rows=1)
    return alone


@pytest.mark.parametrize("window", [0, 40])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(attend: Chain, window: int) -> None:
    places = [(0, 512), (1, 3), (1, 4), (2, 1199), (0, 511)]
    batch = make(1, places, heads=9, kv_heads=3, head_dim=64, page=16, window=window, tokens=7)
    together = attend(batch)
    for token in range(len(places)):
        alone = row_of(batch, token, splits_kept(places[token][1] + 1, window))
        assert attend(alone)[0].tobytes() == together[token].tobytes()


@pytest.mark.parametrize("window", [0, 7, 500])
@pytest.mark.parametrize(("group", "head_dim", "chunk"), [(3, 64, 40), (1, 64, 16), (8, 128, 5)])
def test_a_prompt_s_rows_have_the_same_bits_alone(
    attend: Chain, group: int, head_dim: int, chunk: int, window: int
) -> None:
    places = [(1, 3), *((0, 500 + i) for i in range(chunk)), (2, 40), *((2, i) for i in range(17))]
    heads = {"heads": 2 * group, "kv_heads": 2, "head_dim": head_dim}
    batch = make(window, places, **heads, page=16, window=window, tokens=len(places) + 1)
    together = attend(batch)
    assert np.isfinite(together[: len(places)]).all()
    for token in (0, 1, 12, 13, chunk - 1, chunk, chunk + 1, chunk + 2, len(places) - 1):
        alone = row_of(batch, token, splits_kept(places[token][1] + 1, window))
        assert attend(alone)[0].tobytes() == together[token].tobytes()


def test_a_nan_of_a_prompt_stays_in_its_row_and_head(attend: Chain) -> None:
    places = [(0, 300 + i) for i in range(20)]
    case = make(3, places, heads=6, kv_heads=2, head_dim=64, page=16)
    clean = attend(case).reshape(20, 6, 64)
    case.arrays["q"].reshape(20, 6, 64)[9, 4, 5] = np.nan
    spoiled = attend(case).reshape(20, 6, 64)
    assert np.isnan(spoiled[9, 4]).all()
    spoiled[9, 4] = clean[9, 4]
    assert spoiled.tobytes() == clean.tobytes()


@pytest.mark.parametrize("window", [1, 40, 513, 1025])
def test_places_for_more_splits_than_a_window_touches_change_nothing(
    attend: Chain, window: int
) -> None:
    places = [(0, 1535), (0, 1536), (1, 40), (2, 2047), (2, 2048), (2, 2049)]
    case = make(window, places, heads=4, kv_heads=2, head_dim=64, page=48, window=window)
    few = attend(case)
    assert case.values["splits"] == splits_kept(2050, window) < 5
    kept(case, splits_kept(2050, 0), rows=len(places))
    assert attend(case).tobytes() == few.tobytes()


def kept(case: Case, splits: int, rows: int) -> None:
    """Gives a case places for so many splits of each of its rows."""
    shape = case.arrays["partial"].shape
    case.arrays["partial"] = np.full((rows, splits, *shape[2:]), np.nan, np.float32)
    case.values |= {"splits": splits, "split_step": spread_step(splits)}
    case.logical["partial"] = case.arrays["partial"].shape[:3]


def test_a_nan_stays_in_its_row_and_head(attend: Chain) -> None:
    case = make(2, [(0, 300), (1, 20), (2, 270)], heads=6, kv_heads=2, head_dim=64, page=16)
    clean = attend(case).reshape(3, 6, 64)
    assert np.isfinite(clean).all()
    case.arrays["q"].reshape(3, 6, 64)[1, 4, 5] = np.nan
    spoiled = attend(case).reshape(3, 6, 64)
    assert np.isnan(spoiled[1, 4]).all()
    spoiled[1, 4] = clean[1, 4]
    assert spoiled.tobytes() == clean.tobytes()
