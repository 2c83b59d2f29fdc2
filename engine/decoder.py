"""Runs a model's steps on the CPU machine: tokens of sequences in, logits and choices out.

It owns the machines (one for decoding, one for prompt chunks, sharing weights and cache) and the
page table. Which token comes next, and when to stop, is the caller's business.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mkport.bandwidth import usable_cores
from mkport.engine.load import LoadedModel
from mkport.engine.steps import CpuSteps
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.models.step import StepShape

PROMPT_CHUNK = 64  # prompt tokens in one step
PAGE = 64  # keys in a page of the cache


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


def check_prompt(tokens: int, context: int, start: int = 0) -> None:
    """Raises UserError when a prompt of so many tokens, from position `start` on, is empty or does
    not fit the context."""
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
    at most. `workers` defaults to the usable cores. The cache is stored like the weights. Raises
    UserError for a batch or context below 1, a page that is not a positive multiple of 16 keys, or
    a number of workers that no schedule has.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        batch: int = 1,
        context: int | None = None,
        workers: int | None = None,
        chunk: int = PROMPT_CHUNK,
        page: int = PAGE,
        all_logits: bool = False,
    ) -> None:
        decode = decode_shape(model, batch, context, page)
        self.model = model
        self.batch = batch
        self.context = decode.context
        self.workers = usable_cores() if workers is None else workers
        rows = max(chunk, batch)
        prompt = replace(decode, rows=rows, logits=rows if all_logits else batch)
        shapes = [decode, prompt] if rows > batch or all_logits else [decode]
        self._steps = CpuSteps(model, shapes, self.workers)
        self.decode = self._steps.planned[0]
        for table in self._steps.tables.values():  # every sequence has its pages for good
            table[...] = np.arange(table.size).reshape(table.shape)
        self.chunk = rows

    @property
    def machine(self) -> CpuMachine:
        """The machine that decodes."""
        return self._steps.machines[0]

    @property
    def machines(self) -> list[CpuMachine]:
        """Every machine: for decoding, for prompt chunks. They share weights and cache."""
        return self._steps.machines

    def step(
        self, tokens: Sequence[tuple[int, int, int]], wanted: Sequence[int], trace: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs one step over `tokens`, each (sequence, position, id), in ascending position.

        Every earlier position of each sequence has been run. Returns, for the rows `wanted` of
        `tokens`, the greedy choices int32 [wanted] (-1 where logits are not finite) and the
        logits float32 [wanted, vocabulary]; both are overwritten by the next step. Raises UserError
        for more tokens or rows than a step holds, and for a token or row that is not there.
        """
        self._check_step(tokens, wanted)
        machine = self._machine_for(len(tokens), len(wanted))
        places = [(sequence, position) for sequence, position, _ in tokens]
        ids = [token for _, _, token in tokens]
        return self._steps.run(machine, places, ids, wanted, trace)

    def prefill(self, sequence: int, ids: Sequence[int], start: int = 0) -> tuple[int, np.ndarray]:
        """Runs a prompt's ids, chunk by chunk, from position `start` of a sequence on.

        Every position before `start` has been run. Returns the greedy choice after the last token
        (-1 where its logits are not finite) and its logits float32 [vocabulary], which the next
        step overwrites. Raises UserError for an empty prompt, one that does not fit the context,
        and an id outside the vocabulary.
        """
        check_prompt(len(ids), self.context, start)
        for first in range(0, len(ids), self.chunk):
            part = ids[first : first + self.chunk]
            rows = [(sequence, start + first + i, token) for i, token in enumerate(part)]
            last = first + self.chunk >= len(ids)
            choice, logits = self.step(rows, [len(part) - 1] if last else [])
        return int(choice[0]), logits[0]

    def close(self) -> None:
        """Ends the machines' threads."""
        self._steps.close()

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _machine_for(self, tokens: int, wanted: int) -> CpuMachine:
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
