"""The contestants of the GPU's decode benchmark, on the same weights, cache and inputs: the
megakernel, the same step as separate kernels in one CUDA graph, and plain PyTorch; and how they
take turns."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.declare import Op
from mkport.machines.cpu.memory import NUMPY
from mkport.machines.cuda.gpu import compiled, gpu, load
from mkport.plan import Graph
from mkport.testing.cuda_forms import GpuLaunch, standalone_source
from mkport.testing.parts import load_part

READ = r"""
extern "C" __global__ void __launch_bounds__(512)
    read_all(const uint4* x, long long n, unsigned* y) {
  unsigned any = 0;
  const long long stride = 512ll * gridDim.x;
  long long i = blockIdx.x * 512ll + threadIdx.x;
  for (; i + 7 * stride < n; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = x[i + k * stride];
#pragma unroll
    for (int k = 0; k < 8; k++) any |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (any == 1) *y = any;  // never for random bits, but the compiler cannot know
}
"""


def read_bandwidth(array: Any, repeats: int = 10) -> float:
    """Bytes a second at which this GPU reads an array once: the best of some runs."""
    import cupy

    kernel, flag = load(READ, "read_all"), cupy.zeros(1, cupy.uint32)
    count = array.nbytes // 16
    blocks = gpu().multiprocessors * 4
    args = ((blocks,), (512,), (array, np.int64(count), flag))
    return 16.0 * count / min(seconds(lambda: kernel(*args)) for _ in range(repeats))


def seconds(run: Any) -> float:
    """Device seconds of one call on the current stream."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3


def build_ahead(ops: Iterable[Op]) -> list[Future[Any]]:
    """Begins to compile the ops' standalone kernels, side by side; a list of [ops], which
    `Separate` need not wait for."""
    gpu()  # asked for once, before the threads
    sources = dict.fromkeys(standalone_source(op) for op in ops)
    pool = ThreadPoolExecutor(max(len(sources), 1))
    futures = [pool.submit(compiled, source) for source in sources]
    pool.shutdown(wait=False)
    return futures


class _Handle:
    """A stream as CUDA's stream protocol passes it on."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def on_stream(stream: Any) -> Any:
    """A context in which CuPy launches on a stream of PyTorch's."""
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Handle(stream.cuda_stream))
    return cupy.cuda.ExternalStream(stream.cuda_stream)


SEPARATE_ROWS = 8  # that the standalone products take


def arguments(
    graph: Graph, tensors: Mapping[str, Any], rows: int, zeros: Callable[..., Any]
) -> list[dict[str, Any]]:
    """The arguments of each node's kernel for `rows` tokens: `tensors` by their names, and what is
    not among them made by `zeros(shape, dtype)`, once. A list of [nodes]."""
    held: dict[str, Any] = dict(tensors)
    for name, spec in graph.tensors.items():
        if name not in held:
            held[name] = zeros(spec.shape, NUMPY[spec.dtype])
    count, found = np.array([rows], np.int32), []
    for node in graph.nodes:
        args = {k: v for k, v in node.args.items() if v is not None}
        for arg in node.op.tensors:
            if arg.name in args:
                args[arg.name] = count if arg.name == "count" else held[args[arg.name]]
        found.append(args)
    return found


class Separate:
    """A step graph's nodes as their standalone kernels, a launch or two each, in one CUDA graph.

    `tensors` are a machine's, whose step may have other scratch; what composing the kernels buys is
    the difference to that machine.
    """

    def __init__(self, graph: Graph, tensors: Mapping[str, Any], rows: int) -> None:
        import cupy
        import torch

        calls = []
        for node, args in zip(
            graph.nodes, arguments(graph, tensors, rows, cupy.zeros), strict=True
        ):
            launch = GpuLaunch(standalone_source(node.op))
            standalone = load_part(node.op, "oracle").call_standalone_cuda
            calls.append((standalone, launch, SimpleNamespace(**args)))
        stream = torch.cuda.Stream()
        self.launches, self._graph = len(calls), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream), on_stream(stream):
            for standalone, launch, given in calls:
                standalone(launch, given)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, stream=stream), on_stream(stream):
            for standalone, launch, given in calls:
                standalone(launch, given)

    def __call__(self) -> None:
        """Queues a step."""
        self._graph.replay()


def timed(
    contestants: Mapping[str, Any], rounds: int, limit_s: float, clock: Any = seconds
) -> dict[str, list[float]]:
    """Seconds of a step of every contestant and round, by `clock`. They take turns, each round in
    another order; a step of each goes before the first round. No round begins once `limit_s`
    seconds are over, but one is made."""
    names = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        clock(contestants[name])
    started = time.perf_counter()
    for turn in range(rounds):
        if turn and time.perf_counter() - started > limit_s:
            break
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            samples[name].append(clock(contestants[name]))
    return samples


class TooLong(Exception):
    """What was given a time has not ended in it."""


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raises TooLong in what it holds after `limit_s` seconds; another thread than the main one it
    lets run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: object) -> None:
        raise TooLong(f"not done in {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Clock:
    """Reads what nvidia-smi says of the GPU's clocks, power and temperature."""

    FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"

    def read(self) -> dict[str, str]:
        """The values, with the time; empty where nvidia-smi does not answer."""
        import subprocess

        command = ["nvidia-smi", f"--query-gpu={self.FIELDS}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return {}
        values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
        found = dict(zip(self.FIELDS.split(","), values, strict=True))
        return found | {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
