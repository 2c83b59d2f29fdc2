"""The engine's bookkeeping, without trusting a model: random steps over a runner of canaries."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from mkport.engine.core import Core
from mkport.engine.holdings import Holdings
from mkport.engine.job import Choice, Job
from mkport.engine.pace import Pace
from mkport.engine.prefix import Block, PrefixCache
from mkport.engine.request import Event, Sampling
from mkport.engine.sampling import Sampler
from mkport.engine.scheduler import Limits, Scheduler
from mkport.engine.sequence import Copy, Part, Plan, Restore, Save, Sequence
from mkport.engine.stream import EventStream
from mkport.engine.text import OutputText
from mkport.engine.tokenizer import Tokenizer
from tests.engine.oracle_runner import SHORT, VOCAB, LateRunner, OracleRunner, Wrong, continued

PAGE = 4
# one sequence alone nearly fills a pool, so that several preempt each other
SMALL = Limits(
    context=96,
    page=PAGE,
    pools=((30, 0), (20, 10)),
    sequences=5,
    rows=21,
    chunk=16,
    mixed_chunk=6,
    prompt_logits=3,
)


def limits(**changes: Any) -> Limits:
    return Limits(**{**vars(SMALL), **changes})


class World:
    """A core over canaries, what was asked of it, and what came of that."""

    def __init__(
        self, tokenizer: Tokenizer, sizes: Limits = SMALL, seed: int = 0, runner: Any = OracleRunner
    ) -> None:
        self.draw = random.Random(seed)
        self.runner = runner(sizes)
        self.core = Core(self.runner, ())
        self.tokenizer = tokenizer
        self.open: dict[str, tuple[Job, list[list[int]]]] = {}
        self.texts: list[list[int]] = []  # of outputs that ended, to be continued by other prompts
        self.ended: Counter[str] = Counter()
        self.forks = 0

    def add(
        self, prompt: list[int], max_tokens: int, n: int = 1, every: bool = False, **fields: Any
    ) -> Job:
        logprobs = 0 if every else None
        sampling = Sampling(
            max_tokens, temperature=0.0, ignore_eos=True, prompt_logprobs=logprobs, **fields
        )
        choices: list[Choice] = []
        for index in range(n):
            leader = choices[0].tokens if choices else None
            tokens = Sequence(0, list(prompt), len(prompt), every and leader is None, leader)
            text = OutputText(self.tokenizer)
            choices.append(Choice(index, Sampler(sampling, prompt, index), text, tokens))
        stream = EventStream(str(len(self.open) + sum(self.ended.values())), n, lambda: None)
        job = Job(stream, prompt, sampling, choices)
        self.core.add(job)
        self.open[stream.id] = job, [[] for _ in range(n)]
        return job

    def add_random(self) -> None:
        draw, context = self.draw, self.core.runner.limits.context
        prompt: list[int] = []
        if self.texts and draw.random() < 0.6:  # a follow-up turn, or the same prompt again
            prompt = draw.choice(self.texts)
            prompt = prompt[: draw.randint(1, len(prompt))] if draw.random() < 0.4 else prompt
        more = 0 if prompt and draw.random() < 0.3 else draw.randint(1, context // 2)
        prompt = [*prompt, *(draw.randrange(VOCAB) for _ in range(more))][: context - 1]
        n = draw.choice([1, 1, 1, 2, 3])
        for _ in range(draw.choice([1, 1, 2])):  # twins arrive together
            fields: dict[str, Any] = {}
            if draw.random() < 0.3:
                fields["stop_token_ids"] = tuple(draw.sample(range(VOCAB), 3))
            if draw.random() < 0.2:
                fields["logit_bias"] = {1: 0.0}  # the host chooses
            if draw.random() < 0.1:
                fields["logprobs"] = 1
            self.add(prompt, draw.randint(1, context), n, every=draw.random() < 0.1, **fields)

    def cancel(self) -> None:
        job, _ = self.draw.choice(list(self.open.values()))
        self.core.cancel(job)

    def step(self) -> None:
        """One round, and its events checked."""
        self.core.step()
        self.read()

    def read(self) -> None:
        for job, outputs in list(self.open.values()):
            while job.stream._events:
                self.check(job, next(job.stream), outputs)
            if not job.stream._open:
                del self.open[job.stream.id]
                self.texts = [*self.texts[-20:], [*job.prompt, *outputs[0]]]

    def check(self, job: Job, event: Event, outputs: list[list[int]]) -> None:
        own = outputs[event.choice]
        own += event.ids
        if event.reason is None:
            return
        self.ended[event.reason] += 1
        assert event.error == ""
        room = self.core.runner.limits.context - len(job.prompt)
        expected = continued(job.prompt, min(job.sampling.max_tokens, room))
        stops = [at for at, token in enumerate(expected) if token in job.sampling.stop_token_ids]
        if event.reason != "abort":
            assert own == expected[: stops[0] + 1 if stops else None]
            assert event.reason == ("stop" if stops else "length")
        assert own == expected[: len(own)]
        accepted = job.stream.accepted
        if own:
            assert accepted is not None and accepted.prompt_tokens == len(job.prompt)
            if job.sampling.prompt_logprobs is not None:
                assert len(accepted.prompt_logprobs) == len(job.prompt)

    def random_steps(self, steps: int, each: Callable[[], object] = lambda: None) -> None:
        for _ in range(steps):
            chance = self.draw.random()
            if chance < 0.12 and len(self.open) < 12:
                self.add_random()
            elif chance < 0.15 and self.open:
                self.cancel()
                self.read()
            elif chance < 0.155:
                self.core.scheduler.holdings.cache.reset()
            if self.core.scheduler.busy:
                self.step()
            each()

    def drain(self) -> None:
        while self.core.scheduler.busy:
            self.step()
        assert not self.open and not self.core.jobs
        self.core.scheduler.check()
        for pool in self.core.scheduler.holdings.pools:
            assert pool.held == 0 and pool.available == pool.pages


@pytest.fixture
def world(single_bytes: Tokenizer) -> Iterator[Callable[..., World]]:
    yield partial(World, single_bytes)


SIZES = {
    "both pools": SMALL,
    "a tight window pool": limits(pools=((60, 0), (9, 10)), sequences=4),
    "full layers alone": limits(pools=((26, 0),)),
    "sliding layers alone": limits(pools=((14, 10),)),
    "window of one": limits(pools=((40, 0), (12, 1))),
    "page above the window": limits(page=16, pools=((7, 0), (6, 7))),
    "window of whole pages": limits(pools=((30, 0), (20, 8))),
    "paced": limits(paced=True),
    "one at a time": limits(sequences=1, pools=((24, 0), (6, 10)), chunk=1, mixed_chunk=1),
    "few rows": limits(rows=5),
    "no cache": limits(prefix_cache=False),
    "by legs": limits(legs=5, short=SHORT),
    "by legs, one pool": limits(legs=2, short=SHORT, pools=((26, 0),), mixed_chunk=16),
}


@pytest.mark.parametrize("runner", [OracleRunner, LateRunner])
@pytest.mark.parametrize("name", SIZES)
def test_random_steps(world: Callable[..., World], name: str, runner: type[OracleRunner]) -> None:
    w = world(SIZES[name], seed=len(name), runner=runner)
    w.random_steps(1500)
    w.drain()
    scheduler = w.core.scheduler
    assert w.ended["length"] > 20 and w.ended["abort"] > 5 and not w.ended["error"]
    assert w.ended["stop"] > 5
    if isinstance(w.runner, LateRunner):
        assert w.runner.pending > 500
    assert (scheduler.found > 0) == SIZES[name].prefix_cache
    assert scheduler.preemptions > 0 or SIZES[name].sequences == 1
    assert (w.runner.between > 20 and w.runner.dropped > 0) == (SIZES[name].legs > 0)


@pytest.mark.slow
@pytest.mark.parametrize("runner", [OracleRunner, LateRunner])
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_random_steps(
    world: Callable[..., World], seed: int, runner: type[OracleRunner]
) -> None:
    for turn, sizes in enumerate(SIZES.values()):
        w = world(sizes, seed=100 * seed + turn, runner=runner)
        w.random_steps(25_000 // len(SIZES) + 1, lambda: None)
        w.drain()


@pytest.mark.parametrize("runner", [OracleRunner, LateRunner])
def test_pages_add_up_after_every_step(
    world: Callable[..., World], runner: type[OracleRunner]
) -> None:
    w = world(seed=5, runner=runner)
    w.random_steps(400, w.core.scheduler.check)
    w.drain()


@pytest.mark.parametrize("rows", [5, 21])
def test_a_prompt_never_stops_those_who_decode(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """With pages for all, everybody who decodes has a token in every step, and prompts take no more
    than their chunk beside them."""
    w = world(limits(rows=rows, pools=((200, 0), (200, 10))))
    scheduler, mixed, alone = w.core.scheduler, 0, list[int]()
    plan = scheduler.plan

    def watched(behind: bool = False) -> Plan:
        nonlocal mixed
        decoding = [s for s in scheduler.running if s.remaining == 1]
        queued = len(scheduler.running) + len(scheduler.waiting)
        found = plan(behind)
        counts = {part.sequence: part.count for part in found.parts}
        assert all(counts.get(s) == 1 for s in decoding)
        prompts = sum(count for s, count in counts.items() if s not in decoding and count > 1)
        readers = min(queued, SMALL.sequences) - len(decoding)
        share = min(SMALL.mixed_chunk * max(readers, 1), SMALL.chunk)
        assert prompts <= (share if decoding else SMALL.chunk)
        alone.append(prompts if readers == 1 and decoding else 0)
        mixed += bool(decoding and prompts)
        return found

    monkeypatch.setattr(scheduler, "plan", watched)
    w.random_steps(1500)
    w.drain()
    assert mixed > 50 and not scheduler.preemptions
    assert 1 < max(alone) <= SMALL.mixed_chunk


def test_prompts_go_on_without_a_share_when_nobody_else_can(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step without prompts is planned, and those who decode have no pages: the oldest, whose
    prompt is being read, must not wait for them."""
    w = world(limits(paced=True), seed=3)
    monkeypatch.setattr(Pace, "share", lambda self, decoding: w.draw.choice([0, 0, 3]))
    w.random_steps(3000)
    w.drain()
    assert w.core.scheduler.preemptions > 0 and not w.ended["error"]


def test_a_prompt_s_share_shrinks_as_its_tokens_take_longer() -> None:
    scheduler = Scheduler(limits(pools=((200, 0),), mixed_chunk=8, doubles=20))
    decoding, prompt = Sequence(0, [1], 1), Sequence(1, [2] * 90, 90)
    scheduler.add(decoding)
    counts = []
    while prompt.remaining:
        plan = scheduler.plan()
        scheduler.commit(plan)
        decoding.tokens.append(3)
        if prompt in scheduler.running:
            counts += [part.count for part in plan.parts if part.sequence is prompt]
        else:
            scheduler.add(prompt)
    assert counts[:3] == [8, 8 * 20 // 28, 8 * 20 // 33] and sum(counts) == 90
    assert counts == sorted(counts, reverse=True) and set(counts[-10:-1]) == {1}


class Swapped(OracleRunner):
    """Two rows of the page tables change places, once in a while."""

    def write(self, part: Part) -> None:
        super().write(part)
        if part.start % 11 == 10:
            for table in self.tables:
                table[[0, 1]] = table[[1, 0]]


class Stale(OracleRunner):
    """One slot in many is not written."""

    def write(self, part: Part) -> None:
        if part.start % 13 != 12:
            super().write(part)


class WrongResume(OracleRunner):
    """What comes back from the host comes in another order."""

    def move(self, move: Save | Restore | Copy) -> None:
        if isinstance(move, Restore):
            move = Restore(move.sequence, [pages[::-1] for pages in move.pages])
        super().move(move)


class NoCopy(OracleRunner):
    """A shared prompt's last page is not copied."""

    def move(self, move: Save | Restore | Copy) -> None:
        if not isinstance(move, Copy):
            super().move(move)


@pytest.mark.parametrize("runner", [Swapped, Stale, WrongResume, NoCopy])
def test_a_faulty_machine_is_noticed(world: Callable[..., World], runner: type) -> None:
    w = world(seed=1, runner=runner)
    with pytest.raises(Wrong):
        w.random_steps(3000)


def half_filled(holdings: Holdings, sequence: Sequence) -> None:
    """Enters a block when half of it is computed."""
    landed = sequence.landed
    sequence.landed = min(landed + PAGE // 2, len(sequence.tokens))
    real_enter(holdings, sequence)
    sequence.landed = landed


def unwritten(holdings: Holdings, sequence: Sequence, count: int) -> list[tuple[int, int, int]]:
    """Enters a step's blocks before the step has run."""
    new = real_extend(holdings, sequence, count)
    sequence.landed += count
    real_enter(holdings, sequence)
    sequence.landed -= count
    return new


def slides_early(holdings: Holdings, sequence: Sequence) -> None:
    """Releases a window's pages one token too early."""
    sequence.landed += 1
    real_slide(holdings, sequence)
    sequence.landed -= 1


def sees_less(cache: PrefixCache, pool: Any, position: int) -> int:
    """A window that is one block shorter when a prefix is looked up."""
    return real_first_seen(cache, pool, position + PAGE if pool.window else position)


def shares_too_much(
    cache: PrefixCache, block: Block, tokens: list[int]
) -> tuple[Block, int] | None:
    """Counts a token more than a block and a text share."""
    found = real_begun(cache, block, tokens)
    return found and (found[0], min(found[1] + 1, len(tokens)))


def shares_the_last_page(
    holdings: Holdings, sequence: Sequence, donor: Sequence, margin: int
) -> list[Copy] | None:
    copies = real_fork(holdings, sequence, donor, margin)
    if copies:
        for copy in copies:
            sequence.tables[copy.pool][-1] = copy.source
    return []


real_enter, real_extend, real_slide = Holdings.enter, Holdings.extend, Holdings.slide
real_first_seen, real_fork = PrefixCache.first_seen, Holdings.fork
real_begun = PrefixCache.begun


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Holdings, "enter", half_filled),
        (Holdings, "extend", unwritten),
        (Holdings, "slide", slides_early),
        (PrefixCache, "first_seen", sees_less),
        (PrefixCache, "begun", shares_too_much),
        (Holdings, "fork", shares_the_last_page),
    ],
    ids=[
        "half-filled block",
        "unwritten block",
        "early slide",
        "short window",
        "too much of a block",
        "shared last page",
    ],
)
def test_faulty_bookkeeping_is_noticed(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Any
) -> None:
    monkeypatch.setattr(owner, name, fault)
    w = world(seed=1)
    with pytest.raises(AssertionError):
        w.random_steps(3000, w.core.scheduler.check)
