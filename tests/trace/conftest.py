"""Traces for these tests: one small enough to add up by hand, and made-up steps of any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mkport.trace import Trace

LAYER = (  # (name, op, tasks a worker, rough ns a task)
    ("input_norm", "rmsnorm", 0, 3_000),
    ("qkv_proj", "gemm", 2, 30_000),
    ("attention", "attention", 1, 24_000),
    ("combine", "combine", 0, 4_000),
    ("o_proj", "gemm", 1, 28_000),
    ("post_norm", "rmsnorm", 0, 3_000),
    ("up_proj", "gemm", 3, 42_000),
    ("down_proj", "gemm", 2, 40_000),
)


def made_up(workers: int, layers: int, seed: int = 0) -> Trace:
    """A step whose every phase waits for the phase before it; 0 tasks a worker: one alone."""
    chance = np.random.default_rng(seed)
    nodes = [("embed", "embedding")]
    phases = [(0, 0, 5_000)]
    for layer in range(layers):
        for name, op, per_worker, ns in LAYER:
            phases.append((len(nodes), per_worker, ns))
            nodes.append((f"layer {layer} / {name}", op))
    phases.append((len(nodes), 6, 80_000))
    nodes.append(("lm_head", "lm_head"))
    free = chance.integers(0, 3_000, workers)
    lists = [0] * workers
    done = 0
    rows = []
    for node, per_worker, ns in phases:
        chosen = range(workers) if per_worker else [int(chance.integers(workers))]
        ends = []
        for w in chosen:
            for _ in range(max(per_worker, 1)):
                start = int(free[w])
                ready = max(start, done + 500)
                end = ready + int(ns * chance.uniform(0.9, 1.25))
                rows.append((w, lists[w], node, start, ready, end))
                lists[w] += 1
                free[w] = end + 200
                ends.append(end)
        done = max(ends)
    table = np.array(rows)
    return Trace(
        workers=workers,
        worker=table[:, 0],
        record=table[:, 1],
        node=table[:, 2],
        times=table[:, 3:] + 1_000_000_000,
        nodes=tuple(nodes),
        caption="simulated, made-up times for a test",
    )


@pytest.fixture(scope="session")
def step() -> Callable[..., Trace]:
    """`step(workers, layers)`: a made-up step."""
    return made_up


@pytest.fixture
def tiny() -> Trace:
    """Two workers, three tasks, 1000 ns: worker 0 runs two gemms, worker 1 waits for the first."""
    return Trace(
        workers=2,
        worker=np.array([0, 1, 0], np.int32),
        record=np.array([0, 0, 1], np.int32),
        node=np.array([0, 1, 2], np.int32),
        times=np.array([[5000, 5000, 5400], [5100, 5400, 5600], [5500, 5600, 6000]]),
        nodes=(("layer 0 / q", "gemm"), ("layer 0 / attn", "attention"), ("layer 0 / o", "gemm")),
        caption="simulated, by hand",
    )
