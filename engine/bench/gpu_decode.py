"""Decode steps of a model with random weights on a GPU: how fast, and where the time goes.

    python -m mkport.engine.bench.gpu_decode --family cohere2_moe --size full --batch 1

Weights are drawn on the device; the cache holds random keys and values, as if all tokens but a
sequence's last had been read. Before anything is timed, the step must give finite logits and, run
again from poisoned scratch, the same bits; if asked, rows must have the bits that they have in a
step of their own, and the model's first layers obey the tolerance law. What a step must read is
summed from the declared reads, with the experts that uniform routing is expected to choose.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.fixed import compose_cuda_for
from mkport.engine.bench.decode import commit
from mkport.engine.bench.gpu_inputs import drawn, lengths_of, shape_of, step_inputs
from mkport.machines.cuda.gpu import gpu
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.cuda.machine import CudaMachine
from mkport.machines.cuda.nvrtc import nvrtc
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import Graph, Schedule, deal, flagged_for
from mkport.plan.bytes import distinct, step_bytes
from mkport.trace import Trace, render, summarise
from mkport.trace.collect import collect
from mkport.verify import verify

DATASHEET = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}  # bytes a second
RUNS = 20  # that must give the same bits


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


def built(
    config: Any, module: Any, shape: StepShape, workers: int
) -> tuple[Graph, Schedule, CudaProgram]:
    """A step of the shape: its graph, the schedule, verified, and the composed program."""
    graph = flagged_for(sampled(module.build(config, shape)), shape.rows)
    schedule = deal(graph, workers, "strided")
    verify(schedule)
    program = compose_cuda_for(schedule.graph, "bf16", "bf16", shape.rows)
    return graph, schedule, program


def checked(machine: Any, runs: int = RUNS) -> np.ndarray:
    """A step's logits, float32 [rows, vocabulary]: finite, and the same bits in so many runs from
    poisoned scratch. Raises SystemExit otherwise."""
    logits = machine.tensors["logits"].view(np.uint32)
    machine.poison()
    machine.step()
    first = logits.copy()
    for _ in range(runs - 1):
        machine.poison()
        machine.step()
        if not bool((logits == first).all()):
            raise SystemExit("two runs differ in their bits: nothing was timed")
    found = fetched(first.view(np.float32))
    if not np.isfinite(found).all():
        raise SystemExit("the logits are not finite: nothing was timed")
    return found


def check_alone(
    machine: Any, logits: np.ndarray, config: Any, module: Any, shape: StepShape,
    make: Callable[..., Any] = CudaMachine,
) -> list[int]:  # fmt: skip
    """Which rows were run in a step of one row, over the same weights, cache and pages, and had
    there the bits of `logits` [rows, vocabulary]: the first and the last. `make` makes a machine.
    Raises SystemExit when one has others."""
    graph, schedule, program = built(
        config, module, replace(shape, rows=1, logits=1), machine.schedule.workers
    )
    given = {name: machine.tensors[name] for name, spec in graph.tensors.items()
             if spec.kind in ("weight", "state") or "page_table" in name}  # fmt: skip
    one = make(program, schedule, given)
    chosen = sorted({0, shape.rows - 1})
    for row in chosen:
        for name, value in (("count", 1), ("logit_count", 1), ("logit_rows", 0)):
            one.tensors[name][0] = value
        for name in ("rows", "tokens"):
            one.tensors[name][:] = machine.tensors[name][row : row + 1]
        one.poison()
        one.step()
        if fetched(one.tensors["logits"])[0].tobytes() != logits[row].tobytes():
            raise SystemExit(f"row {row} has other bits alone: nothing was timed")
    return chosen


def fetched(array: Any) -> np.ndarray:
    """A copy for the host, of the same shape."""
    found: np.ndarray = array.get() if hasattr(array, "get") else array.copy()
    return found


def read_bytes(graph: Graph, config: Any, lengths: Sequence[int]) -> float:
    """Bytes that a step of sequences of `lengths` [rows] positions must read."""
    experts = getattr(config, "experts", None)
    top, count = getattr(experts, "top", 0), getattr(experts, "experts", 0)
    rows = len(lengths)
    used = distinct(count, top, rows) / min(count, top * rows) if count else 1.0
    weights = step_bytes(graph, rows, 0, lambda node: used)
    one = step_bytes(graph, 1, 0)
    keys = {length: step_bytes(graph, 1, length) - one for length in set(lengths)}
    return weights + sum(keys[length] for length in lengths)


def measure(
    family: str,
    size: str,
    lengths: Sequence[int],
    repeats: int,
    stage: int | None = None,
    alone: bool = False,
    lawful: bool = False,
) -> tuple[dict[str, Any], Trace]:
    """Builds, verifies, composes, checks and times a step of a token for each sequence of `lengths`
    [rows] positions; returns everything as data, times in the unit that their name ends with, and
    the trace of a step. `stage` is StepShape's, in bytes: the machine's own unless told otherwise.
    With `alone` rows are compared with steps of one row, with `lawful` the law is applied.

    Raises SystemExit for logits that are not finite or differ where they must not.
    """
    import cupy

    config = parse_config(config_of(family, size))
    module = family_of(config_of(family, size))
    shape = shape_of(lengths, stage_bytes(gpu().shared_bytes) if stage is None else stage)
    started = time.perf_counter()
    graph, schedule, program = built(config, module, shape, gpu().multiprocessors)
    planned = time.perf_counter() - started
    started = time.perf_counter()
    held = drawn(graph, module.rope_table(config, shape.context))
    arrays = held | step_inputs(graph, shape, config.vocab, lengths)
    cupy.get_default_memory_pool().free_all_blocks()  # what drawing took
    took = time.perf_counter() - started
    started = time.perf_counter()
    machine = CudaMachine(program, schedule, arrays)
    compiled = time.perf_counter() - started
    free, total = cupy.cuda.runtime.memGetInfo()
    logits = checked(machine)
    verdicts: dict[str, Any] = {"finite": True, "same_bits_in_runs": RUNS}
    if alone:
        verdicts["same_bits_alone"] = check_alone(machine, logits, config, module, shape)
    if lawful:
        from mkport.engine.bench.gpu_law import law
        from mkport.engine.bench.gpu_source import Source

        verdicts["law"] = law(Source.random(family, size), held, len(lengths), shape.context)
    times, queued = timed(machine, repeats)
    machine.step(trace=True)
    trace = collect(machine, f"measured on {gpu().name}: {said(lengths)}")
    nbytes, seconds = read_bytes(graph, config, lengths), statistics.median(times)
    kinds = sorted({spec.kind for spec in graph.tensors.values()})
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
        "batch": len(lengths),
        "context": shape.context,
        "lengths": list(lengths),
        "stage": shape.stage,
        "verdicts": verdicts,
        "records": sum(map(len, schedule.lists)),
        "plan_s": planned,
        "draw_s": took,
        "compile_s": compiled,
        "step_s": times,
        "queued_s": queued,  # host seconds until a step is queued
        "median_s": seconds,
        "tokens_per_second": len(lengths) / seconds,
        "bytes": nbytes,
        "share_of_datasheet": nbytes / seconds / DATASHEET.get(gpu().name, float("nan")),
        "memory_bytes": total - free,  # of the device, all that is in use
        "tensor_bytes": {
            kind: sum(spec.nbytes for spec in graph.tensors.values() if spec.kind == kind)
            for kind in kinds
        },
        "summary": render(summarise(trace)),
        "phases": phases(trace, f"layer {config.layers // 2}"),
    }, trace


def timed(machine: CudaMachine, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of so many steps on the device, and until the host had queued each, [repeats]."""
    import cupy

    times, queued = [], []
    for _ in range(repeats):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        started = time.perf_counter()
        machine.launch()
        queued.append(time.perf_counter() - started)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
    machine.check()
    return times, queued


def said(lengths: Sequence[int]) -> str:
    """The sequences in words, by their `lengths` [rows] in positions."""
    kinds = sorted(set(lengths), reverse=True)
    if len(kinds) == 1:
        return f"batch {len(lengths)}, context {lengths[0]}"
    parts = (f"{list(lengths).count(length)} of {length}" for length in kinds)
    return f"batch {len(lengths)}, ragged: {', '.join(parts)}"


def table(folder: Path) -> str:
    """The results of a folder as a Markdown table, by context and batch."""
    results = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    results.sort(key=lambda r: (r["context"] != 8192, r["context"], r["batch"]))
    first = results[0]
    versions = ", ".join(f"{name} {value}" for name, value in first["versions"].items())
    lines = [
        f"Decode steps of {first['family']} at full size with random weights, bfloat16, uniform "
        f"routing, on one {first['gpu']} ({versions}, commit {first['commit']}); medians of "
        f"{len(first['step_s'])} launches, after a check that logits are finite and "
        f"{first['verdicts']['same_bits_in_runs']} runs are equal bit for bit.",
        "",
        "| step | ms | tokens/s | GB a step | of the datasheet | to queue it, us | memory, GB "
        "| beside weights, keys and values |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        held = r["tensor_bytes"]["weight"] + r["tensor_bytes"]["state"]
        lines.append(
            f"| {said(r['lengths'])} | {r['median_s'] * 1e3:.2f} "
            f"| {r['tokens_per_second']:.0f} | {r['bytes'] / 1e9:.2f} "
            f"| {100 * r['share_of_datasheet']:.0f} % "
            f"| {statistics.median(r['queued_s']) * 1e6:.0f} | {r['memory_bytes'] / 1e9:.1f} "
            f"| {(r['memory_bytes'] - held) / 1e9:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures one shape, prints a line and the trace's summary, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--family", default="cohere2_moe")
    parser.add_argument("--size", default="full")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--lengths", help="of a ragged batch: 204800,500x7")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--stage", type=int, help="bytes of a product's inputs, over 8 rows")
    parser.add_argument("--alone", action="store_true", help="compare rows with steps of one row")
    parser.add_argument("--law", action="store_true", help="apply the tolerance law to some layers")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trace", type=Path, help="write the trace of a step here")
    parser.add_argument("--table", type=Path, help="print the results of a folder, measure nothing")
    given = parser.parse_args()
    if given.table:
        print(table(given.table), end="")
        return
    lengths = lengths_of(given.lengths) if given.lengths else [given.context] * given.batch
    result, trace = measure(
        given.family, given.size, lengths, given.repeats, given.stage, given.alone, given.law
    )
    if given.trace:
        trace.save(given.trace)
    print(result.pop("summary"))
    print(result.pop("phases"))
    print(
        f"{said(lengths)}: {result['median_s'] * 1e3:.3f} ms, "
        f"{result['tokens_per_second']:.1f} tokens/s, {result['bytes'] / 1e9:.2f} GB, "
        f"{100 * result['share_of_datasheet']:.1f} % of the datasheet; "
        f"queued in {statistics.median(result['queued_s']) * 1e6:.0f} us, "
        f"plan {result['plan_s']:.1f} s, draw {result['draw_s']:.1f} s, "
        f"compile {result['compile_s']:.1f} s, "
        f"memory {result['memory_bytes'] / 1e9:.1f} GB; {result['verdicts']}"
    )
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
