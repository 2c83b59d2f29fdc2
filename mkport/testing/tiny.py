"""Small random models of every family: the steps that ops are checked inside of."""

from functools import cache

import numpy as np

from mkport.compose import Program, compose_cpu
from mkport.declare import Op
from mkport.declare.case import stored
from mkport.library import all_ops
from mkport.models import family_of, llama, parse_config, rope
from mkport.models.sampled import sampled
from mkport.models.sizes import TINY
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph

SHAPE = StepShape(rows=6, context=640, sequences=3, logits=4, page=16)
LLAMA = llama.LlamaConfig(
    hidden=64,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    ffn=112,
    vocab=77,
    norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    context=512,
    tied=True,
    eos_ids=(2,),
    bos_id=1,
)


def library() -> list[Op]:
    """Every op with a CPU body: composed together, so that one program runs any model's step."""
    return [op for op in all_ops().values() if (op.folder / "task.py").is_file()]


@cache
def program(dtype: str) -> Program:
    """The library's program for one storage type of weights and cache."""
    return compose_cpu(library(), dtype, dtype, "Every op of the library")


def graphs(shape: StepShape) -> dict[str, Graph]:
    """A step graph of each family's small model, and one whose tokens are drawn, with the opcodes
    of the library's program."""
    found = {"llama": llama.build(LLAMA, shape)}
    for name, fields in TINY.items():
        # a vocabulary that ends in the middle of a tile
        config = fields | {"vocab_size": LLAMA.vocab}
        found.setdefault(name, family_of(config).build(parse_config(config), shape))
    found["llama, drawn"] = sampled(found["llama"])
    return {name: graph.within(library()) for name, graph in found.items()}


def held(graph: Graph, context: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random weights and a random cache of a step graph; the rotary table has `context`
    positions."""
    arrays: dict[str, np.ndarray] = {}
    for name, spec in graph.tensors.items():
        if name == "rope":
            inverse = rope.inverse_frequencies(spec.shape[1], rope.DEFAULT_THETA, None)
            arrays[name] = rope.rope_table(inverse, context)
        elif spec.kind == "weight" and len(spec.shape) == 1:
            arrays[name] = 1 + 0.1 * rng.standard_normal(spec.shape, np.float32)
        elif spec.kind == "weight":
            values = rng.standard_normal(spec.shape, np.float32) / np.sqrt(spec.shape[-1])
            arrays[name] = stored(values, spec.dtype)
        elif spec.kind == "state" and spec.dtype == "i32":
            arrays[name] = rng.integers(0, 2**30, spec.shape).astype(np.int32)
        elif spec.kind == "state":
            arrays[name] = stored(rng.standard_normal(spec.shape, np.float32), spec.dtype)
    return arrays


def fill(graph: Graph, shape: StepShape, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random weights, a random cache and a ragged batch for a step graph.

    The last row stays idle; one sequence has two tokens in the step, as in a prompt chunk.
    """
    arrays = held(graph, shape.context, rng)
    positions = [(0, 3), (1, 255), (1, 256), (2, 300), (2, 301)][: shape.rows - 1]
    rows = np.full((shape.rows, 2), -1, np.int32)
    rows[: len(positions)] = positions
    for name, pool in ((FULL_TABLE, shape.pool), (WINDOW_TABLE, shape.window_pool)):
        if name in graph.tensors:
            table = rng.permutation(pool)[: shape.sequences * shape.pages_per_sequence]
            arrays[name] = table.astype(np.int32).reshape(shape.sequences, -1)
    if "sampling" in graph.tensors:  # a greedy row, one that is drawn, one that asks for everything
        tables = {name: graph.tensors[name].shape for name in ("mask", "bias")}
        arrays["mask"] = rng.integers(-(2**31), 2**31, tables["mask"]).astype(np.int32)
        arrays["bias"] = rng.standard_normal(tables["bias"], np.float32)
        words = np.zeros(graph.tensors["sampling"].shape, np.int32)
        words[:, 1:4] = rng.integers(0, 2**31, (len(words), 3))
        words[1:, 0] = np.float32(0.8).view(np.int32)
        words[2:, 4:7], words[2:, 11] = (63, 40, 2**30), 6
        words[2:, 7:11] = np.array([-3, 1.2, 0.3, 0.2], np.float32).view(np.int32)
        arrays["sampling"] = words
    return arrays | {
        "count": np.array([len(positions)], np.int32),
        "tokens": rng.integers(0, LLAMA.vocab, shape.rows).astype(np.int32),
        "rows": rows,
        "logit_count": np.array([3], np.int32),
        "logit_rows": np.array([0, 2, 4, 0], np.int32)[: shape.logits],
    }
