"""Where a model's steps run: how each machine's steps are dealt and composed, and where its tensors
lie. What is done with them is the same everywhere; the GPU's target stands in `cuda_target`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mkport.bandwidth import usable_cores
from mkport.compose import Program, compose_cpu
from mkport.compose.cuda import MAX_ROWS, USUAL_ROWS, CudaProgram, compose_cuda
from mkport.compose.fixed import compose_cuda_for
from mkport.declare import TensorSpec
from mkport.declare.case import from_bf16
from mkport.engine.load import LoadedModel
from mkport.engine.ran import Ran
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.cpu.memory import allocate
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.host.machine import SHARED_BYTES, HostMachine
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph, Schedule
from mkport.plan.deal import Share

MACHINES = ("cpu", "cuda", "host")


class Machine(Protocol):
    """What a step needs of a machine."""

    schedule: Schedule
    times: list[np.ndarray]  # of the last traced step: int64 [records, 3] of each worker, in ns

    @property
    def tensors(self) -> Mapping[str, Any]:
        """By name, of the machine's own shapes."""
        ...

    def step(self, trace: bool = False) -> None:
        """Runs one step and waits for its end, noting `times` if asked to. Raises Stuck."""
        ...

    def poison(self) -> None:
        """Fills scratch and outputs with what nothing valid looks like."""
        ...

    def close(self) -> None:
        """Ends its threads, if it has any."""
        ...


class Arrays(Protocol):
    """The tensors of machines that share them, by name, each as large as the largest machine's."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """NumPy arrays, or CuPy's on a GPU; a cache has a page behind the machines' last."""
        ...

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        """Where the host writes what a step reads."""
        ...

    @property
    def tables(self) -> Mapping[str, np.ndarray]:
        """The page tables, int32 [rows, pages] each, to be read; `turn` writes them."""
        ...

    def turn(self, table: str, row: int, first: int, pages: Sequence[int]) -> None:
        """Enters `pages` [n] in a row of a page table, from its place `first` on. Raises IndexError
        where the table has no such row, or not so many places."""
        ...

    def push(self) -> None:
        """Sends inputs and page tables to the machine."""
        ...

    def launch(self, machine: Any, wanted: int, told: bool, trace: bool, kept: bool) -> Ran:
        """Sends the inputs and runs a step of so many `wanted` rows, whose results arrive later;
        see `Steps.launch`. `told`: some of them are told of log probabilities."""
        ...

    def read(self, array: Any) -> np.ndarray:
        """A tensor, or a part of one, for the host, of the same shape; the next step may overwrite
        it."""
        ...

    def write(self, name: str, places: list[int], contents: np.ndarray) -> None:
        """Fills `places` [n] of a tensor's first axis with `contents` [n, ...] from the host."""
        ...

    def follow(self, machine: Any, rows: int, context: int, steps: int) -> Iterator[np.ndarray]:
        """Runs steps of the machine's first rows, each row's choice its next token; yields each
        step's choices, int32 [rows]. No row goes beyond the context, in positions."""
        ...


class Target(Protocol):
    """A kind of machine."""

    name: str
    share: Share  # how tiles are dealt to its workers
    flagged: bool  # its workers await the words of flagged scratch
    chunk: int  # prompt tokens in one step
    most_rows: int | None  # tokens in one step; None: any number
    stage: int  # see StepShape
    prefills: bool  # prompts go through PyTorch, so that a chunk may be longer than a step
    prompt_chunk: int  # prompt tokens between two looks at the queue, unless told otherwise
    mixed_chunk: int  # and beside running requests, whose pause it bounds
    ahead: int  # steps that are launched before the results of the one before have arrived

    def workers(self) -> int:
        """As many as it has room for."""
        ...

    def free_memory(self, model: LoadedModel) -> int:
        """Bytes that are left for a cache beside the model's weights."""
        ...

    def compose(self, graph: Graph, shape: StepShape, title: str) -> Any:
        """The program of a step that is made of these ops."""
        ...

    def place(self, model: LoadedModel, specs: Mapping[str, TensorSpec], context: int) -> Arrays:
        """Allocates and fills: weights from the model, rotary tables of `context` positions, the
        rest zero."""
        ...

    def machine(self, program: Any, schedule: Schedule, tensors: Mapping[str, Any]) -> Machine:
        """A machine that runs a schedule of a program over tensors that are there."""
        ...


class HostArrays:
    """Tensors in the host's memory: what the host writes is what the machine reads. `context` is in
    positions. With `ahead`, tokens may be run that the host does not know. Raises UserError for
    more than the machine's memory."""

    def __init__(
        self,
        model: LoadedModel,
        specs: Mapping[str, TensorSpec],
        context: int,
        ahead: bool = False,
    ) -> None:
        _check_memory(specs)
        model.weights.hold()
        self.tensors = {name: self._array(model, spec, context) for name, spec in specs.items()}
        self.inputs = self.tensors
        names = (FULL_TABLE, WINDOW_TABLE)
        self.tables = {name: to_read(self.tensors[name]) for name in names if name in specs}
        self._ahead, self._rivals = ahead, rivals_of(self.tensors)
        self._results: dict[tuple[Machine, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._latest = np.zeros(max(map(len, self.tables.values()), default=1), np.int32)

    @staticmethod
    def _array(model: LoadedModel, spec: TensorSpec, context: int) -> np.ndarray:
        if spec.kind != "weight":
            return allocate(spec.dtype, with_spare(spec))
        table = fixed_table(model, spec, context)
        return as_stored(model.weights[spec.name], spec) if table is None else table

    def turn(self, table: str, row: int, first: int, pages: Sequence[int]) -> None:
        """See `Arrays`: `pages` [n]."""
        enter(self.tensors[table], row, first, pages)

    def push(self) -> None:
        """They are there."""

    def launch(self, machine: Machine, wanted: int, told: bool, trace: bool, kept: bool) -> Ran:
        """See `Arrays`: the step runs at once, so the results are copies."""
        if self._ahead:
            tokens = self.inputs["tokens"][: int(self.inputs["count"][0])]
            rows, pending = self.inputs["rows"][:, 0], np.flatnonzero(tokens < 0)
            tokens[pending] = self._latest[rows[pending]]
        machine.step(trace)
        choices, ids, logprobs = self._of(machine, wanted)
        ran = Ran(choices.copy(), ids, logprobs)
        if told:
            ran.ids, ran.logprobs = ids.copy(), logprobs.copy()
        if self._ahead:
            self._latest[rows[self.inputs["logit_rows"][:wanted]]] = np.maximum(ran.choices, 0)
        return ran

    def _of(self, machine: Machine, wanted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where a machine leaves the results of so many wanted rows; looked up once."""
        found = self._results.get((machine, wanted))
        if found is None:
            t, rivals = machine.tensors, self._rivals
            ids, logprobs = t["ids"][:wanted, :rivals], t["logprobs"][:wanted, : 1 + rivals]
            found = self._results[machine, wanted] = t["next"][:wanted], ids, logprobs
        return found

    def read(self, array: np.ndarray) -> np.ndarray:
        """The array itself, of any shape."""
        return array

    def write(self, name: str, places: list[int], contents: np.ndarray) -> None:
        """See `Arrays`: `places` [n], `contents` [n, ...]."""
        self.tensors[name][places] = contents

    def follow(self, machine: Machine, rows: int, context: int, steps: int) -> Iterator[np.ndarray]:
        """See `Arrays`; `context` in positions."""
        for _ in range(steps):
            machine.step()
            chosen = machine.tensors["next"][:rows].copy()
            yield chosen
            self.inputs["tokens"][:rows] = np.maximum(chosen, 0)
            places = self.inputs["rows"][:rows, 1]
            np.minimum(places + 1, context - 1, out=places)


def _check_memory(specs: Mapping[str, TensorSpec]) -> None:
    """Raises UserError when what is to be allocated is more than the machine has: the system would
    give it, and end the process when it is used."""
    needed = sum(spec.nbytes for spec in specs.values() if spec.kind != "weight")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise UserError(
            f"Keys, values and what a step writes take {needed / 1e9:.1f} GB, but this machine has "
            f"{memory / 1e9:.1f} GB of memory: lower kv_memory (--kv-memory), the batch or the "
            "context."
        )


def enter(table: np.ndarray, row: int, first: int, pages: Sequence[int]) -> None:
    """Writes `pages` [n] into a row of a page table, int32 [rows, places], from place `first` on.
    Raises IndexError where it has no such row, or not so many places: NumPy would count a negative
    place from behind."""
    rows, places = table.shape
    if not (0 <= row < rows and 0 <= first <= places - len(pages)):
        raise IndexError(
            f"{len(pages)} pages from place {first} of row {row} on, of a page table of {rows} "
            f"rows of {places} places"
        )
    table[row, first : first + len(pages)] = pages


def to_read(array: np.ndarray) -> np.ndarray:
    """The same array, of the same shape, which cannot be written under this name."""
    seen = array.view()
    seen.flags.writeable = False
    return seen


def with_spare(spec: TensorSpec) -> tuple[int, ...]:
    """A tensor's shape, with one page behind a cache's last that belongs to nobody."""
    first, *others = spec.shape
    return (first + (spec.kind == "state"), *others)


def rivals_of(tensors: Mapping[str, Any]) -> int:
    """How many tokens a row can be told of beside its own."""
    return min(tensors["ids"].shape[1], tensors["logits"].shape[1])


def fixed_table(model: LoadedModel, spec: TensorSpec, context: int) -> np.ndarray | None:
    """A weight that no file holds: the cosines and sines of `context` rotary positions, float32
    [positions, head_dim]."""
    return model.family.rope_table(model.config, context) if spec.name == "rope" else None


def as_stored(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """A weight's `array` [...] as the step reads it, of the same shape: norms' weights are float32
    whatever the files hold."""
    return from_bf16(array) if spec.dtype == "f32" and array.dtype == np.uint16 else array


class CpuTarget:
    """Threads, on Numba code."""

    name, chunk, stage = "cpu", 128, 0  # of 64 tokens a prompt takes 9 % longer
    most_rows: int | None = None
    prefills = False
    prompt_chunk, mixed_chunk = 128, 8  # 8 well below double a step of eight
    ahead = 0
    share: Share = "blocks"
    flagged = False

    def workers(self) -> int:
        """One a usable core."""
        return usable_cores()

    def free_memory(self, model: LoadedModel) -> int:
        """The bytes that the system has free; the weights' pages may be counted as such already."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def compose(self, graph: Graph, shape: StepShape, title: str) -> Program:
        """One Python file."""
        return compose_cpu(graph.ops, shape.weights, shape.cache, title)

    def place(self, model: LoadedModel, specs: Mapping[str, TensorSpec], context: int) -> Arrays:
        """In the host's memory; `context` in positions."""
        return HostArrays(model, specs, context, self.ahead > 0)

    def machine(
        self, program: Program, schedule: Schedule, tensors: Mapping[str, Any]
    ) -> CpuMachine:
        """A machine that shares these tensors."""
        return CpuMachine(program, schedule, tensors)


class HostTarget:
    """The CUDA source on the host's processor: slow, for tests and for looking closely. `fixed`:
    files for one graph alone, as a GPU runs them, each of which is built by itself."""

    name, chunk, stage = "host", USUAL_ROWS, stage_bytes(SHARED_BYTES)
    most_rows: int | None = MAX_ROWS
    prefills = False
    prompt_chunk, mixed_chunk = 64, 8  # as far as a step has room
    ahead = 0
    share: Share = "strided"

    def __init__(self, fixed: bool = False) -> None:
        self.fixed = self.flagged = fixed

    def workers(self) -> int:
        """A few: they run in turns."""
        return 3

    def free_memory(self, model: LoadedModel) -> int:
        """The bytes that the system has free."""
        return CPU.free_memory(model)

    def compose(self, graph: Graph, shape: StepShape, title: str) -> CudaProgram:
        """One CUDA file for steps of so many rows."""
        if self.fixed:
            return compose_cuda_for(graph, shape.weights, shape.cache, shape.rows, title)
        return compose_cuda(graph.ops, shape.weights, shape.cache, shape.rows, title)

    def place(self, model: LoadedModel, specs: Mapping[str, TensorSpec], context: int) -> Arrays:
        """In the host's memory; `context` in positions."""
        return HostArrays(model, specs, context, self.ahead > 0)

    def machine(
        self, program: CudaProgram, schedule: Schedule, tensors: Mapping[str, Any]
    ) -> HostMachine:
        """A machine that shares these tensors."""
        return HostMachine(program, schedule, tensors)


CPU, HOST = CpuTarget(), HostTarget()


def target_of(name: str) -> Target:
    """The target of this name. Raises UserError for an unknown one, and where "cuda" cannot be."""
    if name not in MACHINES:
        raise UserError(f"There is no machine {name!r}; the machines are {', '.join(MACHINES)}.")
    if name == "cuda":
        from mkport.engine.cuda_target import CudaTarget

        return CudaTarget()
    return HOST if name == "host" else CPU
