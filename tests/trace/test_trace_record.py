"""A trace refuses times that cannot be, and comes back from its file as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.trace import Trace


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"worker": np.array([0, 2, 0])}, r"task 1: worker 2 is not in 0\.\.1"),
        ({"worker": np.array([0, -1, 0])}, r"task 1: worker -1"),
        ({"node": np.array([0, 1, 3])}, r"task 2: node 3 is not in 0\.\.2"),
        ({"record": np.array([0, -1, 1])}, r"task 1: record -1"),
        ({"record": np.array([1, 0, 0])}, r"worker 0: records 1 and 0 are out of order"),
        ({"record": np.array([0, 0, 0])}, r"worker 0: records 0 and 0 are out of order"),
        ({"record": np.array([0, 0])}, r"record has \(2,\) entries"),
        ({"record": np.array([0, 0, 2**31])}, r"record does not fit in int32"),
        ({"times": np.zeros((3, 2), np.int64)}, r"times has shape \(3, 2\)"),
        ({"times": np.zeros((3, 3))}, r"times must hold integers"),
        ({"workers": 0}, r"workers is 0"),
        ({"caption": None}, r"must be strings"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(
    tiny: Trace, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        replace(tiny, **change)


@pytest.mark.parametrize(
    ("task", "times", "says"),
    [
        (0, (5401, 5400, 5400), r"task 0: start 5401, ready 5400, end 5400 ns do not ascend"),
        (1, (5100, 5700, 5600), r"task 1: start 5100, ready 5700"),
        (2, (5399, 5600, 6000), r"worker 0: records 0 and 1 overlap in time"),
    ],
)
def test_times_that_cannot_be_are_refused(
    tiny: Trace, task: int, times: tuple[int, int, int], says: str
) -> None:
    changed = tiny.times.copy()
    changed[task] = times
    with pytest.raises(ValueError, match=says):
        replace(tiny, times=changed)


def test_tasks_may_touch_and_take_no_time(tiny: Trace) -> None:
    changed = tiny.times.copy()
    changed[2] = 5400  # begins as the one before it ends, and ends at once
    assert replace(tiny, times=changed).span_ns == 600


def test_arrays_are_copied_and_read_only(tiny: Trace) -> None:
    given = np.array([0, 0, 1], np.int32)
    trace = replace(tiny, record=given)
    given[2] = 7
    assert trace.record.tolist() == [0, 0, 1]
    assert (trace.record.dtype.name, trace.times.dtype.name) == ("int32", "int64")
    with pytest.raises(ValueError, match="read-only"):
        trace.times[0, 0] = 1


def test_a_trace_comes_back_from_its_file(step: Callable[..., Trace], tmp_path: Path) -> None:
    trace = step(3, 2)
    trace.save(tmp_path / "step.json")
    again = Trace.load(tmp_path / "step.json")
    assert (again.workers, again.nodes, again.caption) == (3, trace.nodes, trace.caption)
    for name in ("worker", "record", "node", "times"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))
    assert [one.name for one in tmp_path.iterdir()] == ["step.json"]


def test_a_trace_without_tasks_comes_back(tmp_path: Path) -> None:
    none = np.zeros(0, np.int32)
    trace = Trace(4, none, none, none, np.zeros((0, 3), np.int64), (), "nothing ran")
    trace.save(tmp_path / "none.json")
    again = Trace.load(tmp_path / "none.json")
    assert (again.workers, again.tasks, again.span_ns) == (4, 0, 0)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda _: "{", "is not JSON"),
        (lambda _: "[]", "is no trace"),
        (lambda content: json.dumps({**content, "format": "other"}), "its format is 'other'"),
        (
            lambda content: json.dumps({k: v for k, v in content.items() if k != "node"}),
            "lacks the field 'node'",
        ),
        (lambda content: json.dumps({**content, "worker": [0, 9, 0]}), "worker 9 is not in"),
        (lambda content: json.dumps({**content, "worker": ["a", 1, 0]}), "must hold integers"),
        (lambda content: json.dumps({**content, "workers": "2"}), "workers is '2'"),
        (lambda content: json.dumps({**content, "times_ns": [[1, 2]]}), "is damaged"),
        (lambda content: json.dumps({**content, "nodes": [["only a label"]]}), "is damaged"),
        (lambda content: json.dumps({**content, "nodes": 5}), "is damaged"),
    ],
)
def test_a_damaged_file_is_named_with_the_fix(
    tiny: Trace, tmp_path: Path, damage: Callable[[dict[str, Any]], str], says: str
) -> None:
    path = tmp_path / "step.json"
    tiny.save(path)
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(UserError, match=says) as refused:
        Trace.load(path)
    assert "step.json" in str(refused.value)
    assert "mkport trace" in str(refused.value)


def test_a_missing_file_and_a_missing_folder_are_user_errors(tiny: Trace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot read .*none\.json"):
        Trace.load(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"Cannot write .*step\.json.*existing folder"):
        tiny.save(tmp_path / "nowhere" / "step.json")


def test_a_failed_write_leaves_the_old_file(
    tiny: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step.json"
    path.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(UserError, match="No space left"):
        tiny.save(path)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["step.json"]
