"""Decode steps on a GPU, side by side: the megakernel, the same kernels one by one, plain PyTorch.

All run on one copy of the weights, in turns, in one process. Nothing is timed that was not compared
first: the megakernel's logits must be finite and the same bits in four runs from poisoned scratch,
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
from mkport.engine.bench.gpu_contestants import Clock, Separate, read_bandwidth, timed
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
from mkport.models.cohere2 import CohereConfig
from mkport.plan import Graph
from mkport.plan.bytes import distinct, step_bytes
from mkport.trace import Trace, render, summarise
from mkport.trace.collect import collect

OURS, SEPARATE, PYTORCH = "megakernel", "separate kernels", "PyTorch"
CONTESTANTS = (OURS, SEPARATE, PYTORCH)
FORMS = ("grouped", "gathered")  # of PyTorch's experts
ADVICE = "Measure a smaller batch or context."
CHAIN = 64  # steps


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
) -> tuple[dict[str, Any], Trace]:
    """Measures every batch; returns the report as data and the trace of the last batch's step.

    `batches` [runs] are sequences side by side, `context` the positions of each. Raises UserError
    when the GPU has too little room, or logits are wrong.
    """
    graphs = {batch: source.graph(batch, context) for batch in batches}
    widest = graphs[max(batches)]
    check_room(needs(widest.tensors), ADVICE)
    say("weights")
    started = time.perf_counter()
    held = source.hold(widest, context)
    drawn = time.perf_counter() - started
    bandwidth = read_bandwidth(max(held.values(), key=lambda a: a.nbytes))
    results: list[Batch] = []
    for batch in batches:
        result, trace = _one(source, graphs[batch], held, batch, context, against, rounds, say)
        sheet = DATASHEET.get(gpu().name)
        for name, samples in result.samples.items():
            speed = result.nbytes / statistics.median(samples)
            result.shares[name] = {"of_measured_read": speed / bandwidth}
            if sheet is not None:
                result.shares[name]["of_datasheet"] = speed / sheet
        results.append(result)
        gc.collect()
    return _report(source, context, bandwidth, drawn, results), trace


def _one(
    source: Source, graph: Graph, held: dict[str, Any], batch: int, context: int,
    against: Sequence[str], rounds: int, say: Callable[[str], object],
) -> tuple[Batch, Trace]:  # fmt: skip
    import cupy

    say(f"batch {batch}: plan and compile")
    machine, records, planned, compiled = machine_on(
        graph, held, batch, context, source.config.vocab
    )
    say(f"batch {batch}: check")
    verdicts: dict[str, Any] = {}
    logits = _checked(machine)
    verdicts[OURS] = {"finite": True, "same_bits_in_runs": 4}
    cupy.get_default_memory_pool().free_all_blocks()  # what drawing the weights took
    free, total = cupy.cuda.runtime.memGetInfo()  # before the others take any
    contestants: dict[str, Any] = {OURS: machine.launch}
    if SEPARATE in against:
        apart = Separate(graph, machine.tensors, batch)
        machine.poison()
        apart()
        same = machine.tensors["logits"].get().tobytes() == logits.tobytes()
        verdicts[SEPARATE] = {"same_bits_as_megakernel": same, "launches": apart.launches}
        contestants[SEPARATE] = apart
    if PYTORCH in against:
        if isinstance(source.config, CohereConfig):
            verdicts[OURS] |= law(source, held, batch, context)
            step = TorchStep(source.config, machine.tensors, batch, context)
            for form in FORMS if source.config.experts else FORMS[:1]:
                name = f"{PYTORCH}, experts {form}" if source.config.experts else PYTORCH
                contestants[name], verdicts[name] = _pytorch(step, form)
        else:
            verdicts[PYTORCH] = {"absent": "the plain step is written for the Cohere families"}
    say(f"batch {batch}: {rounds} rounds")
    clock = Clock()
    clocks = [clock.read()]
    samples = timed(contestants, rounds)
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
    """The logits of a step, finite and the same bits four times. Raises UserError otherwise."""
    seen: list[np.ndarray] = []
    for _ in range(4):
        machine.poison()
        machine.step()
        seen.append(machine.tensors["logits"].get())
    if not np.isfinite(seen[0]).all():
        raise UserError("The step's logits are not finite: nothing was timed.")
    if any(other.tobytes() != seen[0].tobytes() for other in seen):
        raise UserError("Two runs of the step differ in their bits: nothing was timed.")
    return seen[0]


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


def _pytorch(step: TorchStep, form: str) -> tuple[Callable[[], None], dict[str, Any]]:
    """PyTorch's step as one CUDA graph, and what it took to compile."""
    import torch

    started = time.perf_counter()
    graph = step.capture(form)
    took = time.perf_counter() - started
    graph.replay()
    torch.cuda.synchronize()
    finite = bool(torch.isfinite(graph.logits).all())
    return graph.replay, {"finite": finite, "compile_s": took, "torch": torch.__version__}


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
