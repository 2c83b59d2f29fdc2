"""The loop's one round: plan, run, commit; then each wanted row of logits becomes a token, its text
and an event. It has no thread and no queue of its own: `loop` drives it.

A mistake in one row (logits that are not finite, constraints that leave no token) ends that choice
alone.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mkport.engine.grammar import Matcher
from mkport.engine.logprobs import prompt_logprobs, token_logprob
from mkport.engine.request import Accepted, Event, Reason, Sampling, Stats, TokenLogprob
from mkport.engine.runner import Ran, Runner, StepFailed
from mkport.engine.sampled import GREEDY, Draw
from mkport.engine.sampling import NotFinite, RowError, Sampler
from mkport.engine.scheduler import Scheduler
from mkport.engine.sequence import Part, State
from mkport.engine.sequence import Sequence as Tokens
from mkport.engine.stream import EventStream, wake
from mkport.engine.text import OutputText
from mkport.trace import Trace

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Choice:
    """One of a request's outputs while it grows."""

    index: int
    sampler: Sampler
    text: OutputText
    tokens: Tokens
    matcher: Matcher | None = None  # of its grammar, if it has one

    @property
    def draw(self) -> Draw | None:
        """How the machine is to choose the next token; None when that takes more than it can."""
        sampler = self.sampler
        if self.matcher is not None or sampler.edits or sampler.truncates:
            return None
        if sampler.greedy:
            return GREEDY
        return Draw(sampler.sampling.temperature, sampler.seed, sampler.choice)


@dataclass(eq=False)
class Job:
    """A request that the engine has accepted."""

    stream: EventStream
    prompt: list[int]
    sampling: Sampling
    choices: list[Choice]
    queued: bool = True  # has not begun to run
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)


class Core:
    """Jobs in, events out, over a runner. One thread uses it."""

    def __init__(self, runner: Runner, eos: Collection[int]) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner.limits)
        self.trace: Trace | None = None  # of the last step that was traced
        self.wants_trace = False
        self.steps = self.step_tokens = self.prompt_tokens = self.generation_tokens = 0
        self._eos = frozenset(eos)
        self._choices: dict[Tokens, tuple[Job, Choice]] = {}
        self._order = count()
        self._told: dict[EventStream, None] = {}  # since the last wake

    def add(self, job: Job) -> None:
        """A job joins the queue."""
        for choice in job.choices:
            choice.tokens.order = next(self._order)
            self._choices[choice.tokens] = job, choice
            self.scheduler.add(choice.tokens)

    def cancel(self, job: Job) -> None:
        """Ends what has not ended of a job."""
        self._end_all(job, "abort")
        self._wake()

    @property
    def jobs(self) -> list[Job]:
        """Those of which a choice has not ended."""
        return list(dict.fromkeys(job for job, _ in self._choices.values()))

    def step(self) -> list[Job]:
        """One round; returns the jobs that began to run in it. There is something to run."""
        plan = self.scheduler.plan()
        traced, self.wants_trace = self.wants_trace, False
        try:
            ran = self.runner.run(plan, self._draws(plan.parts), traced)
        except StepFailed as error:
            return self._failed(plan.parts, str(error))
        if traced:
            self.trace = self.runner.trace()
        self.scheduler.commit(plan)
        self.steps += 1
        self.step_tokens = plan.tokens
        begun = self._take(plan.parts, ran)
        self._wake()
        if not self.scheduler.busy:
            self.scheduler.check_idle()
        return begun

    def stats(self) -> Stats:
        """Counters and gauges. Other threads may read them too: each is right, if not all at one
        moment."""
        scheduler = self.scheduler
        pools = scheduler.holdings.pools
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.preempted),
            kv_usage=max(pool.held / pool.pages for pool in pools),
            prefix_queries=scheduler.looked_up,
            prefix_hits=scheduler.found,
            preemptions=scheduler.preemptions,
            steps=self.steps,
            step_tokens=self.step_tokens,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
        )

    def fail(self, message: str) -> None:
        """Ends every job with an error: the runner is of no use any more."""
        for job in self.jobs:
            for choice in job.choices:
                if choice.tokens.state is not State.ENDED:
                    choice.tokens.state = State.ENDED
                    self._tell(job, Event(choice.index, reason="error", error=message))
        self._choices.clear()
        self._wake()

    def _draws(self, parts: Sequence[Part]) -> list[Draw]:
        """How the token of each wanted row is chosen."""
        draws: list[Draw] = []
        for part in parts:
            if part.wanted:
                draws += [GREEDY] * (part.wanted - 1)
                draws.append(self._choices[part.sequence][1].draw or GREEDY)
        return draws

    def _take(self, parts: Sequence[Part], ran: Ran) -> list[Job]:
        """What a step's rows mean for each sequence that ran in it; the jobs that it began."""
        begun: list[Job] = []
        row = 0
        for part in parts:
            job, choice = self._choices[part.sequence]
            if job.queued:
                job.queued = False
                begun.append(job)
            row += part.wanted
            if part.sequence.all_logits and part.start < part.sequence.prompt:
                self._take_prompt(job, part, ran.logits[row - part.wanted : row])
            if part.sequence.remaining or part.sequence.state is State.ENDED:
                continue
            self._accept(job, choice)
            if job.sampling.max_tokens:
                self._sample(job, choice, ran, row - 1)
            else:
                self._end(job, choice, "length")
        return begun

    def _failed(self, parts: Sequence[Part], message: str) -> list[Job]:
        """A step did not end: so do its sequences, and nothing that they share is trusted."""
        begun: list[Job] = []
        for part in parts:
            job, choice = self._choices[part.sequence]
            begun += [job] if job.queued else []
            job.queued = False
            self._end(job, choice, "error", message)
        self.scheduler.holdings.cache.reset()
        self._wake()
        return begun

    def _accept(self, job: Job, choice: Choice) -> None:
        """A prompt has been run: for the first time, unless `accepted` is there."""
        if job.stream.accepted is None:
            tokens = choice.tokens
            self.prompt_tokens += tokens.prompt
            job.stream.accepted = Accepted(tokens.prompt, tokens.cached, tuple(job.prompt_logprobs))

    def _take_prompt(self, job: Job, part: Part, logits: np.ndarray) -> None:
        """The log probabilities of a part of the prompt: row i tells of the token after it."""
        if not job.prompt_logprobs:
            job.prompt_logprobs.append(None)
        last = min(part.start + part.count, part.sequence.prompt - 1)
        follows = job.prompt[part.start + 1 : last + 1]
        try:
            job.prompt_logprobs += prompt_logprobs(
                logits[: len(follows)], follows, job.sampling.prompt_logprobs or 0, part.start
            )
        except RowError as error:
            self._end_all(job, "error", str(error))

    def _sample(self, job: Job, choice: Choice, ran: Ran, row: int) -> None:
        """A choice's next token, from its row; one that gives none ends the choice."""
        position, top = choice.tokens.computed - 1, job.sampling.logprobs
        logprobs: tuple[TokenLogprob, ...] = ()
        try:
            token = self._chosen(choice, ran, row, position)
            if top is not None:
                logprobs = (token_logprob(ran.logits[row], token, top, position),)
            event = self._said(job, choice, token, logprobs)
        except RowError as error:
            self._end(job, choice, "error", str(error))
            return
        except Exception as error:  # whatever a request's fields do must not end the others
            _log.exception("a token of request %s could not be chosen", job.stream.id)
            self._end(job, choice, "error", f"No token could be chosen: {error!r}")
            return
        self.generation_tokens += 1
        if event.reason is None:
            choice.tokens.tokens.append(token)
        else:
            self._forget(choice)
        self._tell(job, event)

    def _chosen(self, choice: Choice, ran: Ran, row: int, position: int) -> int:
        """The machine's choice where it was told how, else one from the logits. Raises RowError."""
        if choice.draw is None:
            mask = choice.matcher.mask() if choice.matcher else None
            return choice.sampler.choose(ran.logits[row], mask, position)
        token = int(ran.choices[row])
        if token < 0:
            raise NotFinite(position)
        choice.sampler.accept(token)
        return token

    def _said(
        self, job: Job, choice: Choice, token: int, logprobs: tuple[TokenLogprob, ...]
    ) -> Event:
        """What a token adds to its choice's text, and whether it is the last. Raises RowError."""
        s = job.sampling
        if token in s.stop_token_ids or (token in self._eos and not s.ignore_eos):
            stop = token if token in s.stop_token_ids else None
            return Event(choice.index, choice.text.finish(), (token,), logprobs, "stop", stop)
        text = choice.text.push(token)
        if choice.matcher is not None:
            choice.matcher.accept(token)
        reason: Reason | None = None
        if choice.text.stopped is not None or (choice.matcher and choice.matcher.finished):
            reason = "stop"
        elif (
            choice.sampler.produced >= s.max_tokens
            or len(choice.tokens.tokens) + 1 >= self.runner.limits.context
        ):
            reason = "length"
        if reason is not None:
            text += choice.text.finish()
        return Event(choice.index, text, (token,), logprobs, reason, choice.text.stopped)

    def _end_all(self, job: Job, reason: Reason, error: str = "") -> None:
        for choice in job.choices:
            if choice.tokens.state is not State.ENDED:
                self._end(job, choice, reason, error)

    def _end(self, job: Job, choice: Choice, reason: Reason, error: str = "") -> None:
        text = choice.text.finish()
        self._forget(choice)
        self._tell(job, Event(choice.index, text, reason=reason, error=error))

    def _forget(self, choice: Choice) -> None:
        self.scheduler.end(choice.tokens)
        del self._choices[choice.tokens]

    def _tell(self, job: Job, event: Event) -> None:
        job.stream.put(event)
        self._told[job.stream] = None

    def _wake(self) -> None:
        wake(self._told)
        self._told.clear()
