"""The host machine in a process of its own, under AddressSanitizer where the compiler has it: what
a port does to memory can be found out, and cannot end the process that asks."""

import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mkport.machines.host.build import HostFault, plain, program_of
from mkport.machines.host.machine import THREADS, HostMachine

REPORT = re.compile(r"ERROR: AddressSanitizer: (\S+)")
FRAME = re.compile(r"#\d+ \S+ in .*?kernel\.cc:(\d+)")
LIMIT_S = 120.0


class ApartMachine(HostMachine):
    """A host machine whose steps run in a process each. Every tensor is a block of exactly its
    size there, so that an access past its end is found.

    A step raises HostFault for that too, for a crash, and when it takes over two minutes.
    """

    def _built(self, source: str, sanitize: str) -> Any:
        return program_of(source)

    def _launched(self, times: np.ndarray) -> str:
        fixed = (self._records, self._firsts, self._table, self._maps)
        kept = (self._counters, self._errors, times, *self.tensors.values())
        head = [
            len(self.tensors), self.schedule.workers, THREADS, self._order(), self.shared.nbytes,
            self._step & 0x7FFFFFFF, self.shared.stage, self.shared.ring,
        ]  # fmt: skip
        head += [array.nbytes for array in (*fixed, *kept)]
        with tempfile.TemporaryDirectory() as work:
            job, data, out = (Path(work) / name for name in ("job", "data", "out"))
            job.write_bytes(np.array(head, np.int64).tobytes())
            data.write_bytes(b"".join(array.tobytes() for array in (*fixed, *kept)))
            command = [str(self.library), str(job), str(data), str(out)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", env=plain(),
                    timeout=LIMIT_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired as late:
                raise HostFault(f"It was still at work after {LIMIT_S:.0f} s.") from late
            if done.returncode:
                raise HostFault(self._fault(done.returncode, done.stderr))
            answer = out.read_bytes()
        state, size = (int(n) for n in np.frombuffer(answer[:16], np.int64))
        message, at = answer[16 : 16 + size].decode(errors="replace"), 16 + size
        if state == 2:
            raise HostFault(message)
        for array in kept:
            part = np.frombuffer(answer, array.dtype, array.size, at)
            array[...] = part.reshape(array.shape)
            at += array.nbytes
        return message if state else ""

    def _fault(self, code: int, said: str) -> str:
        """What ended the program, and the line of the composed file where it was."""
        if found := REPORT.search(said):
            frame = FRAME.search(said)
            lines = (self.library.parent / "kernel.cc").read_text().splitlines()
            where = f", at `{lines[int(frame[1]) - 1].strip()}`" if frame else ""
            return f"AddressSanitizer finds {found[1]}{where}"
        if code < 0:
            return f"it ends with {signal.Signals(-code).name}"
        return f"its program ends with {code}: {said.strip()[:300]}"
