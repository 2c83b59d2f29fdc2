"""A step's prompt tokens follow from how long steps take."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from mkport.engine.pace import BUDGET, EVERY, LEAST, PAUSE_S, Legs, Pace
from mkport.engine.scheduler import Limits, Scheduler
from mkport.engine.sequence import Plan, Sequence

STEPS = 200


def machine(a_row: float, least: float) -> Callable[[int, int], float]:
    """Seconds of a step: memory sets a floor, then every row counts."""
    return lambda decoding, prompt: max(least, 0.004 + a_row * (decoding + prompt))


def settled(
    pace: Pace, took: Callable[[int, int], float], decoding: int, alone: int = 10
) -> list[int]:
    """The shares of many steps, less those without a prompt, behind so many of these."""
    for _ in range(alone):
        pace.landed(decoding, 0, took(decoding, 0))
    shares = []
    for _ in range(STEPS):
        shares.append(pace.share(decoding))
        pace.landed(decoding, shares[-1], took(decoding, shares[-1]))
    assert STEPS // (EVERY + 1) <= shares.count(0) <= STEPS // EVERY
    return [share for share in shares if share]


@pytest.mark.parametrize("decoding", [1, 3, 7])
@pytest.mark.parametrize("a_row, least", [(0.0015, 0.007), (0.0003, 0.007), (0.004, 0.0)])
def test_it_settles_just_inside_the_budget(decoding: int, a_row: float, least: float) -> None:
    took = machine(a_row, least)
    shares = settled(Pace(8, 64), took, decoding)
    last, allowed = shares[-1], BUDGET * took(decoding, 0)
    assert shares[0] == 8 and set(shares[60:]) <= {last - 1, last, last + 1}
    assert took(decoding, last) <= 1.03 * allowed or last == LEAST
    assert took(decoding, last + 2) > allowed or last == 64


def test_a_machine_s_hiccups_do_not_move_it() -> None:
    calm = machine(0.0015, 0.007)
    draw = random.Random(1)

    def hiccups(decoding: int, prompt: int) -> float:
        return calm(decoding, prompt) * (6 if draw.random() < 0.1 else 1)

    wanted = settled(Pace(8, 64), calm, 7)[-1]
    assert set(settled(Pace(8, 64), hiccups, 7)[60:]) <= {wanted - 1, wanted, wanted + 1}


def test_it_is_right_again_when_everything_takes_longer_or_less_long() -> None:
    """What steps without prompts took before says nothing then."""
    fast, slow = machine(0.0015, 0.007), machine(0.0045, 0.021)
    pace = Pace(8, 64)
    once = settled(pace, fast, 7)[-1]
    after = settled(pace, slow, 7, alone=0)
    assert abs(after[-1] - settled(Pace(8, 64), slow, 7)[-1]) <= 1
    assert abs(settled(pace, fast, 7, alone=0)[-1] - once) <= 1


def test_few_tokens_say_little_and_nothing_is_no_reason_to_change() -> None:
    pace = Pace(8, 64)
    pace.landed(0, 64, 0.1)
    pace.landed(7, 8, 0.03)
    assert pace.share(7) == 8, "what a step takes without a prompt is not known"
    pace.landed(7, 0, 0.016)
    pace.landed(7, 1, 0.026)
    assert pace.share(7) == 8
    pace.landed(7, 8, 0.016)
    assert [pace.share(7) for _ in range(60)] == [*range(9, 64), 64, 64, 64, 64, 64]


@pytest.mark.parametrize("a_token, wanted", [(0.002, 4), (0.0001, 48)])
def test_a_scheduler_follows_it_where_it_may(a_token: float, wanted: int) -> None:
    limits = Limits(4096, 64, ((200, 0),), sequences=4, rows=68, chunk=64, mixed_chunk=8)
    assert _chunk_beside_one(limits, a_token) == 8
    assert _chunk_beside_one(replace(limits, paced=True), a_token) == wanted


def _chunk_beside_one(limits: Limits, a_token: float) -> int:
    """Tokens of a long prompt in a late step, where a step takes 6 ms and so much a prompt token;
    positions take no longer."""
    scheduler = Scheduler(limits)
    decoding, prompt = Sequence(0, [1], 1), Sequence(1, [2] * 3000, 3000)
    scheduler.add(decoding)
    count = 0
    for step in range(80):
        if step == 12:
            scheduler.add(prompt)
        plan = scheduler.plan()
        for part in plan.parts:
            count = part.count if part.sequence is prompt else count
        scheduler.commit(plan, 0.006 + a_token * plan.prompt)
        decoding.tokens.append(3)
    return count


@pytest.mark.parametrize(
    "a_leg, wanted", [(0.0017, [8, 8]), (0.0036, [4, 4, 4, 4]), (0.03, [1] * 16)]
)
def test_legs_fit_into_the_pause_and_are_even(a_leg: float, wanted: list[int]) -> None:
    legs = Legs(16)
    assert _shares(legs, 512, a_leg)[0] == 1, "nothing is known"
    assert _shares(legs, 512, a_leg) == _shares(legs, 300, a_leg) == wanted
    assert all(share * a_leg <= PAUSE_S for share in wanted) or wanted[0] == 1
    legs.landed(512, 4, 5.0)  # a hiccup
    assert _shares(legs, 512, a_leg) == wanted
    assert legs.share(600, 0) == 1, "a chunk of another size is another matter"


def test_legs_follow_what_they_take_now() -> None:
    legs = Legs(16)
    for _ in range(3):
        _shares(legs, 512, 0.001)
    assert _shares(legs, 512, 0.001) == [16]
    for _ in range(3):
        _shares(legs, 512, 0.004)
    assert _shares(legs, 512, 0.004) == [4, 4, 4, 4]


def _shares(legs: Legs, tokens: int, a_leg: float) -> list[int]:
    shares: list[int] = []
    while sum(shares) < legs.legs:
        shares.append(legs.share(tokens, sum(shares)))
        legs.landed(tokens, shares[-1], shares[-1] * a_leg)
    return shares


def test_a_chunk_beside_others_goes_by_legs_and_alone_at_once() -> None:
    """Steps are planned ahead of what is known of the one before; who decodes has a row in each
    and waits for no more legs than fit."""
    sizes = Limits(4096, 64, ((200, 0),), 4, 1028, chunk=1024, mixed_chunk=512, legs=16, short=16)
    scheduler, a_leg = Scheduler(sizes), 0.0017
    decoding, prompt = Sequence(0, [1], 1), Sequence(1, [2] * 4000, 4000)
    scheduler.add(decoding)
    seen: list[tuple[int, int]] = []
    waiting: list[Plan] = []
    for step in range(40):
        if step == 2:
            scheduler.add(prompt)
        waiting.append(scheduler.plan(behind=bool(waiting)))
        scheduler.launch(waiting[-1])
        decoding.tokens += [3] * (decoding.computed == len(decoding.tokens))
        decoding.over = step >= 10
        for part in waiting[-1].parts:
            if part.legs:
                assert part.sequence is prompt
                seen.append((part.legs[1] - part.legs[0], part.count))
                rows = [other.count for other in waiting[-1].parts if other is not part]
                assert rows == [1] * (step < 11)
        if len(waiting) > 1:
            landed = waiting.pop(0)
            scheduler.commit(landed, None, a_leg * _legs_in(landed) or None)
            if decoding.over and decoding in scheduler.running:
                scheduler.end(decoding)
    assert seen[:8] == [(1, 512), (1, 512), (7, 512), (7, 512), *[(8, 512)] * 4]
    assert seen[8:] == [(8, 512), (8, 512), (16, 1024), (16, 928)]


@pytest.mark.parametrize("phase", [0, 1], ids=["in step", "out of step"])
def test_who_waits_for_the_host_waits_for_one_pause(phase: int) -> None:
    """Two sequences whose tokens the host must see first take part in every other step. Between two
    of a sequence's tokens there are legs once, whichever steps it takes part in."""
    sizes = Limits(4096, 64, ((200, 0),), 4, 1028, chunk=1024, mixed_chunk=512, legs=16, short=16)
    scheduler = Scheduler(sizes)
    held, free, prompt = [Sequence(i, [1], 1) for i in (0, 1)], Sequence(2, [1], 1), [2] * 4000
    for sequence in (held[0], free, *held[1 : 2 - phase]):
        scheduler.add(sequence)
    pauses: dict[Sequence, list[int]] = {sequence: [] for sequence in held}
    waiting: list[Plan] = []
    for step in range(30):
        if step == 1 and phase:
            scheduler.add(held[1])
        if step == 4:
            scheduler.add(Sequence(3, prompt, len(prompt)))
        waiting.append(plan := scheduler.plan(behind=bool(waiting)))
        scheduler.launch(plan)
        free.tokens += [3] * (free.computed == len(free.tokens))
        for sequence in held:
            pauses[sequence].append(_legs_in(plan) > 0)
            if any(part.sequence is sequence for part in plan.parts):
                if 8 <= step < 28:
                    assert sum(pauses[sequence]) == 1
                pauses[sequence].clear()
        if len(waiting) > 1:
            landed = waiting.pop(0)
            scheduler.commit(landed, None, 0.0017 * _legs_in(landed) or None)
            for part in landed.parts:
                if part.sequence in held:
                    part.sequence.tokens.append(3)


def _legs_in(plan: Plan) -> int:
    return sum(part.legs[1] - part.legs[0] for part in plan.parts if part.legs)
