"""Decode steps of a model with random weights on a GPU: how fast, and where the time goes.

    python -m mkport.engine.bench.gpu_decode --family cohere2_moe --size full --batch 1

Weights are drawn on the device; the cache holds random keys and values, as if `context` - 1 tokens
had been read. Before anything is timed, the step must give finite logits and, run again, the same
bits. What a step must read is summed from the declared reads, with the experts that uniform routing
is expected to choose.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose.cuda import compose_cuda
from mkport.declare import TensorSpec
from mkport.engine.bench.decode import commit
from mkport.machines.cuda.gpu import gpu
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.cuda.machine import CudaMachine
from mkport.machines.cuda.nvrtc import nvrtc
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import config_of
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph, deal
from mkport.plan.bytes import distinct, step_bytes
from mkport.trace import Trace, render, summarise
from mkport.trace.collect import collect
from mkport.verify import verify

DATASHEET = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}  # bytes a second
AT_ONCE = 1 << 26  # elements drawn together


def random_bf16(shape: tuple[int, ...], spread: float, seed: int) -> Any:
    """Normal numbers of the given spread as bfloat16 bits: CuPy uint16 of `shape`."""
    import cupy

    out = cupy.empty(shape, cupy.uint16)
    flat = out.reshape(-1)
    draw = cupy.random.default_rng(seed)
    for first in range(0, flat.size, AT_ONCE):
        count = min(AT_ONCE, flat.size - first)
        bits = (draw.standard_normal(count, cupy.float32) * spread).view(cupy.uint32)
        flat[first : first + count] = (bits >> 16).astype(cupy.uint16)
    return out


def tensors_of(graph: Graph, shape: StepShape, table: np.ndarray, vocab: int) -> dict[str, Any]:
    """Random weights and cache, and the inputs of a step at the context's last position; `table`
    float32 [positions, head_dim] is the rotary one."""
    arrays = {
        name: random_tensor(spec, table, seed)
        for seed, (name, spec) in enumerate(graph.tensors.items())
        if spec.kind in ("weight", "state")
    }
    return arrays | step_inputs(graph, shape, vocab)


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


def step_inputs(graph: Graph, shape: StepShape, vocab: int) -> dict[str, np.ndarray]:
    """The inputs of a step of random tokens, each at the context's last position."""
    arrays: dict[str, np.ndarray] = {}
    rows = shape.rows
    for name, pool in ((FULL_TABLE, shape.pool), (WINDOW_TABLE, shape.window_pool)):
        if name in graph.tensors:
            pages = np.random.default_rng(0).permutation(pool).astype(np.int32)
            arrays[name] = pages[: rows * shape.pages_per_sequence].reshape(rows, -1)
    where = [(sequence, shape.context - 1) for sequence in range(rows)]
    return arrays | {
        "count": np.array([rows], np.int32),
        "tokens": np.random.default_rng(1).integers(0, vocab, rows).astype(np.int32),
        "rows": np.array(where, np.int32),
        "logit_count": np.array([rows], np.int32),
        "logit_rows": np.arange(rows, dtype=np.int32),
    }


def phases(trace: Trace, layer: str) -> str:
    """When the tasks of a layer's nodes ran, in us from the layer's first: a line a node."""
    chosen = [n for n, (label, _) in enumerate(trace.nodes) if label.startswith(f"{layer} /")]
    begin = min(trace.times[trace.node == n, 1].min() for n in chosen)
    lines = [
        f"{layer}, us            first ready   last ready    first end     last end   mean busy"
    ]
    for n in chosen:
        times = (trace.times[trace.node == n] - begin) / 1e3
        ready, end = times[:, 1], times[:, 2]
        figures = (ready.min(), ready.max(), end.min(), end.max(), (end - ready).mean())
        name = trace.nodes[n][0].split(" / ")[1]
        lines.append(f"{name:18}" + "".join(f"{value:13.1f}" for value in figures))
    return "\n".join(lines)


def measure(
    family: str, size: str, batch: int, context: int, repeats: int, stage: int | None = None
) -> dict[str, Any]:
    """Builds, verifies, composes, checks and times a step of `batch` tokens at `context` positions;
    returns everything as data, times in the unit that their name ends with. `stage` is StepShape's,
    in bytes: the machine's own unless told otherwise.

    Raises SystemExit for logits that are not finite or differ between runs.
    """
    import cupy

    config = parse_config(config_of(family, size))
    module = family_of(config_of(family, size))
    stage = stage_bytes(gpu().shared_bytes) if stage is None else stage
    shape = StepShape(rows=batch, context=context, sequences=batch, logits=batch, stage=stage)
    started = time.perf_counter()
    graph = sampled(module.build(config, shape))
    schedule = deal(graph, gpu().multiprocessors, "strided")
    report = verify(schedule)
    program = compose_cuda(schedule.graph.ops, "bf16", "bf16", batch)
    planned = time.perf_counter() - started
    table = module.rope_table(config, context)
    started = time.perf_counter()
    arrays = tensors_of(graph, shape, table, config.vocab)
    drawn = time.perf_counter() - started
    started = time.perf_counter()
    machine = CudaMachine(program, schedule, arrays)
    compiled = time.perf_counter() - started
    machine.poison()
    machine.step()
    first = machine.tensors["logits"].get()
    if not np.isfinite(first).all():
        raise SystemExit("the logits are not finite: nothing was timed")
    for _ in range(3):
        machine.poison()
        machine.step()
        if machine.tensors["logits"].get().tobytes() != first.tobytes():
            raise SystemExit("two runs differ in their bits: nothing was timed")
    times = []
    for _ in range(repeats):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        machine.launch()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
    machine.check()
    machine.step(trace=True)
    trace = collect(machine, f"measured on {gpu().name}")
    experts = getattr(config, "experts", None)
    top, count = getattr(experts, "top", 0), getattr(experts, "experts", 0)
    used = distinct(count, top, batch) / min(count, top * batch) if count else 1.0
    nbytes = step_bytes(graph, batch, context, lambda node: used)
    seconds = statistics.median(times)
    return {
        "gpu": gpu().name,
        "commit": commit(),
        "versions": {
            "cupy": cupy.__version__,
            "nvrtc": ".".join(map(str, nvrtc().version)),
            "driver": cupy.cuda.runtime.driverGetVersion(),
        },
        "family": family,
        "size": size,
        "batch": batch,
        "context": context,
        "records": report.records,
        "plan_s": planned,
        "draw_s": drawn,
        "compile_s": compiled,
        "step_s": times,
        "median_s": seconds,
        "tokens_per_second": batch / seconds,
        "bytes": nbytes,
        "share_of_datasheet": nbytes / seconds / DATASHEET.get(gpu().name, float("nan")),
        "memory_bytes": int(cupy.get_default_memory_pool().total_bytes()),
        "summary": render(summarise(trace)),
        "phases": phases(trace, f"layer {config.layers // 2}"),
    }


def table(folder: Path) -> str:
    """The results of a folder as a Markdown table, by context and batch."""
    results = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    results.sort(key=lambda r: (r["context"] != 8192, r["context"], r["batch"]))
    first = results[0]
    versions = ", ".join(f"{name} {value}" for name, value in first["versions"].items())
    lines = [
        f"Decode steps of {first['family']} at full size with random weights, bfloat16, uniform "
        f"routing, on one {first['gpu']} ({versions}, commit {first['commit']}); medians of "
        f"{len(first['step_s'])} launches, after a check that logits are finite and runs are equal "
        "bit for bit.",
        "",
        "| context | batch | ms a step | tokens/s | GB a step | of the datasheet | memory, GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| {r['context']} | {r['batch']} | {r['median_s'] * 1e3:.2f} "
            f"| {r['tokens_per_second']:.0f} | {r['bytes'] / 1e9:.2f} "
            f"| {100 * r['share_of_datasheet']:.0f} % | {r['memory_bytes'] / 1e9:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures one shape, prints a line and the trace's summary, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--family", default="cohere2_moe")
    parser.add_argument("--size", default="full")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--stage", type=int, help="bytes of a product's inputs, over 8 rows")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the results of a folder, measure nothing")
    given = parser.parse_args()
    if given.table:
        print(table(given.table), end="")
        return
    result = measure(
        given.family, given.size, given.batch, given.context, given.repeats, given.stage
    )
    print(result.pop("summary"))
    print(result.pop("phases"))
    print(
        f"batch {given.batch}, context {given.context}: {result['median_s'] * 1e3:.3f} ms, "
        f"{result['tokens_per_second']:.1f} tokens/s, {result['bytes'] / 1e9:.2f} GB, "
        f"{100 * result['share_of_datasheet']:.1f} % of the datasheet; "
        f"plan {result['plan_s']:.1f} s, draw {result['draw_s']:.1f} s, "
        f"compile {result['compile_s']:.1f} s, "
        f"memory {result['memory_bytes'] / 1e9:.1f} GB"
    )
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
