"""How a row of logits becomes a token, every field of a request's sampling. A machine does it, by
what `Sampler.draw` says of each row; `Sampler.choose` is the same in NumPy, row by row, which
machines are held against. In this order:

1. repetition penalty (prompt and output), frequency and presence penalty (output), logit_bias;
2. tokens that would end the output too early are taken out (min_tokens), then those that the
   grammar forbids; a grammar that allows only an end outranks min_tokens;
3. temperature 0 (or below noise.COLD): the greatest logit, the lowest id among equals;
4. else logits / temperature, then min_p, top_k, top_p, each on what the one before left;
5. the draw, by the noise of `noise`: it depends on (seed, choice, position) and this row alone.

Log probabilities are in `logprobs`, grammars in `grammar`, what min_p, top_k and top_p
leave in `truncation`, when to stop in `text` and the core."""

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from mkport.engine import noise
from mkport.engine.request import Sampling
from mkport.engine.sampled import END, GREEDY, PROMPT, Draw
from mkport.engine.truncation import survivors
from mkport.errors import UserError

FEW = 16  # up to this part of a vocabulary, noise is drawn one by one


@dataclass(frozen=True)
class _Allowed:
    words: str
    holds: Callable[[float], bool]


_NUMBERS = {
    "temperature": _Allowed("a number, 0 or more", lambda x: x >= 0),
    "top_p": _Allowed("above 0, and 1 at most", lambda x: 0 < x <= 1),
    "min_p": _Allowed("from 0 to 1", lambda x: 0 <= x <= 1),
    "repetition_penalty": _Allowed("a number above 0", lambda x: x > 0),
    "presence_penalty": _Allowed("a finite number", lambda x: True),
    "frequency_penalty": _Allowed("a finite number", lambda x: True),
}


def sampling_of(max_tokens: int, fields: Mapping[str, Any]) -> Sampling:
    """A request's sampling from fields as a person writes them: lists for tuples, one stop string
    for a tuple of one. Raises UserError for a field that is not there."""
    known = [name for name in Sampling.__dataclass_fields__ if name != "max_tokens"]
    for name in fields:
        if name not in known:
            raise UserError(f"There is no field {name!r}: there are {', '.join(known)}.")
    stop = fields.get("stop", ())
    several = {"stop": (stop,) if isinstance(stop, str) else stop}
    several |= {"stop_token_ids": fields.get("stop_token_ids", ())}
    for name, value in several.items():
        if not isinstance(value, list | tuple):
            raise UserError(f"{name} = {value!r} must be a list.")
    tuples = {name: tuple(value) for name, value in several.items()}
    return Sampling(max_tokens, **{**fields, **tuples})


def check(sampling: Sampling) -> None:
    """Raises UserError for a value that no token can be chosen by, naming its field."""
    for name, allowed in _NUMBERS.items():
        value = getattr(sampling, name)
        if not (_is_finite(value) and allowed.holds(value)):
            raise UserError(f"{name} = {value!r} must be {allowed.words}.")
    for name in ("max_tokens", "min_tokens", "top_k"):
        value = getattr(sampling, name)
        if not _is_whole(value) or value < 0:
            raise UserError(f"{name} = {value!r} must be a whole number, 0 or more.")
    if sampling.seed is not None and not (
        _is_whole(sampling.seed) and -(2**63) <= sampling.seed < 2**63
    ):
        raise UserError(f"seed = {sampling.seed!r} must be a whole number of 64 bits.")
    if not all(map(_is_whole, (*sampling.stop_token_ids, *sampling.logit_bias))):
        raise UserError("stop_token_ids and logit_bias must name token ids, whole numbers.")
    if not all(map(_is_finite, sampling.logit_bias.values())):
        raise UserError("logit_bias must give finite numbers.")
    if not all(isinstance(text, str) and text for text in sampling.stop):
        raise UserError(f"stop = {sampling.stop!r} must be texts that are not empty.")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


class RowError(Exception):
    """One row of logits gives no token; only its request ends. The message is for its client.
    `own`: what the request asks for is the reason."""

    own = False


class NotFinite(RowError):
    """A logit is NaN or infinite."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"The logits at position {position} are not finite: the weights hold NaN or infinity, "
            f"or the cache type is too narrow for this model."
        )


class NothingAllowed(RowError):
    """Grammar and bans together leave no token."""

    own = True

    def __init__(self, position: int) -> None:
        super().__init__(
            f"The grammar and the other constraints leave no token to choose at position "
            f"{position}."
        )


class _Tally:
    """How often each of some token ids came, kept as arrays so that few are touched a step."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[slot] = token
        self._counts[slot] += 1

    @property
    def ids(self) -> np.ndarray:  # [distinct] int64
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> np.ndarray:  # [distinct] float32
        return self._counts[: len(self._slots)]


class Sampler:
    """Chooses the tokens of one choice of a request.

    `prompt` [ids] counts for the repetition penalty alone. `ends` are the token ids that would end
    the choice (the model's and the request's own), `seed` is the request's, or `draw_seed`'s.
    Source: repetition penalty, Keskar et al., "CTRL", 2019; frequency and presence penalty and
    logit_bias, OpenAI's API reference; the cuts are `survivors`'.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = (),
        choice: int = 0,
        seed: int = 0,
        ends: Collection[int] = (),
    ) -> None:
        self.sampling, self.choice, self.seed = sampling, choice, seed
        self.produced = 0  # tokens accepted so far
        self._ends = np.array(sorted({*ends, *sampling.stop_token_ids}), np.int64)
        self._bias_ids = np.array(list(sampling.logit_bias), np.int64)
        self._biases = np.array(list(sampling.logit_bias.values()), np.float32)
        self._repeats = sampling.repetition_penalty != 1.0
        self._counts = bool(sampling.frequency_penalty or sampling.presence_penalty)
        self._prompt = np.unique(np.array(prompt if self._repeats else (), np.int64))
        self._output = _Tally()
        self._draws: dict[bool, Draw] = {}

    @property
    def greedy(self) -> bool:
        """Whether the greatest logit is always taken."""
        return self.sampling.temperature < noise.COLD

    @property
    def edits(self) -> bool:
        """Whether the next row's logits are changed before the choice, a grammar apart."""
        early = len(self._ends) > 0 and self.produced < self.sampling.min_tokens
        return self._repeats or self._counts or len(self._bias_ids) > 0 or early

    @property
    def truncates(self) -> bool:
        """Whether min_p, top_k or top_p may leave tokens out."""
        s = self.sampling
        return not self.greedy and (s.min_p > 0 or s.top_k > 0 or s.top_p < 1)

    def choose(self, logits: np.ndarray, mask: np.ndarray | None, position: int) -> int:
        """The token after `position`, from its row of logits: float32 [vocab], left unchanged.

        `mask`, int32 [words], has a bit for each token that may come, as a grammar's matcher fills
        it: the lowest bit first; ids past its end may not. The token counts as accepted.
        Raises NotFinite or NothingAllowed.
        """
        token = self._draw(self._edited(logits, mask, position), position)
        self.accept(token)
        return token

    def accept(self, token: int) -> None:
        """Counts a token that was chosen elsewhere (on a device); `choose` counts its own."""
        self.produced += 1
        if self._repeats or self._counts:
            self._output.add(token)

    def draw(self, produced: int, mask: np.ndarray | None = None) -> Draw:
        """How a machine chooses the token after `produced` of them; `mask` int32 [words] is as for
        `choose`."""
        early = produced < self.sampling.min_tokens and len(self._ends) > 0
        if early and mask is not None:
            early = _allows_others(mask, self._ends)
        if early not in self._draws:
            self._draws[early] = self._drawn(early)
        draw = self._draws[early]
        return draw if mask is None else replace(draw, mask=mask)

    def _drawn(self, early: bool) -> Draw:
        s, biased = self.sampling, len(self._bias_ids) > 0
        edits = self._repeats or self._counts or biased or early
        drawn = {"temperature": s.temperature, "seed": self.seed, "choice": self.choice}
        drawn |= {"top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p}
        if self.greedy:
            if not edits and s.logprobs is None:
                return GREEDY
            drawn = {}
        return Draw(
            **drawn,  # type: ignore[arg-type]
            repetition=s.repetition_penalty,
            frequency=s.frequency_penalty,
            presence=s.presence_penalty,
            biased=biased,
            early=early,
            told=s.logprobs,
            tables=self if edits else None,
        )

    def tally(self) -> tuple[np.ndarray, np.ndarray]:
        """What is known of the tokens in prompt and output, and of those that end it: ids int64
        [some], and int32 [some], as the op `sample` takes it."""
        ids = np.unique(np.concatenate((self._prompt, self._output.ids, self._ends)))
        known = np.zeros(len(ids), np.int32)
        known[np.searchsorted(ids, self._output.ids)] += self._output.counts.astype(np.int32)
        known[np.searchsorted(ids, self._prompt)] += PROMPT
        known[np.searchsorted(ids, self._ends)] += END
        return ids, known

    def bias(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 [some] and what is added to their logits, float32 [some]."""
        return self._bias_ids, self._biases

    def _edited(self, logits: np.ndarray, mask: np.ndarray | None, position: int) -> np.ndarray:
        """The row after penalties, bias and bans; the row itself when none applies."""
        if not self.edits and mask is None:
            return logits
        if not math.isfinite(logits.max()):  # before a mask hides it
            raise NotFinite(position)
        row, s = logits.copy(), self.sampling
        if self._repeats:
            seen = np.union1d(self._prompt, self._output.ids)
            penalty = np.float32(s.repetition_penalty)
            row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        if self._counts:
            counts = self._output.counts * np.float32(s.frequency_penalty)
            row[self._output.ids] -= counts + np.float32(s.presence_penalty)
        row[self._bias_ids] += self._biases
        early = self._ends if self.produced < s.min_tokens else self._ends[:0]
        kept = row[early]
        row[early] = -np.inf
        if mask is not None:
            allowed = _bits(mask, row.size)
            row[~allowed] = -np.inf
            if len(early) and row.max() == -np.inf:
                row[early] = np.where(allowed[early], kept, -np.inf)
        return row

    def _draw(self, row: np.ndarray, position: int) -> int:
        if self.greedy:
            return checked_greatest(row, int(row.argmax()), position)
        s = self.sampling
        scores = row / np.float32(s.temperature)
        greatest = scores.max()
        if not math.isfinite(greatest):
            raise NothingAllowed(position) if greatest == -np.inf else NotFinite(position)
        if not self.truncates:
            return noise.race(scores, self.seed, self.choice, position)
        ids = survivors(scores, s.min_p, s.top_k, s.top_p)
        if ids.size > scores.size // FEW:
            left = np.full_like(scores, -np.inf)
            left[ids] = scores[ids]
            return noise.race(left, self.seed, self.choice, position)
        sums = scores[ids] + noise.gumbel(ids, self.seed, self.choice, position)
        return int(ids[sums.argmax()])


def choose_all(
    samplers: Sequence[Sampler],
    logits: np.ndarray,
    masks: Sequence[np.ndarray | None],
    positions: Sequence[int],
) -> list[int | RowError]:
    """`choose` for each row of `logits` float32 [rows, vocab]; a row's error stands in its place.

    `masks` [rows] are None or int32 [words] each, `positions` [rows] are those of the rows.
    """
    greatest = logits.argmax(axis=1) if any(s.greedy for s in samplers) else None

    def one(row: int) -> int | RowError:
        sampler, mask = samplers[row], masks[row]
        try:
            if greatest is None or not sampler.greedy or sampler.edits or mask is not None:
                return sampler.choose(logits[row], mask, positions[row])
            token = checked_greatest(logits[row], int(greatest[row]), positions[row])
        except RowError as error:
            return error
        sampler.accept(token)
        return token

    return [one(row) for row in range(len(samplers))]


def draw_seed() -> int:
    """A seed for a request that brings none: an int64 from the system's randomness."""
    return secrets.randbits(64) - (1 << 63)


def checked_greatest(row: np.ndarray, index: int, position: int) -> int:
    """`index`, the argmax of `row` float32 [vocab], which is a NaN's where there is one. Raises
    NotFinite for NaN or infinity there, NothingAllowed for -inf."""
    value = row[index]
    if math.isfinite(value):
        return index
    raise NothingAllowed(position) if value == -np.inf else NotFinite(position)


def _allows_others(mask: np.ndarray, ids: np.ndarray) -> bool:
    """Whether a mask int32 [words] allows any token but `ids` [some]."""
    others, here = mask.view(np.uint32).copy(), ids[ids < 32 * mask.size]
    np.bitwise_and.at(others, here // 32, ~(np.uint32(1) << (here % 32).astype(np.uint32)))
    return bool(others.any())


def _bits(mask: np.ndarray, vocab: int) -> np.ndarray:
    """A mask's bits as bool [vocab]."""
    bits = np.unpackbits(mask.view(np.uint8), count=min(vocab, 32 * mask.size), bitorder="little")
    return np.pad(bits, (0, vocab - bits.size)).astype(bool)
