"""Steps queued ahead of the host: each takes the choices of the one before it as its tokens, on the
device, and the choices reach the host while the next step runs."""

from pathlib import Path

import numpy as np

from mkport.machines.cuda.gpu import load
from mkport.machines.cuda.machine import CudaMachine

FEED = Path(__file__).with_name("feed.cu")


class Ahead:
    """Steps of one machine on the current stream, at most `depth` of them not yet taken.

    The machine's first `rows` rows are decoded; its tensors `next`, `tokens` and `rows` are the
    step's choices, and the tokens and places of its rows; row i of `next` belongs to token i. No
    row goes beyond position `last`.
    """

    def __init__(self, machine: CudaMachine, rows: int, last: int, depth: int = 2) -> None:
        import cupy

        self._machine, self._rows, self._last = machine, rows, last
        self._feed = load(FEED.read_text(encoding="utf-8"), "feed")
        self._stream = cupy.cuda.get_current_stream()
        self._said = cupy.empty((depth, rows + 1), np.int32)
        pinned = cupy.cuda.alloc_pinned_memory(self._said.nbytes)
        self._host = np.frombuffer(pinned, np.int32, self._said.size).reshape(self._said.shape)
        self._arrived = [cupy.cuda.Event(disable_timing=True) for _ in range(depth)]
        self._pushed = self._taken = 0

    @property
    def waiting(self) -> int:
        """Steps that were queued and not yet taken."""
        return self._pushed - self._taken

    def push(self) -> None:
        """Queues a step; the first one runs with the tokens that the machine's tensors hold. Raises
        ValueError when `depth` steps wait to be taken."""
        slot, tensors = self._pushed % len(self._arrived), self._machine.tensors
        if self.waiting == len(self._arrived):
            raise ValueError("every slot holds a step that was not taken")
        self._machine.launch()
        said = self._said[slot]
        args = (tensors["next"], self._machine.abort_flag, tensors["tokens"], tensors["rows"])
        self._feed((1,), (32,), (*args, said, np.int32(self._rows), np.int32(self._last)))
        said.get(out=self._host[slot], blocking=False)
        self._arrived[slot].record(self._stream)
        self._pushed += 1

    def take(self) -> np.ndarray:
        """The choices of the oldest step, int32 [rows], once they are here; -1 where its logits
        were not finite. Raises Stuck when a wait of it ran out."""
        slot = self._taken % len(self._arrived)
        self._arrived[slot].synchronize()
        self._taken += 1
        if self._host[slot, self._rows]:
            self._machine.check()
        return self._host[slot, : self._rows].copy()

    def drop(self) -> None:
        """Waits for what is queued, and forgets it. Raises Stuck as `take` does."""
        self._taken = self._pushed
        self._machine.check()
