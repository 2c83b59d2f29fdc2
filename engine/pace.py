"""How much of a prompt a step takes beside sequences that decode, so that these wait no more than a
while longer for their tokens: so many tokens, or so many legs of a chunk's way through the layers.
Found from how long they take. What a step is made of is the scheduler's business, and results do
not depend on it."""

import math
from collections import deque
from statistics import median

BUDGET = 1.8  # a step with prompt tokens over the same one without: its slowest stay within twice
LEAST = 4  # prompt tokens, lest a prompt never ends
# Steps looked back on, of each kind: a median of so many does not see a machine's hiccups.
WITH, WITHOUT = 15, 7
EVERY = 20  # so many steps with prompt tokens, and then one without: what it takes changes too
PAUSE_S = 0.02  # of a chunk's legs between two steps
LATEST = 5  # legs looked back on, of chunks of about the same length


class Pace:
    """Learns what steps of each number of decoding sequences take, and what a prompt token adds.

    `first` is the share while nothing is known, `most` the largest, both in prompt tokens; one
    counts for more at a late position, where attention takes longer. It grows by one a step.
    """

    def __init__(self, first: int, most: int, budget: float = BUDGET) -> None:
        self._first, self._most, self._budget = first, most, budget
        self._alone: dict[int, deque[float]] = {}  # seconds, by decoding sequences
        self._added: deque[float] = deque(maxlen=WITH)  # seconds a prompt token
        self._largest = first  # share so far
        self._since = 0  # steps with prompt tokens since the last one without

    def share(self, decoding: int) -> int:
        """Prompt tokens for the next step, beside so many sequences that decode; now and then 0."""
        if self._since >= EVERY:
            return 0
        base = self._base(decoding)
        if base is None or not self._added:
            return self._first
        room, added = (self._budget - 1) * base, median(self._added)
        fits = int(room / added) if added > 0 else self._most
        self._largest = min(max(fits, LEAST), self._most, self._largest + 1)
        return self._largest

    def landed(self, decoding: int, prompt: int, seconds: float) -> None:
        """A step of so many decoding sequences and prompt tokens has taken so many seconds. One of
        few prompt tokens, a prompt's last, says little of what one adds."""
        if not decoding:
            return
        self._since = self._since + 1 if prompt else 0
        if not prompt:
            self._alone.setdefault(decoding, deque(maxlen=WITHOUT)).append(seconds)
        elif 2 * prompt >= self._largest and (base := self._base(decoding)) is not None:
            self._added.append((seconds - base) / prompt)

    def _base(self, decoding: int) -> float | None:
        """Seconds of a step without prompts: of so many sequences, or of the next fewer that is
        known, or of the next more."""
        if not self._alone:
            return None
        known = min(self._alone, key=lambda n: (n > decoding, abs(n - decoding)))
        return median(self._alone[known])


class Legs:
    """Learns what the legs of a chunk take, and so how many of them fit into a pause of `pause`
    seconds; a chunk has `legs` of them."""

    def __init__(self, legs: int, pause: float = PAUSE_S) -> None:
        self.legs, self._pause = legs, pause
        self._took: dict[int, deque[float]] = {}  # seconds a leg, by what holds so many tokens

    def share(self, tokens: int, done: int) -> int:
        """How many legs the next step takes of a chunk of so many tokens that has `done` some: one
        where nothing is known, else as many as fit, in steps that are as even as may be."""
        took = self._took.get(_size(tokens))
        if not took:
            return 1
        left, each = self.legs - done, median(took)
        fit = min(int(self._pause / each), left) if each > 0 else left
        return math.ceil(left / math.ceil(left / max(fit, 1)))

    def landed(self, tokens: int, legs: int, seconds: float) -> None:
        """So many legs of a chunk of so many tokens have taken so many seconds."""
        self._took.setdefault(_size(tokens), deque(maxlen=LATEST)).append(seconds / legs)


def _size(tokens: int) -> int:
    """Chunks are computed as the next larger power of two, or nearly so."""
    return (tokens - 1).bit_length()
