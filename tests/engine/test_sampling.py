"""Each field of a request's sampling does what a slow, plain reading of it does; a row's token does
not depend on its batch mates; a bad row fails alone."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkport.engine import noise
from mkport.engine.logprobs import FLOOR, token_logprob
from mkport.engine.request import Sampling
from mkport.engine.sampling import (
    NotFinite,
    NothingAllowed,
    RowError,
    Sampler,
    choose_all,
    draw_seed,
)
from mkport.engine.truncation import greatest_k, survivors

PLAIN = Sampling(max_tokens=100)
GREEDY = replace(PLAIN, temperature=0.0)


def row(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def bits(allowed: list[bool]) -> np.ndarray:
    padded = np.zeros(-(-len(allowed) // 32) * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.int32)


def slow_survivors(scores: list[float], min_p: float, top_k: int, top_p: float) -> set[int]:
    """The definitions word by word, over Python floats."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if min_p:
        order = [i for i in order if math.exp(scores[i] - max(scores)) >= min_p * (1 - 1e-6)]
    if top_k:
        order = order[:top_k]
    weights = [math.exp(scores[i] - max(scores)) for i in order]
    kept, reached = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if top_p < 1 and reached >= top_p * sum(weights):
            break
        kept.append(i)
        reached += weight
    return set(kept)


def slow_choice(sampler: Sampler, logits: list[float], out: list[int], position: int) -> int:
    """All steps in the documented order, one entry at a time; `out` are the tokens so far."""
    s, z = sampler.sampling, [float(x) for x in logits]
    for i in range(len(z)):
        if s.repetition_penalty != 1 and (i in out or i in (0, 3)):  # the prompt is [0, 3]
            z[i] = z[i] / s.repetition_penalty if z[i] > 0 else z[i] * s.repetition_penalty
        z[i] -= out.count(i) * s.frequency_penalty + (i in out) * s.presence_penalty
        z[i] += s.logit_bias.get(i, 0.0)
        if len(out) < s.min_tokens and i in (5, *s.stop_token_ids):  # 5 ends
            z[i] = -math.inf
    if s.temperature == 0:
        return max(range(len(z)), key=lambda i: (z[i], -i))
    z = [x / s.temperature for x in z]
    kept = sorted(slow_survivors(z, s.min_p, s.top_k, s.top_p))
    g = noise.gumbel(np.array(kept), sampler.seed, sampler.choice, position)
    return max(zip((z[i] + float(x) for i, x in zip(kept, g, strict=True)), kept, strict=True))[1]


FIELDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.5},
    {"top_p": 1e-9},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 6, "top_p": 0.7, "min_p": 0.05, "temperature": 1.7},
    {"repetition_penalty": 1.5, "temperature": 0.0},
    {"repetition_penalty": 0.5},
    {"frequency_penalty": 0.9, "temperature": 0.0},
    {"frequency_penalty": -0.4},
    {"presence_penalty": 1.5, "temperature": 0.0},
    {"logit_bias": {2: 3.0, 7: -100.0, 0: 0.0}},
    {"logit_bias": {6: 100.0}, "temperature": 0.0},
    {"min_tokens": 12, "stop_token_ids": (1, 4)},
    {"min_tokens": 12, "temperature": 0.0, "logit_bias": {5: 100.0}},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5, "top_p": 0.8},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_every_field_does_what_its_plain_reading_does(fields: dict[str, Any]) -> None:
    draw = np.random.default_rng(3)
    sampler = Sampler(replace(PLAIN, **fields), [0, 3], choice=2, seed=-5, ends=[5])
    out: list[int] = []
    for position in range(40):
        logits = draw.normal(0, 1.5, 9).astype(np.float32)
        before = logits.copy()
        expected = slow_choice(sampler, logits.tolist(), out, position)
        assert sampler.choose(logits, None, position) == expected
        assert (logits == before).all()
        out.append(expected)
    assert sampler.produced == 40
    if fields.get("min_tokens"):
        assert not {5, *sampler.sampling.stop_token_ids} & set(out[:12])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 5, 63, 64, 300, 2000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 6.0, 300.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.5]),
    top_k=st.sampled_from([0, 1, 3, 7, 70, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.31, 1e-6]),
    coarse=st.booleans(),
)
def test_survivors_are_those_of_the_definitions(
    seed: int, vocab: int, spread: float, min_p: float, top_k: int, top_p: float, coarse: bool
) -> None:
    scores = np.random.default_rng(seed).normal(0, spread, vocab).astype(np.float32)
    if coarse:  # many ties
        scores = np.round(scores)
    got = survivors(scores, min_p, top_k, top_p)
    assert (np.diff(got) > 0).all()
    expected = slow_survivors(scores.tolist(), min_p, top_k, top_p)
    # where a sum of shares falls on top_p itself, rounding decides: one token more or less
    assert set(got.tolist()) == expected or (
        top_p < 1 and len(expected ^ set(got.tolist())) == 1 and len(expected) > 1
    )


@settings(max_examples=60)
@given(seed=st.integers(0, 999), n=st.integers(1, 700), coarse=st.booleans(), data=st.data())
def test_the_k_greatest_with_the_lowest_indices_first(
    seed: int, n: int, coarse: bool, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, n))
    values = np.random.default_rng(seed).normal(0, 2, n).astype(np.float32)
    values = np.round(values) if coarse else values
    expected = sorted(sorted(range(n), key=lambda i: (-values[i], i))[:k])
    assert greatest_k(values, k).tolist() == expected


@pytest.mark.parametrize(
    "fields", [{}, {"top_p": 0.75}, {"top_k": 4}, {"min_p": 0.1}, {"temperature": 0.5}], ids=str
)
def test_draws_follow_the_distribution(fields: dict[str, Any]) -> None:
    sampling = replace(PLAIN, **fields)
    logits = np.log(row([0.4, 0.05, 0.25, 0.15, 0.1, 0.05]))
    scores = (logits / np.float32(sampling.temperature)).tolist()
    kept = sorted(slow_survivors(scores, sampling.min_p, sampling.top_k, sampling.top_p))
    weights = np.exp([scores[i] for i in kept])
    sampler, draws = Sampler(sampling, seed=11), 5000
    counts = np.bincount([sampler.choose(logits, None, p) for p in range(draws)], minlength=6)
    expected = draws * weights / weights.sum()
    assert counts.sum() == counts[kept].sum()
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < 20.5 + len(kept)  # rarer than one in a thousand at 5 degrees of freedom


def test_a_row_is_the_same_alone_and_in_any_crowd() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (len(FIELDS), 500)).astype(np.float32)
    mask = bits([i % 3 > 0 for i in range(500)])

    def fresh(i: int) -> Sampler:
        return Sampler(replace(PLAIN, **FIELDS[i]), [1, 2, 3], i % 3, seed=i, ends=[7])

    masks = [mask if i % 2 else None for i in range(len(FIELDS))]
    alone = [fresh(i).choose(logits[i], masks[i], 10 + i) for i in range(len(FIELDS))]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(FIELDS))
        crowd = choose_all(
            [fresh(i) for i in order],
            logits[order],
            [masks[i] for i in order],
            [10 + int(i) for i in order],
        )
        assert crowd == [alone[i] for i in order]


def test_choices_seeds_and_positions_differ_and_repeat() -> None:
    logits = np.zeros(1000, np.float32)

    def run(seed: int, choice: int) -> list[int]:
        sampler = Sampler(PLAIN, choice=choice, seed=seed)
        return [sampler.choose(logits, None, p) for p in range(5)]

    runs = [run(seed, choice) for seed in (0, 1, -(2**63)) for choice in (0, 1)]
    assert runs == [run(seed, choice) for seed in (0, 1, -(2**63)) for choice in (0, 1)]
    assert len({tuple(r) for r in runs}) == len(runs) and len(set(runs[0])) == 5
    assert -(2**63) <= draw_seed() < 2**63 and draw_seed() != draw_seed()


def test_masks_leave_only_what_they_allow() -> None:
    logits = row([5, 4, 3, 2, 1, 0] * 10)
    allowed = [i in (4, 33, 59) for i in range(60)]
    assert Sampler(GREEDY).choose(logits, bits(allowed), 0) == 33
    drawn = {Sampler(PLAIN, seed=s).choose(logits, bits(allowed), 0) for s in range(300)}
    assert drawn == {4, 33, 59}
    short = bits([False] * 31 + [True])  # a mask narrower than the logits allows nothing past it
    assert Sampler(GREEDY).choose(logits, short, 0) == 31


def test_a_grammar_that_only_ends_outranks_min_tokens() -> None:
    sampler = Sampler(replace(GREEDY, min_tokens=9), ends=[1, 2])
    assert sampler.choose(row([3, 2, 1, 0]), bits([False, False, True, False]), 0) == 2
    assert sampler.choose(row([3, 9, 1, 0]), bits([True, True, True, False]), 0) == 0


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"temperature": 9e-6}, {"top_k": 1}])
def test_equal_logits_go_to_the_lowest_id(fields: dict[str, Any]) -> None:
    assert Sampler(replace(PLAIN, **fields)).choose(row([0, 7, 1, 7, 7]), None, 3) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-8, 1e-5, 1e-4])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    sampler = Sampler(replace(PLAIN, temperature=temperature, top_p=0.9, min_p=0.1))
    assert [sampler.choose(row([-30000, 30000, 29999]), None, p) for p in range(20)] == [1] * 20


BAD: list[tuple[list[float], type[RowError]]] = [
    ([1, math.nan, 3], NotFinite),
    ([1, math.inf, 3], NotFinite),
    ([-math.inf] * 3, NothingAllowed),
]


@pytest.mark.parametrize("fields", FIELDS[:4] + FIELDS[8:11], ids=str)
@pytest.mark.parametrize(("values", "kind"), BAD)
def test_a_bad_row_fails_alone(
    values: list[float], kind: type[RowError], fields: dict[str, Any]
) -> None:
    samplers = [Sampler(GREEDY), Sampler(replace(PLAIN, **fields)), Sampler(GREEDY)]
    logits = np.stack([row([0, 1, 0]), row(values), row([0, 0, 1])])
    first, bad, last = choose_all(samplers, logits, [None] * 3, [4, 17, 9])
    assert (first, last) == (1, 2)
    assert type(bad) is kind or (type(bad) is NotFinite and kind is NothingAllowed)
    assert "position 17" in str(bad)
    assert [s.produced for s in samplers] == [1, 0, 1]


def test_a_mask_does_not_hide_a_bad_row_and_an_empty_one_is_named() -> None:
    only_first = bits([True, False, False])
    for sampling in (GREEDY, PLAIN):
        with pytest.raises(NotFinite, match="position 6"):
            Sampler(sampling).choose(row([1, math.nan, 3]), only_first, 6)
        with pytest.raises(NothingAllowed, match="position 6"):
            Sampler(sampling).choose(row([1, 2, 3]), bits([False] * 3), 6)


def test_minus_infinity_among_the_logits_never_comes() -> None:
    logits = row([-math.inf, 0.0, -math.inf, 0.0])
    for fields in FIELDS[:2] + FIELDS[4:8]:
        sampler = Sampler(replace(PLAIN, **fields), seed=1)
        assert {sampler.choose(logits, None, p) for p in range(50)} <= {1, 3}


def test_tokens_chosen_elsewhere_count() -> None:
    sampler = Sampler(replace(GREEDY, presence_penalty=2.0, min_tokens=1), ends=[0])
    sampler.accept(1)
    assert sampler.produced == 1 and sampler.choose(row([1.5, 2, 0]), None, 1) == 0


def test_log_probabilities_are_those_of_the_raw_row() -> None:
    logits = row([0.0, 3.0, 1.0, 3.0, -math.inf])
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    got = token_logprob(logits, 2, 3, 0)
    assert (got.id, [i for i, _ in got.top]) == (2, [1, 3, 2])
    assert got.logprob == pytest.approx(exact[2], abs=1e-6)
    assert [p for _, p in got.top] == pytest.approx(exact[[1, 3, 2]], abs=1e-6)
    assert (
        token_logprob(logits, 4, 0, 0).logprob == FLOOR and token_logprob(logits, 4, 0, 0).top == ()
    )
    assert len(token_logprob(logits, 0, 20, 0).top) == 5
    with pytest.raises(NotFinite, match="position 8"):
        token_logprob(row([math.nan] * 5), 1, 0, 8)
