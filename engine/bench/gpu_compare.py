"""Decode steps on a GPU, side by side: the megakernel, the same kernels one by one, plain PyTorch.

All run on one copy of the weights, in turns, in one process. Nothing is timed that was not compared
first: the megakernel's logits must be finite and the same bits in 20 runs from poisoned scratch,
and those of the separate kernels must have the megakernel's bits. The tolerance law is applied to
the model's first layers at full width: with random weights a router's choice hangs by a rounding in
some layer of many, and behind it every later number is another.
"""

import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import mkport
from mkport.engine.bench.decode import commit
from mkport.engine.bench.gpu_contestants import (
    SEPARATE_ROWS,
    Clock,
    Separate,
    TooLong,
    build_ahead,
    read_bandwidth,
    timed,
    within,
)
from mkport.engine.bench.gpu_decode import DATASHEET, phases
from mkport.engine.bench.gpu_law import law
from mkport.engine.bench.gpu_source import Source, machine_on
from mkport.engine.bench.torch_step import TorchStep
from mkport.engine.cuda_target import needs
from mkport.errors import UserError
from mkport.machines.cuda.ahead import Ahead
from mkport.machines.cuda.gpu import check_room, gpu
from mkport.machines.cuda.machine import CudaMachine
from mkport.machines.cuda.nvrtc import nvrtc
from mkport.plan import Graph
from mkport.plan.bytes import distinct, step_bytes
from mkport.trace import Trace, render, summarise
from mkport.trace.collect import collect

OURS, SEPARATE, PYTORCH = "megakernel", "separate kernels", "PyTorch"
CONTESTANTS = (OURS, SEPARATE, PYTORCH)
FORMS = ("grouped", "gathered")  # of PyTorch's experts
ADVICE = "Measure a smaller batch or context."
CHAIN = 64  # steps
RUNS = 20  # that must give the same bits
TURNS_S = 10.0  # for the rounds of a batch
COMPILE_S = 40.0  # for each form of PyTorch's step


@dataclass
class Batch:
    """What was measured at one batch. Seconds, bytes."""

    batch: int
    nbytes: float  # that a step must read, with the experts that uniform routing would choose
    records: int
    plan_s: float
    compile_s: float
    memory_bytes: int  # that the process holds on the device
    tensor_bytes: dict[str, int]  # of it, by kind
    verdicts: dict[str, Any]
    samples: dict[str, list[float]]  # seconds of a step
    chained_s: float  # of a step whose tokens come from the one before it, as the host gets them
    clocks: list[dict[str, str]]
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    summary: str = ""
    phases: str = ""


def compare(
    source: Source,
    batches: Sequence[int],
    context: int,
    against: Sequence[str] = CONTESTANTS[1:],
    rounds: int = 20,
    say: Callable[[str], object] = lambda line: None,
    save: Callable[[dict[str, Any]], object] = lambda report: None,
    tuned: bool = False,
) -> tuple[dict[str, Any], Trace]:
    """Measures every batch; returns the report as data and the trace of the last batch's step.

    `batches` [runs] are sequences side by side, `context` the positions of each; `save` gets the
    report after each batch, `tuned` lets PyTorch's compiler try settings. Raises UserError when the
    GPU has too little room, or logits are wrong.
    """
    graphs = {batch: source.graph(batch, context) for batch in batches}
    widest = graphs[max(batches)]
    check_room(needs(widest.tensors), ADVICE)
    if SEPARATE in against:
        plain = source.plain(max(batches), context)
        build_ahead({node.op.name: node.op for node in plain.nodes}.values())
    say("weights")
    started = time.perf_counter()
    held = source.hold(widest, context)
    drawn = time.perf_counter() - started
    bandwidth = read_bandwidth(max(held.values(), key=lambda a: a.nbytes))
    results: list[Batch] = []
    for batch in batches:
        result, trace = _one(
            source, graphs[batch], held, batch, context, against, rounds, say, tuned
        )
        sheet = DATASHEET.get(gpu().name)
        for name, samples in result.samples.items():
            speed = result.nbytes / statistics.median(samples)
            result.shares[name] = {"of_measured_read": speed / bandwidth}
            if sheet is not None:
                result.shares[name]["of_datasheet"] = speed / sheet
        results.append(result)
        save(_report(source, context, bandwidth, drawn, results))
        gc.collect()
        if PYTORCH in against:
            _give_back()
    return _report(source, context, bandwidth, drawn, results), trace


def _one(
    source: Source, graph: Graph, held: dict[str, Any], batch: int, context: int,
    against: Sequence[str], rounds: int, say: Callable[[str], object], tuned: bool,
) -> tuple[Batch, Trace]:  # fmt: skip
    import cupy

    say(f"batch {batch}: plan and compile")
    machine, records, planned, compiled = machine_on(
        graph, held, batch, context, source.config.vocab
    )
    say(f"batch {batch}: check")
    verdicts: dict[str, Any] = {}
    logits = _checked(machine)
    verdicts[OURS] = {"finite": True, "same_bits_in_runs": RUNS}
    cupy.get_default_memory_pool().free_all_blocks()  # what drawing the weights took
    free, total = cupy.cuda.runtime.memGetInfo()  # before the others take any
    contestants: dict[str, Any] = {OURS: machine.launch}
    if SEPARATE in against and batch > SEPARATE_ROWS:
        verdicts[SEPARATE] = {"absent": f"they take {SEPARATE_ROWS} rows"}
    elif SEPARATE in against:
        say(f"batch {batch}: {SEPARATE}")
        apart = Separate(source.plain(batch, context), machine.tensors, batch)
        machine.poison()
        apart()
        same = machine.tensors["logits"].get().tobytes() == logits.tobytes()
        verdicts[SEPARATE] = {"same_bits_as_megakernel": same, "launches": apart.launches}
        contestants[SEPARATE] = apart
    if PYTORCH in against:
        say(f"batch {batch}: law")
        verdicts[OURS] |= law(source, held, batch, context)
        step = TorchStep(source.config, machine.tensors, batch, context)
        mixed = getattr(source.config, "experts", None) is not None
        for form in FORMS if mixed else FORMS[:1]:
            name = f"{PYTORCH}, experts {form}" if mixed else PYTORCH
            say(f"batch {batch}: {name}")
            contestants[name], verdicts[name] = _pytorch(step, form, tuned)
    absent = [name for name, run in contestants.items() if run is None]
    say(f"batch {batch}: {rounds} rounds" + "".join(f", without {name}" for name in absent))
    clock = Clock()
    clocks = [clock.read()]
    there = {name: run for name, run in contestants.items() if run is not None}
    samples = timed(there, rounds, TURNS_S)
    clocks.append(clock.read())
    machine.check()
    chained = _chained(machine, batch, context)
    machine.step(trace=True)
    trace = collect(machine, f"measured on {gpu().name}: batch {batch}, {context} positions")
    result = Batch(
        batch=batch,
        nbytes=step_bytes(graph, batch, context, lambda node: _used(source.config, batch)),
        records=records,
        plan_s=planned,
        compile_s=compiled,
        memory_bytes=total - free,
        tensor_bytes=needs(graph.tensors),
        verdicts=verdicts,
        samples=samples,
        chained_s=chained,
        clocks=clocks,
        summary=render(summarise(trace)),
        phases=phases(trace, f"layer {source.config.layers // 2}"),
    )
    return result, trace


def _checked(machine: CudaMachine) -> np.ndarray:
    """The logits of a step, finite and the same bits every time. Raises UserError otherwise."""
    first: np.ndarray | None = None
    for _ in range(RUNS):
        machine.poison()
        machine.step()
        logits: np.ndarray = machine.tensors["logits"].get()
        if first is None:
            first = logits
        if logits.tobytes() != first.tobytes():
            raise UserError("Two runs of the step differ in their bits: nothing was timed.")
    assert first is not None
    if not np.isfinite(first).all():
        raise UserError("The step's logits are not finite: nothing was timed.")
    return first


def _chained(machine: CudaMachine, batch: int, context: int) -> float:
    """Wall seconds of a step in a chain of them, each fed by the one before, read one behind."""
    ahead = Ahead(machine, batch, context - 1)
    ahead.push()
    ahead.push()
    ahead.take()
    started = time.perf_counter()
    for _ in range(CHAIN):
        ahead.push()
        ahead.take()
    took = time.perf_counter() - started
    ahead.drop()
    return took / CHAIN


def _pytorch(
    step: TorchStep, form: str, tuned: bool
) -> tuple[Callable[[], None] | None, dict[str, Any]]:
    """PyTorch's step as one CUDA graph, and what it took to compile; none when that is too long."""
    import torch

    about = {"torch": torch.__version__, "tuned": tuned}
    limit = COMPILE_S * (4 if tuned else 1)
    started = time.perf_counter()
    try:
        with within(limit):
            layer, ends = step.compiled(form, tuned)
    except Exception as error:  # a compiler wraps what ends it
        over = time.perf_counter() - started >= limit or isinstance(error, TooLong)
        torch._dynamo.reset()
        reason = f"not compiled in {limit:.0f} s" if over else f"{type(error).__name__}: {error}"
        return None, about | {"absent": reason[:300]}
    took = time.perf_counter() - started
    graph = step.capture(layer, ends, form)
    graph.replay()
    torch.cuda.synchronize()
    finite = bool(torch.isfinite(graph.logits).all())
    return graph.replay, about | {"finite": finite, "compile_s": took}


def _give_back() -> None:
    """Returns what PyTorch holds of the GPU's memory but does not use."""
    import torch

    torch.cuda.empty_cache()


def _used(config: Any, batch: int) -> float:
    """Distinct experts that uniform routing is expected to choose, over the most there can be."""
    experts = getattr(config, "experts", None)
    if experts is None:
        return 1.0
    return distinct(experts.experts, experts.top, batch) / min(experts.experts, experts.top * batch)


def _report(
    source: Source, context: int, bandwidth: float, drawn: float, results: Sequence[Batch]
) -> dict[str, Any]:
    import cupy

    return {
        "what": "decode steps on a GPU",
        "model": source.name,
        "context": context,
        "gpu": gpu().name,
        "commit": commit(),
        "versions": {
            "mkport": mkport.__version__,
            "python": platform.python_version(),
            "cupy": cupy.__version__,
            "nvrtc": ".".join(map(str, nvrtc().version)),
            "driver": cupy.cuda.runtime.driverGetVersion(),
        },
        "datasheet_bytes_per_s": DATASHEET.get(gpu().name),
        "read_bytes_per_s": bandwidth,
        "weights_s": drawn,
        "batches": [asdict(result) for result in results],
    }
