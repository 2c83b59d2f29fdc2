"""Small cases on the GPU under NVIDIA's compute-sanitizer: `python -m mkport.testing.sanitize`.

Each tool runs each case in a process of its own, with a wait limit that its slowness asks for: all
must end without a finding. Then a fault is planted for each tool, which must find it: a tool that
cannot go red proves nothing. A few processes run side by side: most of their time is not the GPU's.

Where one lane arrives at an mbarrier for its warp, behind a `__syncwarp`, racecheck (2025.3.1,
2026.4) takes what the other lanes did for unordered. For it each lane arrives for itself. That the
`__syncwarp` is there, ThreadSanitizer sees in the host build.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import CONSTANTS
from mkport.compose.fixed import compose_cuda_for
from mkport.errors import UserError
from mkport.plan import Graph, deal, flag
from mkport.testing import tiny
from mkport.verify import verify

TOOL = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")
FLAGGED = ", flagged"  # with flagged scratch, as steps of few rows have it
CASES = ("cohere2_moe", "llama", "qwen3_moe", f"cohere2_moe{FLAGGED}")
WORKERS = 3
LIMIT_S = 600.0  # of one wait
PATIENCE_S = 240.0  # for a process
BESIDE = 3  # processes at once
# Tools that follow mbarriers must be told how many there are: compilers see named ones alone.
BARRIERS = sum(
    each * CONSTANTS[name] for name, each in (("CHUNKS", 2), ("BOXES", 4), ("JOIN_SLOTS", 2))
)
FOLLOWING = ("racecheck", "synccheck")
# What makes every lane arrive: text of the composed file and what to put in its stead.
EVERY_LANE = (
    (
        r"(mk_barrier_init\((?:ring_empty|box_full|box_empty|computed|joined|join_free) \+ i, )",
        r"\g<1>32 * ",
    ),
    (r"if \(mk_lane\(\) == 0\) (mk_barrier_arrive\()", r"\1"),
    # the storer's last wait and arrival, among what its lane 0 does
    (r"(role\.guard\.wait\(role\.shared\.computed)", r"} { \1"),
)
FOUND = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")


@dataclass(frozen=True)
class Fault:
    """Text of the composed file and what to put in its stead."""

    before: str
    after: str


FAULTS = {
    "memcheck": Fault(
        "mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);",
        "mk_store(a.y + (int64_t(1) << 36) + at, y.v[i]);",
    ),
    "racecheck": Fault(
        "MK_DEVICE void sync() const { mk_named_barrier(MK_COMPUTE_BARRIER, MK_COMPUTERS); }",
        "MK_DEVICE void sync() const {}",
    ),
    "synccheck": Fault(  # a phase of a barrier whose end nobody sees
        "role.guard.wait(role.shared.computed + place, r / MK_BOXES & 1, MK_WAIT_COMPUTED, place);",
        "static_cast<void>(r);",
    ),
}


def composed(case: str, fault: str | None, every_lane: bool = False) -> tuple[Graph, CudaProgram]:
    """A case's step and its program, with the fault for a tool planted or none; `every_lane`
    arrives for itself, or one for its warp as usual.

    Raises UserError when the text that is to be changed is not in the composed file.
    """
    graph = tiny.graphs(tiny.SHAPE)[case.removesuffix(FLAGGED)]
    graph = graph.within(dict.fromkeys(node.op for node in graph.nodes))  # fewer compile sooner
    if case.endswith(FLAGGED):
        graph = flag(graph)
    program = compose_cuda_for(graph, "bf16", "bf16", tiny.SHAPE.rows)
    source = program.source
    if fault is not None:
        planted = FAULTS[fault]
        if source.count(planted.before) < 1:
            raise UserError(f"The text that the fault for {fault} changes is not in the file.")
        source = source.replace(planted.before, planted.after)
    for before, after in EVERY_LANE if every_lane else ():
        source, changed = re.subn(before, after, source)
        if not changed:
            raise UserError(f"The text {before} of arrivals at barriers is not in the file.")
    return graph, replace(program, source=source)


def run_case(case: str, fault: str | None, every_lane: bool = False) -> None:
    """Two steps of a small model from poisoned scratch, as `composed`.

    Raises AssertionError for logits that are not finite, UserError as `composed`.
    """
    import cupy

    from mkport.machines.cuda.machine import CudaMachine

    cupy.cuda.set_allocator(None)  # every tensor an allocation of its own, so that its end is known
    graph, program = composed(case, fault, every_lane)
    schedule = deal(graph, WORKERS, share="strided")
    verify(schedule)
    given = tiny.fill(graph, tiny.SHAPE, np.random.default_rng(0))
    machine = CudaMachine(program, schedule, given, limit_s=LIMIT_S)
    for _ in range(2):
        machine.poison()
        machine.step()
    live = int(given["logit_count"][0])
    assert np.isfinite(machine.tensors["logits"].get()[:live]).all(), "logits are not finite"


def sanitize(tool: str, case: str, fault: str | None = None, patience_s: float = PATIENCE_S) -> int:
    """What the tool finds in a case: a number of errors or hazards.

    Raises UserError when it gave no verdict: it is not there, does not know the device, or took
    over `patience_s` seconds.
    """
    if shutil.which(TOOL) is None:
        raise UserError(f"{TOOL} is not on the path; it comes with the CUDA toolkit.")
    command = [TOOL, "--tool", tool, "--print-limit", "5"]
    command += ["--num-cuda-barriers", str(BARRIERS)] if tool in FOLLOWING else []
    command += [sys.executable, "-m", "mkport.testing.sanitize", "--case", case]
    command += ["--fault", fault] if fault else []
    command += ["--every-lane"] if tool == "racecheck" else []
    code, output = _output(command, patience_s)
    if code is None:
        raise UserError(f"{TOOL} {tool} of {case} took over {patience_s:.0f} s:\n{output[-1000:]}")
    found = FOUND.findall(output)
    if not found or "Device not supported" in output:
        raise UserError(f"{TOOL} {tool} gave no verdict on {case}:\n{output[-2000:]}")
    if int(found[-1]) == 0 and code and fault is None:
        raise UserError(f"{case} failed under {tool}:\n{output[-2000:]}")
    if int(found[-1]) and fault is None:
        print(output[-4000:])
    return int(found[-1])


def _output(command: list[str], patience_s: float) -> tuple[int | None, str]:
    """Exit status and output of a process; None when it took too long: it is ended then, with all
    that it started."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=patience_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def main() -> int:
    """Runs every tool on every case, then on its fault; 0 when all is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tool", choices=TOOLS, action="append")
    parser.add_argument("--case", choices=CASES, help="run this case, without a tool")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--every-lane", action="store_true", help="of it arrives, for racecheck")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds a process")
    given = parser.parse_args()
    if given.case:
        run_case(given.case, given.fault, given.every_lane)
        return 0
    runs = [
        (tool, case, fault)
        for tool in given.tool or TOOLS
        for case, fault in [*((case, None) for case in CASES), (CASES[0], tool)]
    ]
    _compile({(case, fault, tool == "racecheck") for tool, case, fault in runs})

    def right(run: tuple[str, str, str | None]) -> bool:
        tool, case, fault = run
        name, started = f"{tool:10} {case:12} {'with a fault' if fault else '':13}", time.time()
        try:
            count = sanitize(tool, case, fault, given.patience)
        except UserError as error:
            print(f"{name}{error}", flush=True)
            return False
        as_wanted = (count > 0) == (fault is not None)
        took = f"{time.time() - started:.1f} s"
        print(f"{name}{count} found{'' if as_wanted else ': WRONG'}, {took}", flush=True)
        return as_wanted

    with ThreadPoolExecutor(BESIDE) as pool:
        return 0 if all(list(pool.map(right, runs))) else 1


def _compile(programs: set[tuple[str, str | None, bool]]) -> None:
    """Leaves their machine code in the cache, so that no process under a tool compiles."""
    from mkport.machines.cuda.gpu import compiled, gpu

    gpu()
    sources = {composed(*program)[1].source for program in programs}
    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(compiled, sources))


if __name__ == "__main__":
    sys.exit(main())
