"""Decides what each step runs: who waits, runs, is preempted, comes back. Bookkeeping alone.

Nothing here touches memory, logits or clients, so it is tested without a model. One step is
`plan`, the run of that plan, `commit`; pages that a planned step reads are given away by `commit`
or later, never before. A machine that runs ahead has the next step planned between `launch` and
`commit`. Order of arrival decides: who came first is served first and preempted last,
so the oldest can always go on, and everybody becomes the oldest in time.
"""

from bisect import insort
from dataclasses import dataclass

from mkport.engine.holdings import Holdings, window_pages
from mkport.engine.pace import PAUSE_S, Legs, Pace
from mkport.engine.prefix import NONE
from mkport.engine.sequence import Part, Plan, Restore, Save, Sequence, State


@dataclass(frozen=True)
class Limits:
    """What a step and the pools can hold."""

    context: int  # positions a sequence can reach; no less fits into the pools
    page: int  # keys in a page
    pools: tuple[tuple[int, int], ...]  # (pages, window in keys or 0) of each
    sequences: int  # that run side by side, each with a row of a step
    rows: int  # tokens that a step holds
    chunk: int  # prompt tokens of a step while nobody decodes
    mixed_chunk: int  # and while somebody does, a prompt: bounds the pause that it adds to a token
    paced: bool = False  # the latter is only where to begin: how long steps take decides
    prompt_logits: int = 1  # prompt rows whose logits a step can give, beside one of each sequence
    prefix_cache: bool = True
    legs: int = 0  # of a chunk's way through PyTorch, which is cut as if it were alone; 0: steps
    # run prompts
    short: int = 1  # prompt tokens that PyTorch runs, at least; steps run fewer
    pause_s: float = PAUSE_S  # that legs may take between two steps of those who decode
    doubles: int = 0  # position at which a prompt's token counts twice beside others; 0: none does

    def __post_init__(self) -> None:
        assert self.rows >= self.sequences, "every sequence has a row"
        pages = -(-self.context // self.page)
        for size, window in self.pools:
            needed = min(pages, window_pages(window, self.page)) if window else pages
            assert size >= needed, "a sequence alone does not fit its pool"


@dataclass
class _Budget:
    """What a step can still take."""

    rows: int
    tokens: int  # of prompts: rows of those who decode are kept for them
    logits: int  # of prompt rows
    chunk: int  # prompts are cut at multiples of it; 0: anywhere
    doubles: int  # as in `Limits`, where somebody decodes
    walks: bool  # whether legs may be walked
    begins: bool  # and a chunk may begin its own

    def count(self, start: int) -> int:
        """How many tokens of a prompt, from position `start` on, the step takes at most."""
        if self.chunk:
            count = self.chunk - start % self.chunk
            return count if count <= self.tokens else 0
        if self.doubles:  # one at least, if there is time for any
            return max(self.tokens * self.doubles // (self.doubles + start), min(self.tokens, 1))
        return self.tokens

    def take(self, start: int, count: int) -> None:
        """So many tokens, from position `start` on, are in the step."""
        more = count * start // self.doubles if self.doubles else 0
        self.tokens -= min(count + more, self.tokens)


@dataclass
class _Chunk:
    """A part of a prompt that goes through the layers leg by leg, with steps of others between
    them. Its tokens count as computed after the last leg, or not at all."""

    sequence: Sequence
    count: int
    legs: int = 0  # that are planned already


class Scheduler:
    """Waiting, running and preempted sequences, each list in order of arrival.

    Source: a step takes whoever has a token to run, after Yu et al., "Orca", OSDI 2022; prompts
    come in chunks beside running requests, after Agrawal et al., "SARATHI", 2023.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # where PyTorch runs prompts, their chunks begin at whole blocks
        self.holdings = Holdings(
            limits.pools, limits.page, limits.prefix_cache, parts=not limits.legs
        )
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.pace = Pace(limits.mixed_chunk, limits.chunk) if limits.paced else None
        self.legs = Legs(limits.legs, limits.pause_s)
        self._windows = any(window for _, window in limits.pools)
        self._chunk: _Chunk | None = None  # one at a time: what is between its legs is kept once
        self._paused = False  # the step that was planned last has legs
        self.preemptions = 0
        self.looked_up = self.found = 0  # prompt tokens, by the prefix cache
        self._rows = list(range(limits.sequences - 1, -1, -1))

    @property
    def busy(self) -> bool:
        """Whether anything is left to run."""
        return bool(self.running or self.preempted or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """A sequence joins the queue. The caller has seen to it that it stays in the context."""
        assert 0 < sequence.prompt == len(sequence.tokens) <= self.limits.context
        insort(self.waiting, sequence, key=_order)

    @property
    def wants(self) -> bool:
        """Whether anybody has a token to run, or is not running yet."""
        left = any(sequence.remaining > 0 for sequence in self.running)
        return left or bool(self.preempted or self.waiting)

    def plan(self, behind: bool = False) -> Plan:
        """The next step, empty when nothing is left. Asserts that it brings somebody forward,
        unless it comes `behind` a step that was launched and not committed."""
        decoding = sum(sequence.remaining <= 1 for sequence in self.running)
        # Who waits for the host sits out the step behind his own, and takes part in the one after
        # it: if both had legs, he would wait for two pauses.
        waits = behind and any(s.remaining == 0 and not s.over for s in self.running)
        walks = not (waits and self._paused)
        plan = self._planned(decoding, self._most(decoding), walks)
        if not (plan.parts or plan.moves or behind):  # who decodes has no page, nor prompts a share
            plan = self._planned(decoding, self.limits.mixed_chunk, walks)
        assert plan.parts or behind or not self.busy, "nobody can go on"
        self._paused = any(part.legs for part in plan.parts)
        return plan

    def _planned(self, decoding: int, chunk: int, walks: bool) -> Plan:
        plan, rows = Plan(decoding=decoding), self.limits.rows
        budget = _Budget(
            rows,
            min(chunk, rows - decoding),
            self.limits.prompt_logits,
            chunk if self.limits.legs else 0,
            self.limits.doubles if decoding else 0,
            walks,
            walks and self._chunk is None,
        )
        room = budget.tokens
        at = 0
        while at < len(self.running):  # whoever is preempted stands further back
            sequence = self.running[at]
            while not self._advance(sequence, plan, budget) and self.running[-1] is not sequence:
                if not self._wants(sequence, budget):
                    break
                self._preempt(self.running[-1], plan)
            at += 1
        if not plan.moves:
            self._admit(plan, budget)
        plan.prompt = room - budget.tokens
        return plan

    def launch(self, plan: Plan) -> None:
        """The planned step is under way: the next one may be planned before it is committed."""
        for part in plan.parts:
            if part.ends:
                part.sequence.computed = part.start + part.count

    def commit(
        self, plan: Plan, seconds: float | None = None, reading: float | None = None
    ) -> None:
        """The planned step has completed, after so many seconds where that tells something, of
        which PyTorch took `reading`: full blocks enter the prefix cache, and pages that no later
        token of their sequence sees are released."""
        if self.pace is not None and seconds is not None:
            self.pace.landed(plan.decoding, plan.prompt, seconds)
        if reading is not None:
            walked = [(part.count - part.wanted, *part.legs) for part in plan.parts if part.legs]
            if len(walked) == 1:
                ((tokens, first, end),) = walked
                self.legs.landed(tokens, end - first, reading)
        for part in plan.parts:
            if not part.ends:
                continue
            sequence, end = part.sequence, part.start + part.count
            sequence.computed, sequence.landed = max(sequence.computed, end), end
            if sequence.state is State.RUNNING and not sequence.over:
                if part.count > 1 or end % self.limits.page == 0:
                    self.holdings.enter(sequence)
                if self._windows:
                    self.holdings.slide(sequence)

    def end(self, sequence: Sequence) -> None:
        """A sequence is over, in whatever state it is; never while a plan that it is in has not
        been committed."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.PREEMPTED:
            self.preempted.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._leave(sequence)
            self.holdings.release(sequence)
        sequence.saved = None
        sequence.state = State.ENDED

    def check_idle(self) -> None:
        """Asserts that nothing is held when nothing is left: every page is free or kept."""
        assert not self.busy and len(self._rows) == self.limits.sequences, "a row is lost"
        assert self._chunk is None, "a chunk goes on for nobody"
        for pool in self.holdings.pools:
            assert pool.held == 0 and pool.available == pool.pages, "a page is lost"

    def check(self) -> None:
        """Asserts that pages and rows add up, page by page: so none is held when nobody runs."""
        for number, pool in enumerate(self.holdings.pools):
            pool.check()
            counts = [0] * pool.pages
            for sequence in self.running:
                for page in sequence.tables[number]:
                    if page != NONE:
                        counts[page] += 1
            assert counts == [pool.holders(page) for page in range(pool.pages)], "holders are off"
        assert len(self._rows) + len(self.running) == self.limits.sequences, "a row is lost"

    def _most(self, decoding: int) -> int:
        """How many prompt tokens the step may run, when so many sequences decode.

        Beside them each prompt has a share, of those that have a row or would get one: who waits
        for a first token counts as much as who waits for the next. A full batch thus pauses for no
        more than one share, the prompt that takes its last row.
        """
        if not decoding:
            return self.limits.chunk
        if self.limits.legs:
            return self.limits.mixed_chunk
        queued = len(self.running) + len(self.preempted) + len(self.waiting)
        if queued == decoding:  # nobody has a prompt
            return 0
        prompts = min(queued, self.limits.sequences) - decoding
        share = self.pace.share(decoding) if self.pace else self.limits.mixed_chunk
        return min(share * max(prompts, 1), max(self.limits.chunk, self.limits.mixed_chunk))

    def _wants(self, sequence: Sequence, budget: _Budget) -> int:
        """How many tokens the sequence would run if there were pages for all."""
        if self._chunk is not None and self._chunk.sequence is sequence:
            return 0 if sequence.over or not budget.walks else self._chunk.count
        start, count = sequence.computed, min(max(sequence.remaining, 0), budget.rows)
        if sequence.remaining > 1:
            count = min(count, budget.count(start))
        if _gives_all_logits(sequence):
            count = min(count, budget.logits)
        if not budget.begins and self._by_legs(count - _wanted(sequence, count)):
            return 0
        return count

    def _by_legs(self, tokens: int) -> bool:
        """Whether PyTorch runs so many tokens."""
        return self.limits.legs > 0 and tokens >= self.limits.short

    def _advance(self, sequence: Sequence, plan: Plan, budget: _Budget) -> bool:
        """Plans a running sequence's next tokens, as many as budget and pages allow, if any."""
        if budget.rows and self._goes_on(sequence):  # as below, without a look at what cannot be
            plan.parts.append(Part(sequence, sequence.computed, 1, 1))
            budget.rows -= 1
            return True
        count = self.holdings.room(sequence, self._wants(sequence, budget))
        if not count:
            return False
        for pool, block, page in self.holdings.extend(sequence, count):
            plan.entries.append((pool, sequence.row, block, page))
        wanted = _wanted(sequence, count)
        budget.rows -= count
        if sequence.remaining > 1:
            budget.take(sequence.computed, count)
        if _gives_all_logits(sequence):
            budget.logits -= count
        if self._by_legs(count - wanted):
            plan.parts.append(self._walked(sequence, count, wanted, plan.decoding > 0))
            budget.begins = budget.begins and not plan.decoding
        else:
            plan.parts.append(Part(sequence, sequence.computed, count, wanted))
        return True

    def _goes_on(self, sequence: Sequence) -> bool:
        """Whether the sequence has one token to run, behind its prompt, and its pages hold that."""
        at = sequence.computed
        if sequence.over or len(sequence.tokens) - at != 1 or at < sequence.prompt:
            return False
        return all(at < len(table) * self.limits.page for table in sequence.tables)

    def _walked(self, sequence: Sequence, count: int, wanted: int, beside: bool) -> Part:
        """A chunk's next legs: `beside` those who decode as many as fit into their pause, else all.
        Its wanted token goes with the last."""
        chunk, legs = self._chunk or _Chunk(sequence, count), self.limits.legs
        first = chunk.legs
        chunk.legs = first + self.legs.share(count - wanted, first) if beside else legs
        ends = chunk.legs == legs
        self._chunk = None if ends else chunk
        count, wanted = (count, wanted) if ends else (count - wanted, 0)
        return Part(sequence, sequence.computed, count, wanted, (first, chunk.legs), ends)

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        self._leave(sequence)
        plan.moves.append(Save(sequence, self.holdings.save(sequence)))
        sequence.state = State.PREEMPTED
        insort(self.preempted, sequence, key=_order)
        self.preemptions += 1

    def _admit(self, plan: Plan, budget: _Budget) -> None:
        """Brings preempted sequences back, then lets waiting ones in, in order of arrival.

        Each leaves a page for every running sequence to grow by, lest it be preempted at once.
        """
        while self.preempted and self._rows and budget.rows:
            sequence = self.preempted[0]
            pages = self.holdings.restore(sequence, len(self.running))
            if pages is None:
                return
            self.preempted.remove(sequence)
            plan.moves.append(Restore(sequence, pages))
            self._run(sequence, plan)
            self._advance(sequence, plan, budget)
        if self.preempted:
            return
        for sequence in list(self.waiting):
            if not self._rows or not budget.rows or not budget.tokens:
                return
            if _is_led(sequence):
                continue
            if not self._fork(sequence, plan) and not self._begin(sequence, plan):
                return
            self.waiting.remove(sequence)
            self._run(sequence, plan)
            self._advance(sequence, plan, budget)

    def _begin(self, sequence: Sequence, plan: Plan) -> bool:
        copies = self.holdings.begin(sequence, len(self.running))
        if copies is None:
            return False
        plan.moves += copies
        if self.limits.prefix_cache:
            self.looked_up += sequence.prompt
            self.found += sequence.cached
        return True

    def _fork(self, sequence: Sequence, plan: Plan) -> bool:
        """Shares the prompt of a running sequence of the same request, if there is one."""
        if sequence.leader is None or sequence.all_logits:
            return False
        for donor in self.running:
            same = sequence.leader in (donor, donor.leader)
            if same and donor.computed >= donor.prompt:
                copies = self.holdings.fork(sequence, donor, len(self.running))
                if copies is not None:
                    plan.moves += copies
                    return True
        return False

    def _run(self, sequence: Sequence, plan: Plan) -> None:
        """A sequence that holds its pages gets a row, and the row its entries."""
        sequence.row, sequence.state = self._rows.pop(), State.RUNNING
        insort(self.running, sequence, key=_order)
        for number, table in enumerate(sequence.tables):
            blocks = enumerate(table)
            plan.entries += [(number, sequence.row, b, page) for b, page in blocks if page != NONE]

    def _leave(self, sequence: Sequence) -> None:
        if self._chunk is not None and self._chunk.sequence is sequence:
            self._chunk = None  # its legs so far were for nothing
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        sequence.row = NONE


def _order(sequence: Sequence) -> int:
    return sequence.order


def _wanted(sequence: Sequence, count: int) -> int:
    """Of how many of its next tokens, the last ones, the logits are wanted."""
    return count if _gives_all_logits(sequence) else int(count == sequence.remaining)


def _gives_all_logits(sequence: Sequence) -> bool:
    return sequence.all_logits and sequence.computed < sequence.prompt


def _is_led(sequence: Sequence) -> bool:
    """Whether the sequence that runs its prompt has yet to come to the prompt's end."""
    leader = sequence.leader
    return (
        leader is not None and leader.state is not State.ENDED and leader.computed < leader.prompt
    )
