"""How a step's tokens are chosen on the machine itself: greedily, or drawn at a temperature with
noise that depends on (seed, choice, position) alone. What else a request may ask for (penalties,
top-p, grammars) needs the logits on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mkport.engine.noise import key_of
from mkport.kernels.sample.op import COLUMNS, WORDS
from mkport.kernels.sample.op import OP as SAMPLE
from mkport.kernels.sample_join.op import OP as JOIN
from mkport.plan import Graph


@dataclass(frozen=True)
class Draw:
    """How a row's token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    seed: int = 0  # int64
    choice: int = 0  # which of a request's choices


GREEDY = Draw()


def words_of(draws: Sequence[Draw]) -> np.ndarray:
    """The op's words: int32 [rows, 4]."""
    words = np.zeros((len(draws), WORDS), np.uint32)
    for row, draw in zip(words, draws, strict=True):
        low, high = key_of(draw.seed)
        row[:] = np.float32(draw.temperature).view(np.uint32), low, high, draw.choice
    return words.view(np.int32)


def sampled(graph: Graph) -> Graph:
    """A family's step with `sample` and `sample_join` in place of the `argmax` at its end.

    It has one more input, `sampling`, the rows' words.
    """
    last = graph.nodes[-1]
    if last.op.name != "argmax":
        raise ValueError(f"the step ends with {last.op.name}, not with argmax")
    step = graph.first(len(graph.nodes) - 1)
    logits, count, n = last.args["x"], last.args["count"], last.args["n"]
    rows, parts = graph.tensors[logits].shape[0], -(-n // COLUMNS)
    step.tensor("sampling", "i32", (rows, WORDS), "input")
    step.tensor("best", "f32", (rows, parts), "scratch")
    step.tensor("at", "i32", (rows, parts), "scratch")
    step.add(
        SAMPLE,
        "sample",
        count=count,
        x=logits,
        sampling="sampling",
        index="logit_rows",
        rows="rows",
        best="best",
        at="at",
        n=n,
    )
    y = last.args["y"]
    step.add(JOIN, "sample_join", count=count, best="best", at="at", y=y, parts=parts)
    return step
