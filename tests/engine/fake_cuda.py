"""A GPU that is none: a queue in which launches and copies wait until somebody waits for them.

`module()` stands for CuPy, as far as the engine's CUDA target uses it, over NumPy arrays. What was
queued runs at the last possible moment and in order: a host that reads or overwrites something too
early gets what a real GPU might give it. Steps are the CPU machine's.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.cpu.memory import NUMPY, allocate


class Stream:
    """The one stream: what waits in it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def flush(self, until: Callable[[], object] | None = None) -> None:
        """Runs what waits, up to `until` or all of it."""
        while self.waiting:
            first = self.waiting.pop(0)
            first()
            if first is until:
                return


STREAM = Stream()


class Event:
    """A place in the stream."""

    def __init__(self, disable_timing: bool = False) -> None:
        self._mark: Callable[[], object] | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._mark = lambda: None
        STREAM.waiting.append(self._mark)

    def synchronize(self) -> None:
        if self._mark is not None and any(x is self._mark for x in STREAM.waiting):
            STREAM.flush(self._mark)


class Array(np.ndarray):
    """Memory of the device."""

    def set(self, host: np.ndarray, stream: Stream | None = None) -> None:
        assert host.dtype == self.dtype and host.shape == self.shape
        if stream is None:
            STREAM.flush()
            np.copyto(self.view(np.ndarray), host)
            return
        staged = host if isinstance(host.base, Pinned) else host.copy()
        STREAM.waiting.append(lambda: np.copyto(self.view(np.ndarray), staged))

    def get(self, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        if out is not None and not blocking:
            STREAM.waiting.append(lambda: np.copyto(out, self.view(np.ndarray)))
            return out
        STREAM.flush()
        return self.view(np.ndarray).copy()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):  # a kernel that gathers
            STREAM.flush()
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        STREAM.flush()
        super().__setitem__(key, value)


class Pinned(np.ndarray):
    """Host memory that copies read and write when their turn comes."""


def _zeros(shape: Any, dtype: Any = np.float32) -> Array:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    name = next(name for name, kind in NUMPY.items() if kind == np.dtype(dtype))
    return allocate(name, shape).view(Array)


def _asarray(host: np.ndarray) -> Array:
    array = _zeros(host.shape, host.dtype)
    np.copyto(array.view(np.ndarray), host)
    return array


def module() -> SimpleNamespace:
    """What is imported as `cupy`."""
    return SimpleNamespace(
        zeros=_zeros,
        empty=_zeros,
        asarray=lambda host: _asarray(np.asarray(host)),
        int32=np.int32,
        uint8=np.uint8,
        cuda=SimpleNamespace(Event=Event, get_current_stream=lambda: STREAM),
    )


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """In place of `cuda_ahead.pinned`."""
    return np.zeros(shape, dtype).view(Pinned)[...].view(np.ndarray)


def load(source: str, kernel: str) -> Callable[..., None]:
    """The kernels of `cuda_ahead.cu`, as they are described there."""
    assert f"void {kernel}(" in source

    def feed(count: Array, rows: Array, latest: Array, tokens: Array) -> None:
        for i in range(int(count[0])):
            if tokens[i] < 0:
                np.ndarray.__setitem__(tokens, i, latest[rows[i, 0]])

    def settle(
        count: Array, wanted: Array, rows: Array, chosen: Array, abort: Array, latest: Array,
        said: Array,
    ) -> None:  # fmt: skip
        for i in range(int(count[0])):
            np.ndarray.__setitem__(said, i + 1, chosen[i])
            np.ndarray.__setitem__(latest, rows[wanted[i], 0], max(chosen[i], 0))
        np.ndarray.__setitem__(said, 0, abort[0])

    kernels: dict[str, Callable[..., None]] = {"feed": feed, "settle": settle}
    run = kernels[kernel]

    def launch(grid: Any, block: Any, args: tuple[Any, ...]) -> None:
        STREAM.waiting.append(lambda: run(*args))

    return launch


class Machine:
    """A CPU machine that is launched like a GPU's."""

    def __init__(self, program: Any, schedule: Any, tensors: Mapping[str, Any]) -> None:
        plain = {name: array.view(np.ndarray) for name, array in tensors.items()}
        self._machine = CpuMachine(program, schedule, plain)
        self.tensors = tensors
        self.schedule = schedule
        self.abort_flag = _zeros(1, np.int32)

    @property
    def times(self) -> list[np.ndarray]:
        """See `CpuMachine`."""
        return self._machine.times

    def launch(self, trace: bool = False) -> None:
        """Queues a step."""
        STREAM.waiting.append(lambda: self._machine.step(trace))

    def step(self, trace: bool = False) -> None:
        """Runs one, with all that waits before it."""
        self.launch(trace)
        STREAM.flush()

    def check(self) -> None:
        """Waits."""
        STREAM.flush()

    def poison(self) -> None:
        """See `CpuMachine`."""
        STREAM.flush()
        self._machine.poison()

    def close(self) -> None:
        """Ends its threads."""
        STREAM.flush()
        self._machine.close()
