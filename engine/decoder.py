"""Runs a model's steps on a machine: tokens of sequences in, logits and choices out.

It owns the machines (for decoding and for prompt chunks, sharing weights and cache) and the page
tables. When to stop is the caller's business.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mkport.engine.load import LoadedModel
from mkport.engine.sampled import GREEDY, Draw
from mkport.engine.steps import Steps
from mkport.engine.target import Machine, target_of
from mkport.errors import UserError
from mkport.models.step import StepShape

PAGE = 64  # keys in a page of the cache
# Where a step takes few tokens unless told otherwise, on a GPU, a long prompt is read in larger
# chunks: each reads more of the weights, but they are far fewer. Their step takes seconds more to
# plan and verify, so that a short prompt is read sooner without.
LONG_PROMPT, LONG_CHUNK = 4096, 64  # tokens


def decode_shape(
    model: LoadedModel, batch: int = 1, context: int | None = None, page: int = PAGE
) -> StepShape:
    """The shape of a step that decodes one token of each of `batch` sequences.

    `context` positions each, the model's own limit at most. Raises UserError for a batch or context
    below 1, and for a page that is not a positive multiple of 16 keys.
    """
    if batch < 1 or (context is not None and context < 1):
        raise UserError(
            f"A batch of {batch} sequences of {context} positions holds nothing: give a batch and "
            "a context of at least 1."
        )
    limit = model.config.context
    return StepShape(
        rows=batch,
        context=limit if context is None else min(context, limit),
        sequences=batch,
        logits=batch,
        page=page,
        weights=model.weights.dtype,
        cache=model.weights.dtype,
    )


def prompt_chunk(tokens: int) -> int | None:
    """The `chunk` that suits a decoder for one prompt of so many tokens; None is its own choice."""
    return LONG_CHUNK if tokens >= LONG_PROMPT else None


def check_prompt(tokens: int, context: int, start: int = 0) -> None:
    """Raises UserError when a prompt of so many tokens, from position `start` on, is empty or does
    not fit the context, in positions."""
    if not tokens:
        raise UserError("The prompt is empty. Give at least one token.")
    if start + tokens > context:
        raise UserError(
            f"The prompt reaches position {start + tokens}, but the context has {context} "
            "positions. Shorten the prompt."
        )


class Decoder:
    """Steps of one model. Use as a context manager, or `close`.

    `batch` sequences can be decoded side by side; `context` positions each, the model's own limit
    at most. `on` is the machine: "cpu", "cuda", or "host", which runs the CUDA source on the CPU.
    `workers` defaults to the usable cores, or the GPU's multiprocessors; `chunk`, the prompt's
    tokens in one step, to what suits the machine. `widths` [machines] adds some for fewer tokens
    than `batch`: a step runs on the smallest that holds it. The cache is stored like the weights.
    Raises UserError for a batch or context below 1, a page that is not a positive multiple of 16
    keys, a number of workers that no schedule has, and a machine that is not there or has no room.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        on: str = "cpu",
        batch: int = 1,
        context: int | None = None,
        workers: int | None = None,
        chunk: int | None = None,
        page: int = PAGE,
        all_logits: bool = False,
        widths: Sequence[int] = (),
    ) -> None:
        target = target_of(on)
        decode = decode_shape(model, batch, context, page)
        self.target = target
        self.model = model
        self.batch = batch
        self.context = decode.context
        self.workers = target.workers() if workers is None else workers
        rows = max(target.chunk if chunk is None else chunk, batch)
        prompt = replace(decode, rows=rows, logits=rows if all_logits else batch)
        narrow = [replace(decode, rows=w, logits=w) for w in sorted(set(widths)) if w < batch]
        shapes = [*narrow, decode, *([prompt] if prompt != decode else [])]
        self._steps = Steps(model, shapes, self.workers, target)
        self.decode = self._steps.planned[len(narrow)]
        self._decode = len(narrow)
        for name, table in self._steps.tables.items():  # every sequence has its pages for good
            for row, pages in enumerate(np.arange(table.size).reshape(table.shape)):
                self._steps.turn(name, row, 0, pages)
        self.chunk = rows

    @property
    def machine(self) -> Machine:
        """The machine that decodes."""
        return self._steps.machines[self._decode]

    @property
    def machines(self) -> list[Machine]:
        """Every machine: for decoding, for prompt chunks. They share weights and cache."""
        return self._steps.machines

    def step(
        self,
        tokens: Sequence[tuple[int, int, int]],
        wanted: Sequence[int],
        trace: bool = False,
        draws: Sequence[Draw] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs one step over `tokens`, each (sequence, position, id), in ascending position.

        Every earlier position of each sequence has been run. Returns, for the rows `wanted` of
        `tokens`, the choices int32 [wanted] (-1 where logits are not finite), greedy unless `draws`
        says otherwise of each, and the logits float32 [wanted, vocabulary]; both are overwritten by
        the next step. Raises UserError for more tokens or rows than a step holds, and for a token
        or row that is not there.
        """
        self._check_step(tokens, wanted)
        machine = self._machine_for(len(tokens), len(wanted))
        places = [(sequence, position) for sequence, position, _ in tokens]
        ids = [token for _, _, token in tokens]
        return self._steps.run(machine, places, ids, wanted, trace, draws)

    def follow(
        self, tokens: Sequence[tuple[int, int, int]], steps: int, draws: Sequence[Draw] = ()
    ) -> Iterator[np.ndarray]:
        """Runs up to `steps` steps, the first over `tokens` as `step` does; a row's choice is its
        next token, one position on.

        Yields each step's choices, int32 [rows]; after a -1 (its logits are not finite) a row means
        nothing. A GPU has the next step under way by then, so a caller that stops has let one step
        too many run, which harms nothing. Raises UserError as `step` does, and for steps that do
        not fit the context.
        """
        self._check_step(tokens, range(len(tokens)))
        end = max(position for _, position, _ in tokens) + steps
        if end > self.context:
            raise UserError(
                f"{steps} steps reach position {end - 1}, but the context has {self.context} "
                "positions. Take fewer."
            )
        machine = self._machine_for(len(tokens), len(tokens))
        places = [(sequence, position) for sequence, position, _ in tokens]
        ids = [token for _, _, token in tokens]
        yield from self._steps.follow(machine, places, ids, steps, draws)

    def prefill(
        self, sequence: int, ids: Sequence[int], start: int = 0, draw: Draw = GREEDY
    ) -> tuple[int, np.ndarray]:
        """Runs a prompt's ids [tokens], chunk by chunk, from position `start` of a sequence on.

        Every position before `start` has been run. Returns the choice after the last token (-1
        where its logits are not finite) and its logits float32 [vocabulary], which the next step
        overwrites. Raises UserError for an empty prompt, one that does not fit the context, and an
        id outside the vocabulary.
        """
        check_prompt(len(ids), self.context, start)
        for first in range(0, len(ids), self.chunk):
            part = ids[first : first + self.chunk]
            rows = [(sequence, start + first + i, token) for i, token in enumerate(part)]
            last = first + self.chunk >= len(ids)
            choice, logits = self.step(rows, [len(part) - 1] if last else [], draws=[draw] * last)
        return int(choice[0]), logits[0]

    def close(self) -> None:
        """Ends the machines' threads."""
        self._steps.close()

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _machine_for(self, tokens: int, wanted: int) -> Machine:
        """The smallest machine that holds a step. Raises UserError when none does."""
        machine = self._steps.machine_for(tokens, wanted)
        if machine is not None:
            return machine
        largest = self._steps.planned[-1].shape
        raise UserError(
            f"A step of {tokens} tokens and the logits of {wanted} rows does not fit: this decoder "
            f"holds {largest.rows} tokens and the logits of {largest.logits} rows. Take several "
            "steps, or make the decoder with another batch, chunk or all_logits."
        )

    def _check_step(self, tokens: Sequence[tuple[int, int, int]], wanted: Sequence[int]) -> None:
        """Raises UserError for a token or a wanted row that the machine would read out of place."""
        for row in wanted:
            if not (_is_int(row) and 0 <= row < len(tokens)):
                raise UserError(
                    f"The row {row!r} is wanted, but the step has the rows 0 to {len(tokens) - 1}."
                )
        for sequence, position, token in tokens:
            if not (_is_int(sequence) and _is_int(position) and _is_int(token)):
                raise UserError(
                    f"The token {(sequence, position, token)!r} is not three whole numbers: "
                    "sequence, position, id."
                )
            if not 0 <= token < self.model.config.vocab:
                raise UserError(f"Token id {token} is outside the vocabulary.")
            if not (0 <= sequence < self.batch and 0 <= position < self.context):
                raise UserError(
                    f"Position {position} of sequence {sequence} is outside the context of "
                    f"{self.context} positions and {self.batch} sequences."
                )
        places = [(sequence, position) for sequence, position, _ in tokens]
        if len(set(places)) < len(places):
            sequence, position = next(p for n, p in enumerate(places) if p in places[:n])
            raise UserError(
                f"Position {position} of sequence {sequence} occurs twice in one step. Give each "
                "token a place of its own."
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
