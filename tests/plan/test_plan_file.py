"""Schedules come back from their file as they were, and a damaged file is refused by its place."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.declare import Op
from mkport.errors import UserError
from mkport.library import all_ops
from mkport.models import llama
from mkport.plan import Schedule, deal
from mkport.plan.file import load_schedule, save_schedule
from mkport.testing import tiny
from mkport.verify import Refused, verify

OPS: dict[str, Op] = all_ops()


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """A small model's step on three workers."""
    return deal(llama.build(tiny.LLAMA, tiny.SHAPE), 3)


@pytest.fixture
def file(schedule: Schedule, tmp_path: Path) -> Path:
    save_schedule(schedule, tmp_path / "schedule.json")
    return tmp_path / "schedule.json"


def test_a_schedule_comes_back_as_it_was(schedule: Schedule, file: Path) -> None:
    back = load_schedule(file, OPS)
    assert back.counters == schedule.counters
    assert back.graph.ops == schedule.graph.ops
    assert list(back.graph.tensors.items()) == list(schedule.graph.tensors.items())
    assert [(n.op, n.label, n.args) for n in back.graph.nodes] == [
        (n.op, n.label, n.args) for n in schedule.graph.nodes
    ]
    for one, other in zip(back.lists, schedule.lists, strict=True):
        assert one.dtype == np.int32 and np.array_equal(one, other)
    verify(back)
    again = file.with_name("again.json")
    save_schedule(back, again)
    assert again.read_bytes() == file.read_bytes()


def test_a_worker_without_records_comes_back(schedule: Schedule, tmp_path: Path) -> None:
    idle = Schedule(
        schedule.graph, (*schedule.lists, np.zeros((0, 32), np.int32)), schedule.counters
    )
    save_schedule(idle, tmp_path / "idle.json")
    assert load_schedule(tmp_path / "idle.json", OPS).lists[-1].shape == (0, 32)


def test_one_record_stands_on_one_line(schedule: Schedule, file: Path) -> None:
    lines = file.read_text().splitlines()
    records = [line for line in lines if line.startswith("  [")]
    assert len(records) == sum(len(records) for records in schedule.lists)


def _changed(change: Callable[[Any], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    return edit


def _put(value: object, *place: Any) -> Callable[[str], str]:
    def change(content: Any) -> None:
        for key in place[:-1]:
            content = content[key]
        content[place[-1]] = value

    return _changed(change)


BAD: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda text: "", "line 1"),
    "cut short": (lambda text: text[:1000], "not JSON at line"),
    "no object": (lambda text: "[]", "format is None"),
    "deep": (lambda text: "[" * 100_000, "is no schedule"),
    "NaN": (lambda text: text.replace('"counters": ', '"counters": NaN, "x": '), "NaN"),
    "key twice": (lambda text: text.replace('"ops":', '"counters": 1,\n"ops":'), "'counters'"),
    "version": (_put("mkport-schedule-0", "format"), "'mkport-schedule-0'"),
    "no lists": (_changed(lambda c: c.pop("lists")), "lacks the key 'lists'"),
    "lists no array": (_put({}, "lists"), "key 'lists', holds {}, not an array"),
    "no workers": (_put([], "lists"), "at least one worker"),
    "list no array": (_put(7, "lists", 1), "lists[1]"),
    "record no array": (_put(7, "lists", 1, 2), "record 2 of worker 1"),
    "31 words": (_changed(lambda c: c["lists"][2][3].pop()), "record 3 of worker 2 has 31 words"),
    "a float": (_put(1.5, "lists", 0, 0, 5), "word 5 (waits), is 1.5"),
    "a truth": (_put(True, "lists", 0, 0, 0), "word 0 (op), is True"),
    "a text": (_put("1", "lists", 0, 0, 31), "word 31 (args), is '1'"),
    "too large": (_put(2**31, "lists", 0, 0, 11), "word 11 (signal), is 2147483648"),
    "counters": (_put(-1, "counters"), "counters is -1"),
    "counters a text": (_put("9", "counters"), "key 'counters', holds '9', not an integer"),
    "unknown op": (_put("gemmm", "ops", 0), "names the op 'gemmm'"),
    "op twice": (_changed(lambda c: c["ops"].append(c["ops"][0])), "names an op twice"),
    "op missing": (_changed(lambda c: c["ops"].pop()), "ops lacks"),
    "node no object": (_put(3, "nodes", 2), "nodes[2] is not an object"),
    "node op": (_put("nothing", "nodes", 2, "op"), "nodes[2] names the op 'nothing'"),
    "node label": (_changed(lambda c: c["nodes"][2].pop("label")), "nodes[2] lacks the key"),
    "unknown argument": (_put(1, "nodes", 0, "args", "novel"), "'novel'"),
    "missing argument": (_changed(lambda c: c["nodes"][0]["args"].pop("k")), "'k'"),
    "int argument": (_put("8", "nodes", 0, "args", "k"), "argument 'k', is '8', not an int32"),
    "tensor argument": (_put("none", "nodes", 0, "args", "y"), "argument 'y', is 'none'"),
    "no tensor": (_put(None, "nodes", 0, "args", "y"), "argument 'y', is None"),
    "tensor of a wrong dtype": (_put("tokens", "nodes", 0, "args", "y"), "i32 tensor 'tokens'"),
    "dtype": (_put("f128", "tensors", 5, "dtype"), "has the dtype 'f128'"),
    "kind": (_put("odd", "tensors", 5, "kind"), "is of kind 'odd'"),
    "shape": (_put([0], "tensors", 5, "shape"), "has the shape [0]"),
    "shape a text": (_put(["8"], "tensors", 5, "shape"), "has the shape ['8']"),
    "logical": (_put([1, 1, 1, 1], "tensors", 5, "logical"), "4 logical dimensions"),
    "tensor twice": (
        _changed(lambda c: c["tensors"].append(c["tensors"][0])),
        "is in the graph already",
    ),
    "a counter too many": (
        _changed(lambda c: c.update(counters=1 + sum(map(len, c["lists"])))),
        "more than there are records",
    ),
    "counters without end": (_put(2**31 - 1, "counters"), "more than there are records"),
    "too many workers": (_put([[]] * 1025, "lists"), "1025 workers, more than 1024"),
    "no float32": (lambda text: text.replace('"eps": 1e-05', '"eps": 1e39'), "no float32 holds"),
    "infinite": (lambda text: text.replace('"eps": 1e-05', '"eps": 1e999'), "no float32 holds"),
    "a huge whole": (
        lambda text: text.replace('"eps": 1e-05', f'"eps": {10**400}'),
        "no float32 holds",
    ),
    "too many tiles of a node": (
        lambda text: re.sub(r'"splits": \d+', '"splits": 16000000', text, count=1),
        "tiles, not 0 to 1048576",
    ),
    "too many tiles": (_put([2**30, 64], "tensors", 5, "shape"), "tiles, not 0 to"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_file_is_refused_by_its_place(file: Path, name: str) -> None:
    edit, named = BAD[name]
    file.write_text(edit(file.read_text()))
    with pytest.raises(UserError) as refused:
        load_schedule(file, OPS)
    assert str(file) in str(refused.value)
    assert named in str(refused.value)
    assert not isinstance(refused.value, Refused)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json cannot be read: No such file"):
        load_schedule(tmp_path / "none.json", OPS)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not text"):
        load_schedule(tmp_path / "binary.json", OPS)


def test_nothing_is_half_written(schedule: Schedule, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot write"):
        save_schedule(schedule, tmp_path / "none" / "schedule.json")
    assert not list(tmp_path.iterdir())


def test_a_well_formed_edit_is_the_verifiers_to_refuse(file: Path) -> None:
    content = json.loads(file.read_text())
    for record in content["lists"][1]:
        record[3] = -1  # worker 1 waits for nothing any more
    file.write_text(json.dumps(content))
    edited = load_schedule(file, OPS)
    with pytest.raises(Refused):
        verify(edited)


JUNK = [None, True, -1, 0, 1, 7, 2**31, 2**70, 0.5, "", "x", "gemm", [], [1], {}, {"op": "gemm"}]


def test_whatever_stands_in_a_place_the_answer_is_a_refusal_or_a_schedule(file: Path) -> None:
    text = file.read_text()
    draw = random.Random(0)
    refused = 0
    for _ in range(200):
        content = json.loads(text)
        at: Any = content
        while True:
            key = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or not at[key] or draw.random() < 0.1:
                break
            at = at[key]
        at[key] = draw.choice(JUNK)
        file.write_text(json.dumps(content))
        try:
            verify(load_schedule(file, OPS))
        except UserError:
            refused += 1
    assert refused > 100
