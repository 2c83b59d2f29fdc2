"""The loop's one round: plan, run, commit; then each wanted row's token becomes text and an event.
It has no thread and no queue of its own: `loop` drives it.

The machine chooses every token. A runner that runs ahead has the next step under way before the
host has looked at this one: a sequence that follows a grammar sits that out, since which tokens may
come next only the host can tell; all others take part. What was computed for a sequence that has
ended meanwhile is dropped.

A mistake in one row (logits that are not finite, constraints that leave no token) ends that choice
alone.
"""

import logging
import time
from collections.abc import Collection, Sequence
from itertools import count

from mkport.engine.job import Choice, Flight, Job
from mkport.engine.logprobs import told
from mkport.engine.ran import Ran
from mkport.engine.request import Accepted, Event, Reason, Stats, TokenLogprob
from mkport.engine.runner import Runner, StepFailed
from mkport.engine.sampled import GREEDY, Draw
from mkport.engine.sampling import NotFinite, NothingAllowed, RowError
from mkport.engine.scheduler import Scheduler
from mkport.engine.sequence import PENDING, Part, Plan, State
from mkport.engine.sequence import Sequence as Tokens
from mkport.engine.stream import EventStream, wake
from mkport.trace import Trace

_log = logging.getLogger(__name__)


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
        self._flights: list[Flight] = []  # the oldest first
        self._planned = Plan()  # the last one
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
        begun: list[Job] = []
        try:
            while len(self._flights) <= self.runner.ahead and (
                not self._flights or self.scheduler.wants
            ):
                if not self._launch():
                    break
            flight = self._flights[0]
            flight.ran.arrive()
        except StepFailed as error:
            return self._failed(str(error))
        del self._flights[0]
        # steps that run ahead wait for one another, so that this says little of any
        took = None if self.runner.ahead else time.perf_counter() - flight.began
        self.scheduler.commit(flight.plan, took, flight.ran.reading())
        self.steps += 1
        self.step_tokens = flight.plan.tokens
        begun = self._take(flight)
        self._wake()
        if not self.scheduler.busy:
            self.scheduler.check_idle()
        return begun

    def _launch(self) -> bool:
        """Plans a step and has it run; False when there is none to run behind another."""
        plan = self.scheduler.plan(behind=bool(self._flights))
        if self._flights and not (plan.parts or plan.moves or plan.entries):
            return False
        draws, failed = self._draws(plan.parts)
        traced, self.wants_trace = self.wants_trace, False
        self._planned = plan
        began = time.perf_counter()
        ran = self.runner.run(plan, draws, traced)
        if traced:
            self.trace = self.runner.trace()
        self.scheduler.launch(plan)
        done = [part.sequence.remaining == 0 for part in plan.parts]
        flight = Flight(plan, ran, failed, done, {}, began)
        self._flights.append(flight)
        if self.runner.ahead:
            self._go_on(flight)
        return True

    def _go_on(self, flight: Flight) -> None:
        """Sequences that surely have a further token, and no grammar, need not wait."""
        for part, done in zip(flight.plan.parts, flight.done, strict=True):
            tokens = part.sequence
            job, choice = self._choices[tokens]
            if not done or not part.wanted or choice.matcher is not None:
                continue
            known = len(tokens.tokens)
            if known - tokens.prompt + 1 < job.sampling.max_tokens and (
                known + 1 < self.runner.limits.context
            ):
                flight.pending[tokens] = known
                tokens.tokens.append(PENDING)

    def settle(self) -> None:
        """Waits for steps that are under way for nobody any more. Every job has ended."""
        while self._flights:
            flight = self._flights.pop(0)
            try:
                flight.ran.arrive()
            except StepFailed:
                _log.exception("a step that nobody waited for did not end")
            self._take(flight)

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
                if choice.tokens in self._choices:
                    choice.tokens.state = State.ENDED
                    self._tell(job, Event(choice.index, reason="error", error=message))
        self._choices.clear()
        self._flights.clear()
        self._wake()

    def _draws(self, parts: Sequence[Part]) -> tuple[list[Draw], dict[Tokens, Exception]]:
        """How the token of each wanted row is chosen, and whose cannot be."""
        draws: list[Draw] = []
        failed: dict[Tokens, Exception] = {}
        for part in parts:
            job, choice = self._choices[part.sequence]
            end = part.start + part.count
            for known in range(end - part.wanted + 1, end + 1):
                if known < len(job.prompt):  # the prompt goes on
                    told = job.sampling.prompt_logprobs
                    draws.append(Draw(told=told, given=job.prompt[known]))
                    continue
                try:
                    mask = choice.matcher.mask() if choice.matcher else None
                    draw = choice.sampler.draw(known - len(job.prompt), mask)
                    assert draw.words  # what the machine cannot be told is found out here
                    draws.append(draw)
                except Exception as error:  # it ends this choice alone, when its row is looked at
                    failed[part.sequence] = error
                    draws.append(GREEDY)
        return draws, failed

    def _take(self, flight: Flight) -> list[Job]:
        """What a step's rows mean for each sequence that ran in it; the jobs that it began."""
        begun: list[Job] = []
        row = 0
        for part, done in zip(flight.plan.parts, flight.done, strict=True):
            row += part.wanted
            tokens = part.sequence
            if tokens.over:  # it ended while this step was under way
                if not self._in_flight(tokens):
                    self.scheduler.end(tokens)
                continue
            if tokens not in self._choices:
                continue
            job, choice = self._choices[tokens]
            if job.queued:
                job.queued = False
                begun.append(job)
            if tokens.all_logits and part.start < tokens.prompt:
                self._take_prompt(job, part, flight.ran, row - part.wanted)
            if not done or tokens not in self._choices:
                continue
            self._accept(job, choice)
            if job.sampling.max_tokens:
                self._sample(job, choice, flight, part, row - 1)
            else:
                self._end(job, choice, "length")
        return begun

    def _failed(self, message: str) -> list[Job]:
        """A step did not end: so do its sequences and those of the step behind it, and nothing that
        they share is trusted."""
        begun: list[Job] = []
        plans = [flight.plan for flight in self._flights]
        plans += [] if any(plan is self._planned for plan in plans) else [self._planned]
        self._flights.clear()
        for part in (part for plan in plans for part in plan.parts):
            if part.sequence.over and part.sequence.state is not State.ENDED:
                self.scheduler.end(part.sequence)
            if part.sequence not in self._choices:
                continue
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

    def _take_prompt(self, job: Job, part: Part, ran: Ran, row: int) -> None:
        """The log probabilities of a part of the prompt: `row` and on tell of the tokens after."""
        if not job.prompt_logprobs:
            job.prompt_logprobs.append(None)
        last = min(part.start + part.count, part.sequence.prompt - 1)
        top = job.sampling.prompt_logprobs or 0
        for at, token in enumerate(job.prompt[part.start + 1 : last + 1], row):
            if ran.choices[at] < 0:
                self._end_all(job, "error", str(NotFinite(part.start + at - row)))
                return
            job.prompt_logprobs.append(told(token, ran.ids[at], ran.logprobs[at], top))

    def _sample(self, job: Job, choice: Choice, flight: Flight, part: Part, row: int) -> None:
        """A choice's next token, from its row; one that gives none ends the choice."""
        position, top = part.start + part.count - 1, job.sampling.logprobs
        logprobs: tuple[TokenLogprob, ...] = ()
        try:
            token = self._chosen(choice, flight, row, position)
            if top is not None:
                logprobs = (told(token, flight.ran.ids[row], flight.ran.logprobs[row], top),)
            event = self._said(job, choice, token, logprobs)
        except RowError as error:
            self._end(job, choice, "error", str(error), error.own)
            return
        except Exception as error:  # whatever a request's fields do must not end the others
            _log.exception("a token of request %s could not be chosen", job.stream.id)
            self._end(job, choice, "error", f"No token could be chosen: {error!r}")
            return
        self.generation_tokens += 1
        if event.reason is not None:
            self._forget(choice)
        elif choice.tokens in flight.pending:
            choice.tokens.tokens[flight.pending[choice.tokens]] = token
        else:
            choice.tokens.tokens.append(token)
        self._tell(job, event)

    def _chosen(self, choice: Choice, flight: Flight, row: int, position: int) -> int:
        """The machine's choice. Raises RowError, or whatever kept the row from being asked for."""
        if choice.tokens in flight.failed:
            raise flight.failed[choice.tokens]
        token = int(flight.ran.choices[row])
        if token < 0:
            raise NotFinite(position) if token == -1 else NothingAllowed(position)
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
            or choice.tokens.prompt + choice.sampler.produced >= self.runner.limits.context
        ):
            reason = "length"
        if reason is not None:
            text += choice.text.finish()
        return Event(choice.index, text, (token,), logprobs, reason, choice.text.stopped)

    def _end_all(self, job: Job, reason: Reason, error: str = "") -> None:
        for choice in job.choices:
            if choice.tokens in self._choices:
                self._end(job, choice, reason, error)

    def _end(
        self, job: Job, choice: Choice, reason: Reason, error: str = "", own: bool = False
    ) -> None:
        text = choice.text.finish()
        self._forget(choice)
        self._tell(job, Event(choice.index, text, reason=reason, error=error, own=own))

    def _forget(self, choice: Choice) -> None:
        """A choice is over: its pages are given back once no step uses them."""
        if self._in_flight(choice.tokens):
            choice.tokens.over = True
        else:
            self.scheduler.end(choice.tokens)
        del self._choices[choice.tokens]

    def _in_flight(self, tokens: Tokens) -> bool:
        return any(flight.holds(tokens) for flight in self._flights)

    def _tell(self, job: Job, event: Event) -> None:
        job.stream.put(event)
        self._told[job.stream] = None

    def _wake(self) -> None:
        wake(self._told)
        self._told.clear()
