"""Each standalone CUDA kernel on North Mini Code's shapes, beside PyTorch, in turns.

    python -m mkport.engine.bench.gpu_kernels --out docs/results/gpu_kernels.json

In one run every shape is first held to its oracle by the tolerance law, to the bits of the ported
form (a megakernel of one worker) and of the solo form, and to PyTorch's result; then it is timed.
A sample is one replay of a CUDA graph that launches the kernel once on every copy of its inputs,
so that weights and keys come from memory; contestants take turns sample by sample.
"""

import argparse
import json
import statistics
import subprocess
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare.case import WIDTHS
from mkport.engine.bench.decode import commit
from mkport.engine.bench.gpu_contestants import on_stream
from mkport.engine.bench.kernel_races import Call, Race, Use, races
from mkport.machines.cuda.gpu import gpu
from mkport.machines.cuda.machine import CudaMachine
from mkport.machines.cuda.nvrtc import nvrtc
from mkport.plan import Graph, deal
from mkport.testing.law import EPS, Measured, measure
from mkport.testing.parts import load_part
from mkport.verify import verify

DATASHEET = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}  # bytes a second


def by_law(use: Use) -> Measured:
    """What the kernel has written, against the oracle in float64 and in bfloat16."""
    import torch

    oracle = load_part(use.op, "oracle").oracle
    found = {}
    for kind in (torch.float64, torch.bfloat16):
        given: dict[str, Any] = dict(use.values)
        for name, array in use.arrays.items():
            tensor = torch.from_dlpack(array.view(np.int16) if array.dtype == np.uint16 else array)
            if array.dtype == np.int32:
                given[name] = tensor.long()
            else:
                wide = tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
                given[name] = wide.to(kind)
        with torch.device("cuda"):
            found[kind] = oracle(SimpleNamespace(**given))[use.output].double().cpu().numpy()
    got = use.arrays[use.output].get()
    truth = found[torch.float64]
    live = tuple(slice(0, size) for size in truth.shape)
    return measure(got[live], truth, found[torch.bfloat16], EPS["float32"])


def graph_of(use: Use) -> tuple[Graph, list[str]]:
    """A step of this op alone, and the arguments that its tensors are named as."""
    graph, names = Graph([use.op]), {}
    known: list[str] = []
    for arg in use.op.tensors:
        array = use.arrays.get(arg.name)
        if array is None:
            continue
        shared = [name for name in known if use.arrays[name] is array]
        names[arg.name] = shared[0] if shared else arg.name
        if shared:
            continue
        written = arg.name == use.output
        kind: Any = "state" if written else "weight" if arg.dtype == "weight" else "input"
        logical = use.logical.get(arg.name, ())
        graph.tensor(arg.name, WIDTHS[str(array.dtype)], array.shape, kind, logical)
        known.append(arg.name)
    graph.add(use.op, use.op.name, **names, **use.values)
    return graph, known


def in_a_megakernel(use: Use, program: CudaProgram, workers: int) -> Any:
    """The output of a megakernel of this op alone, a CuPy array; of one worker: the ported form."""
    import cupy

    graph, known = graph_of(use)
    arrays = {name: use.arrays[name] for name in known}
    arrays[use.output] = cupy.zeros_like(arrays[use.output])
    schedule = deal(graph, workers, share="strided")
    verify(schedule)
    machine = CudaMachine(program, schedule, arrays, limit_s=10.0)
    machine.step()
    return machine.tensors[use.output]


def checked(race: Race, programs: dict[str, CudaProgram]) -> dict[str, Any]:
    """Runs the first entry in every form; returns the verdicts."""
    import cupy

    verdicts: dict[str, Any] = {}
    for use in race.uses[0]:
        use.arrays[use.output][...] = 0
        use.call()()
        cupy.cuda.Device().synchronize()
        law = by_law(use)
        verdicts[use.op.name] = {"error": law.error, "allowed": law.allowed, "law": law.ok}
        name = use.op.name
        for form, workers in (("ported", 1), ("solo", gpu().multiprocessors)):
            try:
                if name not in programs:
                    programs[name] = compose_cuda([use.op], "bf16", "bf16")
                other = in_a_megakernel(use, programs[name], workers)
                same = other.view(np.uint32) == use.arrays[use.output].view(np.uint32)
                verdicts[name][form] = bool(same.all())
            except Exception as error:  # the table says so; the timing goes on
                verdicts[name][form] = f"{type(error).__name__}: {str(error)[:200]}"
    ours, theirs = race.first()
    difference = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
    verdicts["pytorch"] = {"difference": float(difference), "near": bool(difference < 2e-2)}
    return verdicts


def captured(calls: list[Call]) -> Any:
    """A CUDA graph of the calls, one after the other; None when one of them is refused."""
    import torch

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings(), torch.cuda.stream(stream), on_stream(stream):
            warnings.simplefilter("ignore", UserWarning)  # why a backend does not take the shape
            calls[0]()
        torch.cuda.synchronize()
    except RuntimeError:  # a backend that does not take this shape
        return None
    with torch.cuda.graph(graph, stream=stream), on_stream(stream):
        for call in calls:
            call()
    return graph


def timed(race: Race, repeats: int) -> dict[str, list[float]]:
    """Seconds of a launch, of every contestant and sample, in turns; "mkport" is the kernel."""
    import torch

    def in_order(calls: list[Call]) -> Call:
        return lambda: [call() for call in calls]

    ours = [in_order([use.call() for use in entry]) for entry in race.uses]
    contestants = {"mkport": ours, **race.baselines}
    graphs = {name: captured(calls) for name, calls in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name, graph in graphs.items() if graph}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    racing = list(samples)
    for turn in range(repeats + 1):
        for name in racing if turn % 2 else reversed(racing):  # nobody always follows the same one
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if turn:  # the first one warms up
                samples[name].append(begin.elapsed_time(end) * 1e-3 / len(contestants[name]))
        if turn == 1:  # who is far behind leaves, and no longer fills the cache for the others
            limit = 1.5 * min(samples[name][0] for name in racing)
            racing = [n for n in racing if n == "mkport" or samples[n][0] <= limit]
    return samples


def measured(repeats: int, only: str) -> dict[str, Any]:
    """Every race whose kernel or shape contains `only`, as data."""
    import cupy
    import torch

    programs: dict[str, CudaProgram] = {}
    results = []
    for race in races(only):
        verdicts = checked(race, programs)
        samples = timed(race, repeats)
        medians = {name: statistics.median(times) for name, times in samples.items()}
        best = min((name for name in medians if name != "mkport"), key=medians.__getitem__)
        results.append({
            "kernel": race.kernel, "shape": race.shape, "rows": race.rows, "bytes": race.nbytes,
            "entries": len(race.uses), "verdicts": verdicts, "bar": race.bar, "best": best,
            "median_s": medians, "speed": medians[best] / medians["mkport"], "samples_s": samples,
        })  # fmt: skip
        print(line(results[-1]), flush=True)
        del race
        torch.cuda.empty_cache()
        cupy.get_default_memory_pool().free_all_blocks()
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.sm,clocks.mem",
        "--format=csv,noheader",
    ]
    return {
        "gpu": gpu().name,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "driver and clocks": subprocess.run(query, capture_output=True, text=True).stdout.strip(),
        "versions": {
            "torch": torch.__version__, "cuda of torch": torch.version.cuda,
            "cupy": cupy.__version__, "nvrtc": ".".join(map(str, nvrtc().version)),
        },
        "datasheet_bytes_per_second": DATASHEET.get(gpu().name),
        "results": results,
    }  # fmt: skip


def right(result: dict[str, Any]) -> bool:
    """Every verdict of a race is good."""
    verdicts = result["verdicts"]
    ops = [v for name, v in verdicts.items() if name != "pytorch"]
    forms = all(v["law"] and v["ported"] is True and v["solo"] is True for v in ops)
    return forms and verdicts["pytorch"]["near"]


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    ours, theirs = (result["median_s"][name] for name in ("mkport", result["best"]))
    speeds = [f"{t * 1e6:.1f} | {result['bytes'] / t / 1e12:.2f}" for t in (ours, theirs)]
    mark = "" if result["speed"] >= result["bar"] else " **misses**"
    verdict = "equal" if right(result) else f"WRONG {result['verdicts']}"
    return (
        f"| {result['kernel']} | {result['shape']} | {result['rows']} | {speeds[0]} | {speeds[1]} "
        f"| {result['best']} | {result['speed']:.2f}{mark} | {result['bar']:.2f} | {verdict} |"
    )


def table(data: dict[str, Any]) -> str:
    """The results as Markdown."""
    versions = ", ".join(f"{name} {value}" for name, value in data["versions"].items())
    return "\n".join([
        f"One {data['gpu']} (driver, clocks: {data['driver and clocks']}; {versions}; commit "
        f"{data['commit']}, {data['date']}), bfloat16, medians of "
        f"{len(data['results'][0]['samples_s']['mkport'])} samples.",
        "",
        "| kernel | shape | rows | us | TB/s | PyTorch us | TB/s | its best | speed | bar | bits |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *map(line, data["results"]),
    ]) + "\n"  # fmt: skip


def main() -> None:
    """Measures and prints a row for every race; writes JSON, or prints the table of a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="a kernel's name, or part of a shape's")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of a file, measure nothing")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())), end="")
        return
    data = measured(given.repeats, given.only)
    if given.out:
        given.out.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
