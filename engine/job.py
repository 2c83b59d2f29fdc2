"""What the core knows of a request, of each of its choices, and of a step that is under way: plain
data, filled and read by `core`."""

from dataclasses import dataclass, field

from mkport.engine.grammar import Matcher
from mkport.engine.ran import Ran
from mkport.engine.request import Sampling, TokenLogprob
from mkport.engine.sampling import Sampler
from mkport.engine.sequence import Plan
from mkport.engine.sequence import Sequence as Tokens
from mkport.engine.stream import EventStream
from mkport.engine.text import OutputText


@dataclass(eq=False)
class Choice:
    """One of a request's outputs while it grows."""

    index: int
    sampler: Sampler
    text: OutputText
    tokens: Tokens
    matcher: Matcher | None = None  # of its grammar, if it has one


@dataclass(eq=False, slots=True)
class Flight:
    """A step that was launched and has not landed."""

    plan: Plan
    ran: Ran
    failed: dict[Tokens, Exception]  # whose token could not be asked for
    done: list[bool]  # [parts] whether the last row of a part tells the sequence's next token
    pending: dict[Tokens, int]  # the place in a sequence that its token will have
    began: float = 0.0  # when it was launched, in seconds of `time.perf_counter`

    def holds(self, tokens: Tokens) -> bool:
        """Whether a sequence is in it."""
        return any(part.sequence is tokens for part in self.plan.parts)


@dataclass(eq=False)
class Job:
    """A request that the engine has accepted."""

    stream: EventStream
    prompt: list[int]  # [tokens]
    sampling: Sampling
    choices: list[Choice]
    queued: bool = True  # has not begun to run
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
