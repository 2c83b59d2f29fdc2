"""A model's steps on the GPU: weights go there tensor by tensor and are nowhere twice; what the
host writes before a step goes there in one copy."""

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mkport.compose.cuda import MAX_ROWS, USUAL_ROWS, CudaProgram
from mkport.compose.fixed import compose_cuda_for
from mkport.declare import TensorSpec
from mkport.engine.cuda_ahead import SLOTS, Queue, pinned
from mkport.engine.load import LoadedModel
from mkport.engine.ran import Ran
from mkport.engine.target import Arrays, as_stored, enter, fixed_table, to_read, with_spare
from mkport.machines.cpu.memory import NUMPY
from mkport.machines.cuda.ahead import Ahead
from mkport.machines.cuda.gpu import BESIDE, check_room, gpu
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.cuda.machine import CudaMachine
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph, Schedule
from mkport.plan.deal import Share

ALIGN = 256  # bytes, of a tensor within a block
PROMPT_CHUNKS = 8192, 2048  # a chunk of 64 tokens or more reads nearly all experts
PREFILL_BYTES = 6 << 30  # that PyTorch may take for a chunk
FEW = 4  # rows of a page table, each of which is a copy of its own
ADVICE = "Give a smaller --context or --batch, or a GPU with more memory."


class CudaTarget:
    """The GPU. Making one raises UserError when there is none that will do."""

    name, chunk = "cuda", USUAL_ROWS
    most_rows: int | None = MAX_ROWS
    share: Share = "strided"
    flagged = True
    ahead = 1

    def __init__(self) -> None:
        self.gpu = gpu()
        self.stage = stage_bytes(self.gpu.shared_bytes)
        self.prefills = importlib.util.find_spec("torch") is not None
        self.prompt_chunk, self.mixed_chunk = PROMPT_CHUNKS if self.prefills else (64, 8)

    def workers(self) -> int:
        """One a multiprocessor."""
        return self.gpu.multiprocessors

    def free_memory(self, model: LoadedModel) -> int:
        """Bytes that the GPU has free, less the weights."""
        import cupy

        free: int = cupy.cuda.runtime.memGetInfo()[0]
        beside = BESIDE + (PREFILL_BYTES if self.prefills else 0)
        return max(free - beside - model.weights.nbytes, 0)

    def compose(self, graph: Graph, shape: StepShape, title: str) -> CudaProgram:
        """One CUDA file for steps of this graph alone."""
        return compose_cuda_for(graph, shape.weights, shape.cache, shape.rows, title)

    def place(self, model: LoadedModel, specs: Mapping[str, TensorSpec], context: int) -> Arrays:
        """In the GPU's memory; `context` in positions. Raises UserError when it does not hold them,
        before it takes any."""
        return DeviceArrays(model, specs, context)

    def machine(
        self, program: CudaProgram, schedule: Schedule, tensors: Mapping[str, Any]
    ) -> CudaMachine:
        """A machine that shares these tensors."""
        return CudaMachine(program, schedule, tensors)


class DeviceArrays:
    """Tensors in the GPU's memory. Inputs have a mirror that `push` sends; the page tables are
    large and seldom change, so only rows that did go there, or all if these are more than `FEW`.
    `context` is in positions; `weight` makes a weight on the device."""

    def __init__(
        self,
        model: LoadedModel,
        specs: Mapping[str, TensorSpec],
        context: int,
        weight: Callable[[LoadedModel, TensorSpec, int], Any] | None = None,
    ) -> None:
        import cupy

        check_room(needs(specs), ADVICE)
        tables = {FULL_TABLE, WINDOW_TABLE} & set(specs)
        large = tables | {"mask", "bias"}
        small = [s for s in specs.values() if s.kind == "input" and s.name not in large]
        self._block, self._host = _block(small)
        self.tensors = _views(self._block, small, cupy.int32)
        self.inputs = _views(self._host, small, np.int32)
        for name, spec in specs.items():
            if spec.kind == "weight":
                self.tensors[name] = (weight or weight_of)(model, spec, context)
            elif spec.kind != "input" or name in large:
                self.tensors[name] = cupy.zeros(with_spare(spec), NUMPY[spec.dtype])
        self._pages = {name: np.zeros(specs[name].shape, np.int32) for name in sorted(tables)}
        self.tables = {name: to_read(table) for name, table in self._pages.items()}
        self._turned: dict[str, set[int]] = {name: set() for name in self._pages}  # rows
        sequences = max(map(len, self.tables.values()), default=1)
        self._queue = Queue(self.tensors, sequences)
        # what is on its way to the device, so that the mirror can be written meanwhile
        self._under_way = [
            (pinned(self._host.shape, np.uint8), cupy.cuda.Event(disable_timing=True))
            for _ in range(SLOTS)
        ]
        self._pushed = 0

    def turn(self, table: str, row: int, first: int, pages: Sequence[int]) -> None:
        """See `Arrays`: `pages` [n]."""
        enter(self._pages[table], row, first, pages)
        self._turned[table].add(row)

    def push(self) -> None:
        """Sends inputs, and what has changed of the page tables, on the current stream; they may be
        written again at once."""
        import cupy

        stream = cupy.cuda.get_current_stream()
        sent, event = self._under_way[self._pushed % SLOTS]
        self._pushed += 1
        event.synchronize()
        sent[...] = self._host
        self._block.set(sent, stream=stream)
        event.record(stream)
        for name, rows in self._turned.items():
            here, there = self._pages[name], self.tensors[name]
            if len(rows) > FEW:
                there.set(here, stream=stream)  # returns once it is staged
            else:
                for row in rows:
                    there[row].set(here[row], stream=stream)
            rows.clear()

    def launch(self, machine: CudaMachine, wanted: int, told: bool, trace: bool, kept: bool) -> Ran:
        """See `Arrays`."""
        self.push()
        return self._queue.launch(machine, wanted, told, trace, kept)

    def read(self, array: Any) -> np.ndarray:
        """A copy, of the same shape."""
        return np.asarray(array.get())

    def write(self, name: str, places: list[int], contents: np.ndarray) -> None:
        """See `Arrays`: `places` [n], `contents` [n, ...]."""
        import cupy

        self.tensors[name][cupy.asarray(places)] = cupy.asarray(contents)

    def follow(
        self, machine: CudaMachine, rows: int, context: int, steps: int
    ) -> Iterator[np.ndarray]:
        """See `Arrays`: int32 [rows] of each step; two are under way while the host looks at the
        one before them. `context` in positions."""
        ahead = Ahead(machine, rows, context - 1)
        try:
            for step in range(steps):
                ahead.push()
                if step:
                    yield ahead.take()
            if steps:
                yield ahead.take()
        finally:
            ahead.drop()


def needs(specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Bytes of GPU memory by what they hold."""
    kinds = {
        "weights": ("weight",),
        "cache": ("state",),
        "scratch": ("scratch", "flagged", "output", "input"),
    }
    return {
        name: sum(spec.nbytes for spec in specs.values() if spec.kind in those)
        for name, those in kinds.items()
    }


def weight_of(model: LoadedModel, spec: TensorSpec, context: int) -> Any:
    """A weight on the GPU: straight from the files, one published tensor after the other; `context`
    in positions, of a rotary table."""
    import cupy

    table = fixed_table(model, spec, context)
    if table is not None:
        return cupy.asarray(table)
    array = cupy.empty(spec.shape, NUMPY[spec.dtype])
    for place, part in model.weights.parts(spec.name):
        array[place].set(np.ascontiguousarray(as_stored(part, spec)))
    return array


def _block(specs: list[TensorSpec]) -> tuple[Any, np.ndarray]:
    """Room for these tensors, on the device and its mirror on the host: uint8 both."""
    import cupy

    size = sum(_padded(spec) for spec in specs)
    return cupy.zeros(size, cupy.uint8), np.zeros(size, np.uint8)


def _views(block: Any, specs: list[TensorSpec], dtype: Any) -> dict[str, Any]:
    """The tensors, all int32, one after the other in a block."""
    ends = np.cumsum([0, *(_padded(spec) for spec in specs)])
    return {
        spec.name: block[at : at + spec.nbytes].view(dtype).reshape(spec.shape)
        for spec, at in zip(specs, map(int, ends[:-1]), strict=True)
    }


def _padded(spec: TensorSpec) -> int:
    return -(-math.prod(spec.shape) * 4 // ALIGN) * ALIGN
