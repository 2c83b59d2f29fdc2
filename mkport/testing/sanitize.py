"""Small cases on the GPU under NVIDIA's compute-sanitizer: `python -m mkport.testing.sanitize`.

Each tool runs each case in a process of its own, with a wait limit that its slowness asks for: all
must end without a finding. Then a fault is planted for each tool, which must find it: a tool that
cannot go red proves nothing.
"""

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np

from mkport.compose.cuda import compose_cuda
from mkport.errors import UserError
from mkport.plan import deal
from mkport.testing import tiny
from mkport.verify import verify

TOOL = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")
CASES = ("cohere2_moe", "llama")
WORKERS = 3
LIMIT_S = 600.0  # of one wait
PATIENCE_S = 240  # for a process
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
    "synccheck": Fault(
        "MK_DEVICE void sync() const { mk_named_barrier(MK_COMPUTE_BARRIER, MK_COMPUTERS); }",
        "MK_DEVICE void sync() const { mk_named_barrier(MK_COMPUTE_BARRIER, MK_COMPUTERS - 6); }",
    ),
}


def run_case(case: str, fault: str | None) -> None:
    """Two steps of a small model from poisoned scratch, with the fault for a tool planted or none.

    Raises AssertionError for logits that are not finite, UserError when the text that the fault
    changes is not in the composed file.
    """
    import cupy

    from mkport.machines.cuda.machine import CudaMachine

    cupy.cuda.set_allocator(None)  # every tensor an allocation of its own, so that its end is known
    graph = tiny.graphs(tiny.SHAPE)[case]
    schedule = deal(graph, WORKERS, share="strided")
    verify(schedule)
    program = compose_cuda(schedule.graph.ops, "bf16", "bf16", tiny.SHAPE.rows)
    if fault is not None:
        planted = FAULTS[fault]
        if program.source.count(planted.before) < 1:
            raise UserError(f"The text that the fault for {fault} changes is not in the file.")
        source = program.source.replace(planted.before, planted.after)
        program = replace(program, source=source)
    given = tiny.fill(graph, tiny.SHAPE, np.random.default_rng(0))
    machine = CudaMachine(program, schedule, given, limit_s=LIMIT_S)
    for _ in range(2):
        machine.poison()
        machine.step()
    live = int(given["logit_count"][0])
    assert np.isfinite(machine.tensors["logits"].get()[:live]).all(), "logits are not finite"


def sanitize(tool: str, case: str, fault: str | None = None) -> int:
    """What the tool finds in a case: a number of errors or hazards.

    Raises UserError when it gave no verdict: it is not there, or does not know the device.
    """
    if shutil.which(TOOL) is None:
        raise UserError(f"{TOOL} is not on the path; it comes with the CUDA toolkit.")
    command = [TOOL, "--tool", tool, "--print-limit", "5"]
    command += [sys.executable, "-m", "mkport.testing.sanitize", "--case", case]
    command += ["--fault", fault] if fault else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{TOOL} {tool} of {case} took over {PATIENCE_S} s.") from error
    found = FOUND.findall(output)
    if not found or "Device not supported" in output:
        raise UserError(f"{TOOL} {tool} gave no verdict on {case}:\n{output[-2000:]}")
    if int(found[-1]) == 0 and done.returncode and fault is None:
        raise UserError(f"{case} failed under {tool}:\n{output[-2000:]}")
    if int(found[-1]) and fault is None:
        print(output[-4000:])
    return int(found[-1])


def main() -> int:
    """Runs every tool on every case, then on its fault; 0 when all is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tool", choices=TOOLS, action="append")
    parser.add_argument("--case", choices=CASES, help="run this case, without a tool")
    parser.add_argument("--fault", choices=FAULTS)
    given = parser.parse_args()
    if given.case:
        run_case(given.case, given.fault)
        return 0
    wrong = 0
    for tool in given.tool or TOOLS:
        for case, fault in [*((case, None) for case in CASES), (CASES[0], tool)]:
            name = f"{tool:10} {case:12} {'with a fault' if fault else '':13}"
            try:
                count = sanitize(tool, case, fault)
            except UserError as error:
                print(f"{name}{error}")
                wrong += 1
                continue
            right = (count > 0) == (fault is not None)
            wrong += not right
            print(f"{name}{count} found{'' if right else ': WRONG'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
