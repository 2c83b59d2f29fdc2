"""What a process that this one starts does before anything else: take its cores, and be ready to
end when this one is gone. What the process is for is its starter's business."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def prepare(cores: Collection[int] = ()) -> Callable[[], None]:
    """A `preexec_fn`: the process may run on `cores` (on all of this one's if there are none), and
    gets SIGTERM when the thread that starts it ends, however that comes about (Linux only)."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def first() -> None:
        if cores:
            os.sched_setaffinity(0, cores)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return first
