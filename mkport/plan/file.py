"""A schedule as a JSON file that a person can read, edit and compare line by line.

One tensor, one node, one record a line. Reading checks the form only: whether an edited schedule is
safe to run is the verifier's question.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mkport.declare import Op
from mkport.errors import UserError
from mkport.files import write_text
from mkport.plan.read import Reader
from mkport.plan.schedule import Schedule

FORMAT = "mkport-schedule-1"


def save_schedule(schedule: Schedule, path: str | Path) -> None:
    """Writes a schedule, whole or not at all. Raises UserError when the file cannot be written."""
    write_text(Path(path), _text(schedule))


def load_schedule(path: str | Path, ops: Mapping[str, Op]) -> Schedule:
    """Reads what `save_schedule` wrote; `ops` holds the ops by name.

    Raises UserError naming the file, the place and the fix when the file is missing, is not JSON,
    or holds anything but a schedule of these ops.
    """
    return Reader(Path(path), ops).schedule(_parse(Path(path)))


def _text(schedule: Schedule) -> str:
    graph = schedule.graph
    tensors = (
        {
            "name": spec.name,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "kind": spec.kind,
            "logical": list(spec.logical),
        }
        for spec in graph.tensors.values()
    )
    nodes = ({"op": n.op.name, "label": n.label, "args": n.args} for n in graph.nodes)
    lists = (_array(records.tolist(), "  ") for records in schedule.lists)
    return (
        "{\n"
        f'"format": {json.dumps(FORMAT)},\n'
        f'"counters": {schedule.counters},\n'
        f'"ops": {json.dumps([op.name for op in graph.ops])},\n'
        f'"tensors": {_array(tensors)},\n'
        f'"nodes": {_array(nodes)},\n'
        f'"lists": {_lines(lists)}\n'
        "}\n"
    )


def _array(items: Iterable[Any], indent: str = "") -> str:
    return _lines((json.dumps(item) for item in items), indent)


def _lines(texts: Iterable[str], indent: str = "") -> str:
    """An array with one item a line."""
    joined = ",\n".join(indent + text for text in texts)
    return f"[\n{joined}\n]" if joined else "[]"


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"The schedule {path} cannot be read: {error.strerror or error}. Check the path, or "
            "write the file with `mkport compose --schedule FILE.json`."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text, so it is no schedule: {error}.") from error
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not JSON at line {error.lineno}, column {error.colno}: {error.msg}. Mend "
            "that line, or write the file again with `mkport compose --schedule`."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no schedule: {error}. Mend it or write it again.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise UserError(
            f"{path} is no schedule that this version reads: its format is {found!r}, not "
            f"{FORMAT!r}. Write it again with `mkport compose --schedule`."
        )
    assert isinstance(content, dict)
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return made


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number that a schedule may hold")
