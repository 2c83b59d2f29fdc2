"""Runs an unmodified CUDA kernel on a CPU, several times over, and says whether it is well defined.

The kernel's file includes nothing of mkport. Blocks run one after another and the threads of a
block interleaved, both in orders drawn from a seed, with other junk in whatever nobody has filled.
What a GPU would answer with garbage is found on the way: races, reads of what nobody wrote,
accesses out of bounds or not aligned, barriers that threads slip past, deadlocks. What shows none
of that is run once more under AddressSanitizer. Compiling is `original_build.py`'s; what a finding
means for a port is the caller's.
"""

import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mkport.errors import UserError
from mkport.machines.host.build import plain, unchecked
from mkport.port.original_build import NotBuilt, build_original
from mkport.port.original_job import (
    Finding,
    Launch,
    buffers_of,
    job_text,
    read_findings,
    refused_arguments,
)

CHECKERS = ("watch", "address")  # of loads and stores, in every order; AddressSanitizer, once
UNPLACED = ("seeds", "outside")  # kinds of which AddressSanitizer says more: where, and whether

__all__ = ["Finding", "Launch", "NotBuilt", "Original", "run_original"]


@dataclass(frozen=True)
class Original:
    """What some launches did: their buffers afterwards, and what was found.

    `outputs` are the distinct arrays of the launches in the order of their first use, after the
    first run. `equal`: every run left the same bits in all of them. `unchecked`: why
    AddressSanitizer did not look, "" where it did.
    """

    outputs: tuple[np.ndarray, ...]  # [arrays], each of its own shape
    equal: bool
    findings: tuple[Finding, ...]
    unchecked: str = ""

    @property
    def well_defined(self) -> bool:
        """No finding is fatal, and all runs agree."""
        return self.equal and not any(finding.fatal for finding in self.findings)


def run_original(
    source: str,
    launches: Sequence[Launch],
    *,
    path: Path = Path("kernel.cu"),
    seeds: int = 4,
    seed: int = 0,
    unfilled: Sequence[np.ndarray] = (),
    include: Sequence[Path] = (),
    define: Mapping[str, str] | None = None,
    limit_s: float = 20.0,
    checkers: Sequence[str] = CHECKERS,
    aside: Collection[int] = (),
) -> Original:
    """Runs launches of a file's kernels, one after another, under `seeds` seeds.

    `source` is the text of the file without its host code, lines kept, and `path` where it came
    from: its folder is searched for what it includes, after the folders `include`. The arrays of
    the launches stay as they are. Those in `unfilled`, in any shape, hold nothing until a kernel
    writes there.
    Lines in `aside` are a library's: what is found there is told of the line that called it.
    A run may take `limit_s` seconds. The second of the `checkers` sees what the first lets pass.
    Raises UserError without a compiler or for arguments that do
    not fit, and NotBuilt, with a line, where the compiler refuses the file.
    """
    folders = [*include, *([path.parent] if path.parent.is_dir() and path.is_file() else [])]
    kernels = [launch.kernel for launch in launches]
    buffers = [array for _, array in buffers_of(launches).values()]

    def run(address: bool, runs: int) -> tuple[list[Finding], list[int], bytes]:
        built = build_original(source, kernels, folders, define, address)
        job = job_text(launches, built, unfilled, runs, seed, limit_s)
        return _run(built.program, job, buffers, path, launches, aside)

    findings, states, data = run(checkers[0] == "address", seeds)
    runs = _split(data, buffers, len(states))
    names = [name for name, _ in buffers_of(launches).values()]
    different = _difference(runs, names) if not any(states) else None
    if different:
        findings.append(Finding("seeds", 0, different, True))
    without = unchecked()
    clean = not any(states) and not any(f.fatal and f.kind not in UNPLACED for f in findings)
    if clean and "address" in checkers[1:] and not without:
        try:
            more = [f for f in run(True, 1)[0] if f.fatal and f.kind != "time limit"]
            findings = more + findings  # a place says more than that bits differ
        except UserError as error:
            without = f"not under AddressSanitizer: {error}"
    equal = different is None and not any(states)
    return Original(runs[0], equal, tuple(findings), without)


def _run(
    program: Path,
    job: str,
    buffers: Sequence[np.ndarray],
    path: Path,
    launches: Sequence[Launch],
    aside: Collection[int],
) -> tuple[list[Finding], list[int], bytes]:
    """Runs a program: its findings, how each run ended, and the buffers after each."""
    with tempfile.TemporaryDirectory() as work:
        files = [Path(work) / name for name in ("job", "data", "out", "findings")]
        files[0].write_text(job)
        files[1].write_bytes(b"".join(array.tobytes() for array in buffers))
        command = [str(program), *map(str, files)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=plain()
        )
        if done.returncode == 5:
            raise refused_arguments(done.stdout, launches)
        if done.returncode:
            raise UserError(
                f"The program of {path} ended with {done.returncode} before its kernels ran: "
                f"{done.stderr.strip()[:1000]}"
            )
        findings, states = read_findings(files[3].read_text(errors="replace"), program, aside)
        return findings, states, files[2].read_bytes()


def _split(data: bytes, buffers: Sequence[np.ndarray], seeds: int) -> list[tuple[np.ndarray, ...]]:
    """The buffers after each run."""
    runs, at = [], 0
    for _ in range(seeds):
        arrays = []
        for like in buffers:
            part = data[at : at + like.nbytes]
            arrays.append(np.frombuffer(part, like.dtype).reshape(like.shape).copy())
            at += like.nbytes
        runs.append(tuple(arrays))
    return runs


def _difference(runs: Sequence[tuple[np.ndarray, ...]], names: Sequence[str]) -> str | None:
    """Where two runs differ first, in words."""
    for number, arrays in enumerate(runs[1:], 1):
        for name, first, here in zip(names, runs[0], arrays, strict=True):
            changed = np.flatnonzero(
                np.frombuffer(first.tobytes(), np.uint8) != np.frombuffer(here.tobytes(), np.uint8)
            )
            if changed.size:
                at = int(changed[0]) // first.itemsize
                values = first.reshape(-1)[at], here.reshape(-1)[at]
                return (
                    f"element {at} of {name} is {values[0]} in one order of the threads and "
                    f"{values[1]} in another (run {number})"
                )
    return None
