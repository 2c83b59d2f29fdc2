"""A runner without a model: its next token is a hash of all tokens before, and each slot of its
cache holds a canary, the hash of the tokens up to its position, compared at every read.

So a swapped row, a stale or foreign page, a half-filled block or a wrong resume cannot go unseen.
"""

from collections.abc import Sequence as Of
from dataclasses import replace

import numpy as np

from mkport.engine.prefix import NONE
from mkport.engine.ran import Ran
from mkport.engine.sampled import Draw
from mkport.engine.scheduler import Limits
from mkport.engine.sequence import PENDING, Copy, Part, Plan, Restore, Save, Sequence
from mkport.trace import Trace

VOCAB, SHORT = 64, 3  # tokens; those of a prompt that go by legs, at least
MIX, START = 0x9E3779B97F4A7C15, 0x1234567
MASK = (1 << 63) - 1
EMPTY, HALF = -1, -2  # a slot that nothing was written to, or some layers alone
SECONDS = (0.0, 0.004, 0.007, 0.03)  # that a leg of a chunk takes


class Wrong(AssertionError):
    """What a read found is not what was to be there."""


def after(state: int, token: int) -> int:
    """The hash of a text that is one token longer."""
    state = ((state ^ (token + 1)) * MIX) & MASK
    return state ^ (state >> 29)


def next_token(state: int) -> int:
    """The token that follows a text."""
    return (state >> 7) % VOCAB


def continued(prompt: list[int], tokens: int) -> list[int]:
    """What a prompt's output is to be."""
    state, out = START, []
    for token in prompt:
        state = after(state, token)
    for _ in range(tokens):
        out.append(next_token(state))
        state = after(state, out[-1])
    return out


def told_of(draws: Of[Draw]) -> tuple[np.ndarray, np.ndarray]:
    """What rows are told that ask for it: one rival, and that all tokens are equally likely."""
    asked = np.array([draw.told is not None for draw in draws], bool)
    ids = np.where(asked, 0, -7).astype(np.int32)[:, None]
    own = np.where(asked, -np.log(VOCAB), np.nan).astype(np.float32)[:, None]
    return ids, np.concatenate((own, own), axis=1)


class OracleRunner:
    """Memory of canaries, [pool][page, slot], and page tables like a machine's."""

    workers, ahead = 1, 0

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.memory = [np.full((pages, limits.page), EMPTY, np.int64) for pages, _ in limits.pools]
        columns = -(-limits.context // limits.page)
        self.tables = [np.full((limits.sequences, columns), NONE) for _ in limits.pools]
        self.reads = self.widest = self.between = self.dropped = 0
        self._hashes: dict[Sequence, list[int]] = {}
        self._chunk: tuple[Sequence, int, int, int] | None = None  # between two of its legs: the
        # sequence, start, count and next leg

    def run(self, plan: Plan, draws: Of[Draw], trace: bool = False) -> Ran:
        """See `Runner`. The latest part goes first, so that none can read what a part before it
        writes in the same step."""
        for move in plan.moves:
            self.move(move)
        for pool, row, block, page in plan.entries:
            assert 0 <= page < len(self.memory[pool])
            self.tables[pool][row, block] = page
        self.fill(plan)
        read: dict[Sequence, list[int]] = {}
        reading = sum(self._walk(part) for part in plan.parts)  # in order, before the step
        for part in reversed(plan.parts):
            self._extend_hashes(part)
            self.write(part)
            read[part.sequence] = self._read(part) if part.ends else []
        self.widest = max(self.widest, plan.tokens)
        assert plan.tokens <= self.limits.rows, "more rows than the widest machine has"
        assert len({id(part.sequence) for part in plan.parts}) == len(plan.parts)
        states = [state for part in plan.parts for state in read[part.sequence]]
        assert len(states) <= self.limits.sequences + self.limits.prompt_logits
        assert len(states) == len(draws)
        chosen = np.array([next_token(state) for state in states], np.int32)
        return replace(self.ran(plan, chosen, draws), reading=lambda: reading or None)

    def _walk(self, part: Part) -> float:
        """A chunk's legs follow one another, each finds what came before the chunk, and nobody
        else's come between them. Returns seconds."""
        if part.legs is None:
            assert part.ends and (not self.limits.legs or part.count - part.wanted < SHORT)
            return 0.0
        tokens = part.count - part.wanted
        assert tokens >= SHORT and (part.ends or not part.wanted)
        (first, end), self.between = part.legs, self.between + (not part.ends)
        if first:
            assert self._chunk == (part.sequence, part.start, tokens, first), "another chunk's leg"
        elif self._chunk is not None:
            self.dropped += 1
        self._chunk = None if part.ends else (part.sequence, part.start, tokens, end)
        assert first < end <= self.limits.legs and part.ends == (end == self.limits.legs)
        return (end - first) * SECONDS[part.start % len(SECONDS)]

    def fill(self, plan: Plan) -> None:
        """Puts in what the host does not know yet: here it knows everything."""

    def ran(self, plan: Plan, chosen: np.ndarray, draws: Of[Draw]) -> Ran:
        """The results, at once."""
        return Ran(chosen, *told_of(draws))

    def trace(self) -> Trace:
        """There is none."""
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to end."""

    def move(self, move: Save | Restore | Copy) -> None:
        """Moves canaries between pages and the host."""
        if isinstance(move, Copy):
            self.memory[move.pool][move.target] = self.memory[move.pool][move.source]
        elif isinstance(move, Save):
            move.sequence.saved = [m[p] for m, p in zip(self.memory, move.pages, strict=True)]
        else:
            for m, pages, saved in zip(self.memory, move.pages, move.sequence.saved, strict=True):
                m[pages] = saved

    def write(self, part: Part) -> None:
        """A part's canaries go to their slots."""
        positions = np.arange(part.start, part.start + part.count)
        canaries = self._hashes[part.sequence][part.start : part.start + part.count]
        for pool in range(len(self.memory)):
            pages = self._pages(pool, part.sequence.row, positions)
            written = canaries if part.ends else HALF
            self.memory[pool][pages, positions % self.limits.page] = written
            if not part.ends:
                self._compare(pool, part, part.start)

    def _read(self, part: Part) -> list[int]:
        """Compares all that the part's tokens see; the hashes at its wanted rows, as read."""
        found: list[int] = []
        for pool in range(len(self.memory)):
            seen = self._compare(pool, part, part.start + part.count)
            found = [int(state) for state in seen[len(seen) - part.wanted :]]
        return found

    def _compare(self, pool: int, part: Part, end: int) -> np.ndarray:
        """What is found in the slots of all that the part's first token sees, up to `end`."""
        window = self.limits.pools[pool][1]
        first = max(part.start - window + 1, 0) if window else 0
        positions = np.arange(first, end)
        pages = self._pages(pool, part.sequence.row, positions)
        seen: np.ndarray = self.memory[pool][pages, positions % self.limits.page]
        expected = np.array(self._hashes[part.sequence][first:end])
        if not np.array_equal(seen, expected):
            at = first + int((seen != expected).argmax())
            raise Wrong(f"pool {pool}, position {at} of a sequence at {part.start}")
        self.reads += len(positions)
        return seen

    def _pages(self, pool: int, row: int, positions: np.ndarray) -> np.ndarray:
        pages: np.ndarray = self.tables[pool][row, positions // self.limits.page]
        if (pages == NONE).any():
            raise Wrong("an entry that was never made is followed")
        return pages

    def _extend_hashes(self, part: Part) -> None:
        known = self._hashes.setdefault(part.sequence, [])
        for token in self.tokens(part)[len(known) : part.start + part.count]:
            known.append(after(known[-1] if known else START, token))

    def tokens(self, part: Part) -> list[int]:
        """A part's sequence's tokens up to its end, at least."""
        return part.sequence.tokens


class LateRunner(OracleRunner):
    """Runs ahead: results come when they are waited for, and are gone two steps later; a token that
    the host does not know is the one that its sequence chose last."""

    ahead = 1

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.waiting: list[np.ndarray] = []  # choices that have not arrived
        self.pending = 0  # tokens that the host did not know when they were run
        self._last: dict[Sequence, int] = {}
        self._fed: dict[Sequence, int] = {}

    def fill(self, plan: Plan) -> None:
        """Notes the pending tokens: they belong to the step before, which has not arrived."""
        self._fed = {}
        for part in plan.parts:
            if PENDING in part.sequence.tokens[part.start : part.start + part.count]:
                assert part.count == 1 and self.waiting, "a token that nobody will ever know"
                self._fed[part.sequence] = self._last[part.sequence]
        self.pending += len(self._fed)
        self._last = {}

    def tokens(self, part: Part) -> list[int]:
        """With the pending one."""
        tokens = part.sequence.tokens[: part.start + part.count]
        return [*tokens[:-1], self._fed[part.sequence]] if part.sequence in self._fed else tokens

    def ran(self, plan: Plan, chosen: np.ndarray, draws: Of[Draw]) -> Ran:
        """The results, later."""
        assert len(self.waiting) <= self.ahead, "a result that was not taken is overwritten"
        row = 0
        for part in plan.parts:
            row += part.wanted
            if part.wanted:
                self._last[part.sequence] = int(chosen[row - 1])
        shown = np.full_like(chosen, -7)
        self.waiting.append(shown)

        def arrive() -> None:
            assert self.waiting[0] is shown, "results are taken in another order"
            del self.waiting[0]
            shown[...] = chosen

        return Ran(shown, *told_of(draws), arrive)
