"""Generates text for one prompt: prefill, then one token a step until a stop token or a limit."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mkport.engine.decoder import Decoder
from mkport.engine.sampled import GREEDY, Draw
from mkport.engine.text import StreamDecoder
from mkport.errors import UserError


@dataclass
class Generation:
    """What a finished generation was. Times in seconds."""

    prompt_tokens: int
    ids: list[int] = field(default_factory=list)  # [tokens] written, a stop token included
    text: str = ""
    reason: str = "length"  # "stop" at a stop token, "length" at the limit
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode steps a second; the first token is the prefill's."""
        return (len(self.ids) - 1) / self.decode_s if self.decode_s else 0.0


def continuation(
    decoder: Decoder,
    prompt: Sequence[int],
    max_tokens: int,
    stop: Sequence[int] = (),
    draw: Draw = GREEDY,
) -> Iterator[int]:
    """The continuation of `prompt` [ids], id by id: up to one of `stop` [ids], which is included,
    to `max_tokens`, or to the context's end.

    Raises UserError when the prompt does not fit the context, or logits are not finite.
    """
    token, _ = decoder.prefill(0, prompt, draw=draw)
    start = len(prompt)
    yield _finite(token, start - 1)
    steps = min(max_tokens - 1, decoder.context - start)
    if token in stop or steps < 1:
        return
    chosen = decoder.follow([(0, start, token)], steps, [draw])
    for position, tokens in enumerate(chosen, start):
        token = _finite(int(tokens[0]), position)
        yield token
        if token in stop:
            return


def _finite(token: int, position: int) -> int:
    """The token. Raises UserError for -1, which stands for logits that are not finite."""
    if token < 0:
        raise UserError(
            f"The logits at position {position} are not finite: the weights hold NaN or "
            "infinity, or the cache type is too narrow for this model."
        )
    return token


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    max_tokens: int,
    show: Callable[[str], object] = lambda piece: None,
    draw: Draw = GREEDY,
) -> Generation:
    """Runs `prompt` [ids] to its end; `show` receives each piece of text as it is finished. Raises
    UserError as `continuation` does."""
    tokenizer = decoder.model.tokenizer
    stop = tokenizer.eos_ids
    stream = StreamDecoder(tokenizer)
    result = Generation(len(prompt))
    pieces: list[str] = []

    def emit(piece: str) -> None:
        if piece:
            pieces.append(piece)
            show(piece)

    started = time.perf_counter()
    for token in continuation(decoder, prompt, max_tokens, stop, draw):
        now = time.perf_counter()
        if not result.ids:
            result.prefill_s, started = now - started, now
        result.ids.append(token)
        result.decode_s = now - started
        if token in stop:
            result.reason = "stop"
        else:
            emit(stream.push(token))
    emit(stream.finish())
    result.text = "".join(pieces)
    return result
