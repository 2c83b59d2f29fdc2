"""The Perfetto file, read back as its viewer reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.trace import Trace, write


def events(trace: Trace, path: Path) -> list[dict[str, Any]]:
    write(trace, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = content["traceEvents"]
    return found


def test_every_worker_is_a_named_thread_in_order(
    step: Callable[..., Trace], tmp_path: Path
) -> None:
    found = [one for one in events(step(12, 1), tmp_path / "t.json") if one["ph"] == "M"]
    names = {one["tid"]: one["args"]["name"] for one in found if one["name"] == "thread_name"}
    assert names == {worker + 1: f"worker {worker}" for worker in range(12)}
    order = {one["tid"]: one["args"] for one in found if one["name"] == "thread_sort_index"}
    assert order == {worker + 1: {"sort_index": worker} for worker in range(12)}
    (process,) = [one for one in found if one["name"] == "process_name"]
    assert "made-up times" in process["args"]["name"]
    assert {one["pid"] for one in found} == {1}


def test_a_task_is_its_waiting_and_its_running(tiny: Trace, tmp_path: Path) -> None:
    found = [one for one in events(tiny, tmp_path / "t.json") if one["ph"] == "X"]
    attention = {"node": "layer 0 / attn", "op": "attention", "record": 0}
    assert [one for one in found if one["tid"] == 2] == [
        {
            "ph": "X",
            "name": "waiting",
            "cat": "waiting",
            "pid": 1,
            "tid": 2,
            "ts": 0.1,
            "dur": 0.3,
            "args": attention,
        },
        {
            "ph": "X",
            "name": "layer 0 / attn",
            "cat": "attention",
            "pid": 1,
            "tid": 2,
            "ts": 0.4,
            "dur": 0.2,
            "args": attention,
        },
    ]
    names = [one["name"] for one in found if one["tid"] == 1]
    assert names == ["layer 0 / q", "waiting", "layer 0 / o"]  # the first did not wait


def test_no_event_overlaps_once_cut_to_whole_nanoseconds(
    step: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = step(2, 120)
    threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    spent = 0
    for one in events(trace, tmp_path / "t.json"):
        if one["ph"] == "X":
            begin, long = int(one["ts"] * 1000), int(one["dur"] * 1000)
            threads[one["tid"]].append((begin, begin + long))
            spent += long
    for stretches in threads.values():
        pairs = zip(stretches, stretches[1:], strict=False)
        assert all(earlier[1] <= later[0] for earlier, later in pairs)
    assert spent == int((trace.times[:, 2] - trace.times[:, 0]).sum())


def test_times_begin_at_zero_and_metadata_follows(tiny: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert min(one["ts"] for one in events(tiny, path) if one["ph"] == "X") == 0
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["otherData"] == {"caption": "simulated, by hand", "workers": 2, "tasks": 3}
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_awkward_names_survive(tmp_path: Path) -> None:
    one = np.array([0])
    label = 'layer "0" \\ µ'
    trace = Trace(1, one, one, one, np.array([[0, 0, 1]]), ((label, "gemm"),), "line\nbreak")
    (task,) = [e for e in events(trace, tmp_path / "t.json") if e["ph"] == "X"]
    assert task["name"] == task["args"]["node"] == label


def test_a_missing_folder_is_a_user_error(tiny: Trace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot write"):
        write(tiny, tmp_path / "nowhere" / "t.json")
