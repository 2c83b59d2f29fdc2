"""Steps on a GPU that are queued before the host has the results of those before them: tokens go
from step to step on the device, and choices and log probabilities come to the host meanwhile."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.engine.ran import Ran
from mkport.engine.target import rivals_of
from mkport.machines.cuda.gpu import load
from mkport.machines.cuda.machine import CudaMachine

SOURCE = Path(__file__).with_name("cuda_ahead.cu")
SLOTS = 3  # one step's results are looked at, the next runs, another is being queued


@dataclass
class _Slot:
    said: Any  # CuPy int32 [1 + rows]
    host: np.ndarray  # int32 [1 + rows], pinned
    ids: np.ndarray  # int32 [rows, rivals], pinned
    logprobs: np.ndarray  # float32 [rows, 1 + rivals], pinned
    event: Any


class Queue:
    """Queues steps of machines that share the tensors `tensors`, on the current stream."""

    def __init__(self, tensors: dict[str, Any], sequences: int) -> None:
        import cupy

        source = SOURCE.read_text(encoding="utf-8")
        self._feed, self._settle = load(source, "feed"), load(source, "settle")
        self._tensors = tensors
        self._latest = cupy.zeros(sequences, np.int32)
        rows, self._rivals = len(tensors["ids"]), rivals_of(tensors)
        self._slots = [
            _Slot(
                cupy.zeros(1 + rows, np.int32),
                pinned((1 + rows,), np.int32),
                pinned(tensors["ids"].shape, np.int32),
                pinned(tensors["logprobs"].shape, np.float32),
                cupy.cuda.Event(disable_timing=True),
            )
            for _ in range(SLOTS)
        ]
        self._queued = 0

    def launch(self, machine: CudaMachine, wanted: int, told: bool, trace: bool, kept: bool) -> Ran:
        """Queues a step whose inputs have been sent; what its `wanted` rows are `told` is fetched
        too. With `trace` it waits for the step's end. Results that are not
        `kept` are taken before the next launch. Raises Stuck then; otherwise the results' `arrive`
        does."""
        import cupy

        slot = self._slots[self._queued % SLOTS]
        self._queued += kept
        t = self._tensors
        self._feed((1,), (1,), (t["count"], t["rows"], self._latest, t["tokens"]))
        if trace:
            machine.step(trace=True)
        else:
            machine.launch()
        self._settle(
            (1,), (1,),
            (t["logit_count"], t["logit_rows"], t["rows"], t["next"], machine.abort_flag,
             self._latest, slot.said),
        )  # fmt: skip
        slot.said.get(out=slot.host, blocking=False)
        if told:
            machine.tensors["ids"].get(out=slot.ids[: len(machine.tensors["ids"])], blocking=False)
            fresh = machine.tensors["logprobs"]
            fresh.get(out=slot.logprobs[: len(fresh)], blocking=False)
        slot.event.record(cupy.cuda.get_current_stream())

        def arrive() -> None:
            slot.event.synchronize()
            if slot.host[0]:
                machine.check()

        ids, logprobs = slot.ids[:wanted, : self._rivals], slot.logprobs[:wanted]
        return Ran(slot.host[1 : 1 + wanted], ids, logprobs[:, : 1 + self._rivals], arrive)


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros [shape] in pinned memory."""
    import cupy

    size = int(np.prod(shape))
    memory = cupy.cuda.alloc_pinned_memory(size * np.dtype(dtype).itemsize)
    array = np.frombuffer(memory, dtype, size).reshape(shape)
    array[...] = 0
    return array
