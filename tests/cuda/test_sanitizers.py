"""The host build under the sanitizers of addresses, undefined behaviour and data races, each in its
own process; on a GPU, small steps under NVIDIA's sanitizer."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mkport.compose.cuda_constants import CONSTANTS
from mkport.machines.host.build import compiler
from mkport.machines.host.machine import HostMachine
from mkport.plan import deal
from mkport.testing import sanitize, tiny

ROOT = Path(__file__).parents[2]
CODE = """
from dataclasses import replace
from mkport.machines.host.machine import HostMachine
from tests.cuda.worlds import chain
schedule, program, given = chain(2)
before, after = {change!r}
assert program.source.count(before) == 1
program = replace(program, source=program.source.replace(before, after))
HostMachine(program, schedule, given, sanitize="address,undefined").step()
print("finished")
"""
SLOW = pytest.mark.slow
CASES, RACED = sanitize.CASES, sanitize.FAULTS["racecheck"]
STORE = "mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);"


def libraries(*names: str) -> str:
    """The compiler's runtimes of sanitizers, to be loaded first."""
    cxx = compiler()
    if cxx is None or "g++" not in Path(cxx).name or sys.platform != "linux":
        pytest.skip("needs g++ on Linux")
    found = []
    for name in names:
        asked = subprocess.run([cxx, f"-print-file-name={name}"], capture_output=True, text=True)
        path = asked.stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"g++ has no {name}")
        found.append(path)
    return " ".join(found)


def run(change: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    settings = {
        "LD_PRELOAD": libraries("libasan.so", "libubsan.so"),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    return subprocess.run(
        [sys.executable, "-c", CODE.format(change=change)],
        cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_step_is_clean() -> None:
    done = run((STORE, STORE))
    assert done.stdout == "finished\n", done.stderr[-3000:]
    assert "runtime error" not in done.stderr and "AddressSanitizer" not in done.stderr


def test_a_write_past_a_tensor_s_end_is_found() -> None:
    done = run((STORE, STORE.replace("a.y +", "a.y + 4096 +")))
    assert "finished" not in done.stdout
    assert "AddressSanitizer" in done.stderr


def test_undefined_behaviour_is_found() -> None:
    done = run((STORE, STORE.replace("y.v[i]", "y.v[i] + float((2147483647 - 95 + a.n) >> 31)")))
    assert "finished" not in done.stdout
    assert "runtime error: signed integer overflow" in done.stderr


RACES = """
import numpy as np
from dataclasses import replace
from mkport.declare import RECORD
from mkport.machines.host.machine import HostMachine
from mkport.plan import deal
from mkport.testing import sanitize, tiny
from tests.cuda.worlds import chain
case, before, after = {given!r}
if case.startswith("chain"):
    schedule, program, given = chain(2)
    if "waits for nobody" in case:
        lists = [records.copy() for records in schedule.lists]
        at = RECORD["waits"].first
        next(r for records in lists for r in records if r[at] >= 0)[at] = -1
        schedule = replace(schedule, lists=tuple(lists))
elif case == "ring":  # keys and values come through the ring too
    from tests.cuda.test_long_steps import ragged
    schedule, program, given = ragged("700,65,5", 2)
else:
    graph, program = sanitize.composed(case, None)
    schedule = deal(graph, 3, "strided")
    given = tiny.fill(graph, tiny.SHAPE, np.random.default_rng(0))
assert program.source.count(before) == 1
program = replace(program, source=program.source.replace(before, after))
HostMachine(program, schedule, given, sanitize="thread").step()
print("finished")
"""
READ = "mk_sync_warp();  // all have read what one will write; a vote orders no memory"


def races(case: str, before: str = READ, after: str = READ) -> str:
    """What ThreadSanitizer says of a case whose text was changed: accesses of a worker's threads,
    or of two workers, to shared or to global memory, that nothing orders which would on a GPU."""
    settings = {
        "LD_PRELOAD": libraries("libtsan.so"),
        "TSAN_OPTIONS": "exitcode=0 report_thread_leaks=0 history_size=4",
    }
    fixed = (
        [arch, "-R"] if (arch := shutil.which("setarch")) else []
    )  # addresses that it can shadow
    done = subprocess.run(
        [*fixed, sys.executable, "-c", RACES.format(given=(case, before, after))],
        cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    if "unexpected memory mapping" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("ThreadSanitizer does not run here")
    assert done.stdout == "finished\n", done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize(
    "case", ["chain", *(pytest.param(case, marks=SLOW) for case in ("ring", *CASES))]
)
def test_nothing_races(case: str) -> None:
    said = races(case)
    assert "ThreadSanitizer" not in said, said[:3000]


@pytest.mark.parametrize(
    ("case", "before", "after", "where"),
    [
        ("chain", READ, "", "MkLoad::claim"),
        ("chain whose second record waits for nobody", READ, READ, "mk_store<float>"),
        pytest.param("cohere2_moe", RACED.before, RACED.after, "MkCompute::sum", marks=SLOW),
    ],
    ids=["between lanes", "between workers", "between warps"],
)
def test_a_race_is_found(case: str, before: str, after: str, where: str) -> None:
    said = races(case, before, after)
    assert "ThreadSanitizer: data race" in said and where in said


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_the_faults_for_the_gpu_s_sanitizers_can_be_planted(tool: str) -> None:
    sound = sanitize.composed(sanitize.CASES[0], None)[1].source
    fault = sanitize.FAULTS[tool]
    assert sound.count(fault.before) == 1
    planted = sanitize.composed(sanitize.CASES[0], tool)[1].source
    assert planted.count(fault.after) == sound.count(fault.after) + 1
    assert planted.count(fault.before) == 0


def test_for_racecheck_no_lane_arrives_for_others() -> None:
    source = sanitize.composed(sanitize.CASES[0], None, every_lane=True)[1].source
    assert not re.findall(r"mk_lane\(\) == 0\)\s+mk_barrier_arrive", source)
    counts = re.findall(r"mk_barrier_init\((\w+) \+ i, (.+)\);", source)
    assert [name for name, count in counts if not count.startswith("32 * ")] == [
        "ring_full", "staged",  # who expects the bytes; each stager
    ]  # fmt: skip


@SLOW
def test_a_step_in_which_every_lane_arrives_has_the_same_bits() -> None:
    seen = set()
    for every_lane in (False, True):
        graph, program = sanitize.composed(CASES[0], None, every_lane)
        given = tiny.fill(graph, tiny.SHAPE, np.random.default_rng(0))
        machine = HostMachine(program, deal(graph, 3, "strided"), given)
        for _ in range(2):
            machine.step()
        seen.add(machine.tensors["logits"].tobytes())
    assert len(seen) == 1


def test_the_tools_are_told_of_every_barrier() -> None:
    source = sanitize.composed(sanitize.CASES[0], None)[1].source
    shared = source[source.index("struct MkShared {") : source.index("MkBox boxes[MK_BOXES];")]
    sizes = re.findall(r"\w+\[MK_(\w+)\]", shared)
    assert len(sizes) == 8
    assert sanitize.BARRIERS == sum(CONSTANTS[size] for size in sizes)


def test_a_process_that_takes_too_long_is_ended_with_its_children() -> None:
    started = time.perf_counter()
    script = "echo begun; sh -c 'sleep 60' & wait"
    assert sanitize._output(["sh", "-c", script], 0.5) == (None, "begun\n")
    assert time.perf_counter() - started < 20
    assert sanitize._output(["sh", "-c", "echo said; exit 3"], 20) == (3, "said\n")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(shutil.which(sanitize.TOOL) is None, reason="no compute-sanitizer")
@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_a_small_step_is_clean_on_the_gpu_and_a_fault_is_found(tool: str) -> None:
    assert sanitize.sanitize(tool, "cohere2_moe") == 0
    assert sanitize.sanitize(tool, "cohere2_moe", tool) > 0
