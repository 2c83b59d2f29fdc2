"""What a measured step on a GPU runs on: random weights and keys, drawn on the device, and the
inputs of a step whose rows are sequences of given lengths. Nothing is timed here."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mkport.declare import TensorSpec
from mkport.errors import UserError
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph

AT_ONCE = 1 << 26  # elements drawn together
LARGE = 1 << 19  # elements of an array that gets a block of its own
LENGTHS = re.compile(r"(\d+)(?:x(\d+))?")


def lengths_of(text: str) -> list[int]:
    """Positions of each row of a ragged batch, [rows]: "204800,500x7" is one of 204,800 and seven
    of 500. Raises UserError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = LENGTHS.fullmatch(part.strip())
        if match is None or not int(match[1]) or match[2] == "0":
            raise UserError(
                f"{part!r} is no length: give positions, as in 204800,500x7, which is one row of "
                "204800 and seven of 500."
            )
        found += [int(match[1])] * int(match[2] or 1)
    return found


def shape_of(lengths: Sequence[int], stage: int = 0) -> StepShape:
    """A step of one token for each of the sequences of `lengths` [rows] positions, its pools as
    large as they need; `stage` is StepShape's, in bytes."""
    rows, context = len(lengths), max(lengths)
    shape = StepShape(rows=rows, context=context, sequences=rows, logits=rows, stage=stage)
    pages = sum(-(-length // shape.page) for length in lengths)
    return StepShape(
        rows=rows, context=context, sequences=rows, logits=rows, stage=stage, pages=pages,
        window_pages=pages,
    )  # fmt: skip


def random_bf16(shape: tuple[int, ...], spread: float, seed: int) -> Any:
    """Normal numbers of the given spread as bfloat16 bits: CuPy uint16 of `shape`."""
    import cupy

    if math.prod(shape) >= LARGE:
        # else CuPy cuts it from what drawing the one before took, whose rest nobody can give back
        cupy.get_default_memory_pool().free_all_blocks()
    out = cupy.empty(shape, cupy.uint16)
    flat = out.reshape(-1)
    draw = cupy.random.default_rng(seed)
    for first in range(0, flat.size, AT_ONCE):
        count = min(AT_ONCE, flat.size - first)
        bits = (draw.standard_normal(count, cupy.float32) * spread).view(cupy.uint32)
        flat[first : first + count] = (bits >> 16).astype(cupy.uint16)
    return out


def random_tensor(spec: TensorSpec, table: np.ndarray, seed: int) -> Any:
    """A weight or a part of the cache, drawn on the device; `table` is the rotary one, float32
    [positions, head_dim]."""
    import cupy

    if spec.name == "rope":
        return cupy.asarray(table)
    if spec.dtype == "i32":
        return cupy.zeros(spec.shape, cupy.int32)
    if spec.kind == "weight" and spec.dtype == "f32":
        return cupy.ones(spec.shape, cupy.float32)
    return random_bf16(spec.shape, spec.shape[-1] ** -0.5 if spec.kind == "weight" else 1.0, seed)


def drawn(graph: Graph, table: np.ndarray) -> dict[str, Any]:
    """Random weights and cache; `table` float32 [positions, head_dim] is the rotary one."""
    return {
        name: random_tensor(spec, table, seed)
        for seed, (name, spec) in enumerate(graph.tensors.items())
        if spec.kind in ("weight", "state")
    }


def step_inputs(
    graph: Graph, shape: StepShape, vocab: int, lengths: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """The inputs of a step of random tokens, each at the last of its sequence's positions:
    `lengths` [rows], or the context's. Pages are dealt at random, as far as a sequence goes."""
    rows = shape.rows
    if lengths is None:
        lengths = [shape.context] * rows
    needs = [-(-length // shape.page) for length in lengths]
    arrays: dict[str, np.ndarray] = {}
    for name, pool in ((FULL_TABLE, shape.pool), (WINDOW_TABLE, shape.window_pool)):
        if name in graph.tensors:
            pages = np.random.default_rng(0).permutation(pool).astype(np.int32)
            table = np.zeros((rows, shape.pages_per_sequence), np.int32)
            ends = np.cumsum(needs)
            for row, (end, need) in enumerate(zip(ends, needs, strict=True)):
                table[row, :need] = pages[end - need : end]
            arrays[name] = table
    where = [(sequence, length - 1) for sequence, length in enumerate(lengths)]
    return arrays | {
        "count": np.array([rows], np.int32),
        "tokens": np.random.default_rng(1).integers(0, vocab, rows).astype(np.int32),
        "rows": np.array(where, np.int32),
        "logit_count": np.array([rows], np.int32),
        "logit_rows": np.arange(rows, dtype=np.int32),
    }
