"""The CPU machine: right results, the same bits however it is run, and an end to every wait."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mkport.compose import compose_cpu
from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine, Stuck
from mkport.plan import Schedule
from tests.machines.chain import RESULT, chain, expected

ROOT = Path(__file__).parents[2]
SIGNAL, WAITS = RECORD["signal"].first, RECORD["waits"].first


def run(workers: int, steps: int = 1, first_step: int = 0) -> np.ndarray:
    schedule, program, given = chain(workers)
    with CpuMachine(program, schedule, given, first_step=first_step) as machine:
        machine.poison()
        for _ in range(steps):
            machine.step()
        return machine.tensors[RESULT].copy()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_result_is_the_oracle_s_and_does_not_depend_on_workers(workers: int) -> None:
    got = run(workers)
    _, _, given = chain(1)
    np.testing.assert_allclose(got, expected(given), rtol=0, atol=2e-5)
    assert got.tobytes() == run(1).tobytes()


def test_many_steps_give_the_same_bits() -> None:
    schedule, program, given = chain(2)
    with CpuMachine(program, schedule, given) as machine:
        seen = set()
        for _ in range(200):
            machine.poison()
            machine.step()
            seen.add(machine.tensors[RESULT].tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("first_step", [2**31 // 6 - 2, 2**32 // 6 - 2, 2**31 - 3])
def test_counters_survive_their_wrap(first_step: int) -> None:
    """Counters that gain 6 a step pass 2**31 and 2**32 within these five steps."""
    assert run(2, steps=5, first_step=first_step).tobytes() == run(1).tobytes()


def lose(schedule: Schedule, what: str) -> Schedule:
    """The schedule with one signal of the third node gone, or its target raised."""
    lists = [records.copy() for records in schedule.lists]
    if what == "signal":
        lists[0][2][SIGNAL] = -1
    else:
        lists[0][2][WAITS + 1] += 1
    return replace(schedule, lists=tuple(lists))


@pytest.mark.parametrize("what", ["signal", "target"])
def test_a_lost_signal_ends_in_the_stuck_frontier(what: str) -> None:
    schedule, program, given = chain(2)
    with CpuMachine(program, lose(schedule, what), given, limit_s=0.2) as machine:
        with pytest.raises(Stuck) as caught:
            machine.step()
    lines = str(caught.value).splitlines()
    assert lines[0] == "The step was aborted: a wait ran past its limit. Where the workers were:"
    stuck = "gemm 3" if what == "signal" else "gemm 2"
    assert any(stuck in line and "missing" in line for line in lines[1:])
    assert all("has" in line and "needs" in line for line in lines[1:])


def test_an_aborted_machine_starts_again_from_zero() -> None:
    schedule, program, given = chain(2)
    with CpuMachine(program, lose(schedule, "signal"), given, limit_s=0.1) as machine:
        for _ in range(2):
            with pytest.raises(Stuck, match="gemm 3"):
                machine.step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("w1"), "weight 'w1' .* missing"),
        (lambda given: given.update(extra=np.zeros(1, np.float32)), "no tensor 'extra'"),
        (lambda given: given.update(w0=given["w0"].astype(np.float64)), "'w0' is float64"),
        (lambda given: given.update(w0=given["w0"][:, :5].copy()), r"'w0' is float32\[96, 5\]"),
        (lambda given: given.update(w0=given["w0"].T), "'w0' is not contiguous"),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    change: Callable[[dict[str, np.ndarray]], object], message: str
) -> None:
    schedule, program, given = chain(1)
    change(given)
    with pytest.raises(UserError, match=message):
        CpuMachine(program, schedule, given)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux core affinity")
def test_eight_workers_finish_on_one_core() -> None:
    """Waiting workers give the core away, so a step of milliseconds does not take seconds."""
    code = """
        import os, time
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
        from mkport.machines.cpu.machine import CpuMachine
        from tests.machines.chain import chain
        schedule, program, given = chain(8)
        with CpuMachine(program, schedule, given, limit_s=5) as machine:
            machine.step()
            started = time.perf_counter()
            for _ in range(20):
                machine.step()
            print(time.perf_counter() - started)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 20


def test_a_trace_has_a_time_for_every_record() -> None:
    schedule, program, given = chain(2)
    with CpuMachine(program, schedule, given) as machine:
        machine.step(trace=True)
        for records, times in zip(schedule.lists, machine.times, strict=True):
            assert times.shape == (len(records), 3)
            assert (np.diff(times.ravel()) >= 0).all()
        machine.step()
        assert machine.times == []


class Interrupted:
    """Stands in for a queue or a function and raises KeyboardInterrupt once."""

    def __init__(self, inner: Callable[..., object], before: bool) -> None:
        self.inner, self.before, self.left = inner, before, 1

    def __call__(self, *args: object) -> object:
        fires, self.left = self.left, 0
        if fires and self.before:
            raise KeyboardInterrupt
        result = self.inner(*args)
        if fires:
            raise KeyboardInterrupt
        return result


class Answers:
    """A queue of answers whose first `get` is interrupted."""

    def __init__(self, inner: object, before: bool) -> None:
        self.put = inner.put  # type: ignore[attr-defined]
        self.get = Interrupted(inner.get, before)  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["_work", "_done"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_step_leaves_nothing_behind(
    where: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, program, given = chain(2)
    reference = run(1).tobytes()
    with CpuMachine(program, schedule, given, limit_s=60) as machine:
        machine.step()
        inner = machine._work
        if where == "_work":
            mine = Interrupted(inner, before)
            monkeypatch.setattr(
                machine, "_work", lambda worker, step: (inner if worker else mine)(worker, step)
            )
        else:
            monkeypatch.setattr(machine, "_done", Answers(machine._done, before))
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            machine.step()
        assert time.monotonic() - started < 30  # the workers were called out, not waited for
        assert machine._done.empty() if where == "_work" else True
        assert not machine._counters.any()
        for _ in range(3):
            machine.poison()
            machine.step()
            assert machine.tensors[RESULT].tobytes() == reference


def test_threads_on_one_machine_take_turns() -> None:
    schedule, program, given = chain(2)
    with CpuMachine(program, schedule, given) as machine:
        running, most = 0, 0
        inner = machine._work

        def counted(worker: int, step: int) -> bool:
            nonlocal running, most
            running += worker == 0
            most = max(most, running)
            time.sleep(0.005)
            result = inner(worker, step)
            running -= worker == 0
            return result

        machine._work = counted  # type: ignore[method-assign]
        threads = [threading.Thread(target=machine.step) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1
        assert machine._step == 4


def test_a_closed_machine_says_so() -> None:
    schedule, program, given = chain(2)
    machine = CpuMachine(program, schedule, given, limit_s=0.5)
    machine.close()
    machine.close()
    with pytest.raises(UserError, match="machine is closed"):
        machine.step()


def test_a_forked_process_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, program, given = chain(2)
    with CpuMachine(program, schedule, given, limit_s=0.5) as machine:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(UserError, match="another process"):
                machine.step()
        machine.step()


@pytest.mark.parametrize(("weights", "cache"), [("bf16", "f32"), ("bf16", "bf16")])
def test_a_program_of_other_storage_types_is_refused(weights: str, cache: str) -> None:
    schedule, program, given = chain(1)
    other = compose_cpu(program.ops, weights, cache)
    with pytest.raises(UserError, match="reads bf16, but the schedule's tensor 'w0' .* is f32"):
        CpuMachine(other, schedule, given)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_stopped_process_has_not_waited() -> None:
    """A stop longer than the limit is no wait: the step goes on afterwards."""
    code = """
        import threading, time
        from mkport.machines.cpu.machine import CpuMachine
        from tests.machines.chain import chain
        schedule, program, given = chain(2)
        with CpuMachine(program, schedule, given, limit_s=1.0) as machine:
            machine.step()
            inner = machine._work
            def late(worker, step):
                if worker:
                    print("waiting", flush=True)
                    time.sleep(2.0)
                return inner(worker, step)
            machine._work = late
            machine.step()
            print("done", flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.6)
        child.send_signal(signal.SIGCONT)
        out, err = child.communicate(timeout=60)
    assert out == "done\n", err
