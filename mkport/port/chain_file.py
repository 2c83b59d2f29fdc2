"""The text of a chain for `mkport compose`, from launches in host code: with blanks where the host
computes something, or filled in where the values are known."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.port.decided import argument_names
from mkport.port.geometry import size_texts
from mkport.port.several import WRITES, HostLaunch

AXES = ("grid_x", "grid_y", "grid_z")


@dataclass(frozen=True)
class Filled:
    """What is known of a launch: the op that it became, its numbers and its grid."""

    op: str
    numbers: Mapping[str, Any]  # by parameter
    grid: tuple[int, ...]  # an axis of the op each


def labels(launches: Sequence[HostLaunch]) -> list[str]:
    """A name for each launch: its kernel's, with a number from the second on."""
    seen: list[str] = []
    found = []
    for launch in launches:
        seen.append(launch.kernel)
        count = seen.count(launch.kernel)
        found.append(launch.kernel if count == 1 else f"{launch.kernel} {count}")
    return found


def chain_text(
    path: Path,
    launches: Sequence[HostLaunch],
    folder: str = "ops",
    filled: Sequence[Filled] = (),
    tensors: Mapping[str, np.ndarray] | None = None,
    oracle: str = "",
    kept: Collection[str] = (),
) -> str:
    """A TOML file for `mkport compose`, a node a launch.

    Host variables become tensors, so that what one kernel writes and another reads is one tensor.
    One that is written, and read before that, is state: it holds something before a step.
    So are those in `kept`, of which a part stays as it was.
    `tensors` are their contents [any], `oracle` the file of the nodes' oracles. Without `filled`
    and `tensors` sizes and numbers are to be filled in.
    """
    types: dict[str, str] = {}
    values: set[str] = set()
    for launch in launches:
        for param in launch.params:
            if param.kind == "tensor":
                types.setdefault(launch.tensor(param), param.dtype)
            if param.boxed:
                values.add(launch.tensor(param))
    what = f"# From the launches of {path.name}"
    head = f"{what}." if filled else f"{what}: fill in what stands between < and >."
    lines = [head, "", f'title = "{path.stem}"', f'ops = ["{folder}"]']
    lines += [f'oracle = "{oracle}"'] if oracle else []
    lines += ["", "[tensors]"]
    state = held(launches) | set(kept)
    for name, dtype in types.items():
        about = _tensor(name, dtype, tensors, name in state, name in values)
        lines.append(f"{name} = {{ {about} }}")
    for number, (launch, label) in enumerate(zip(launches, labels(launches), strict=True)):
        known = filled[number] if filled else None
        lines += ["", "[[nodes]]", f'op = "{known.op if known else launch.kernel}"']
        lines += [f'label = "{label}"', f"args = {{ {', '.join(_args(launch, known))} }}"]
    return "\n".join(lines) + "\n"


def held(launches: Sequence[HostLaunch]) -> set[str]:
    """The tensors that hold something before a step: written, and read before that."""
    written, state = set[str](), set[str]()
    for launch in launches:
        state |= launch.touched("read", "update").keys() - written
        written |= launch.touched(*WRITES).keys()
    return state & written


def _number(text: str) -> str:
    """A number of C++ as TOML writes it, which has no `2.` and no `.5`; empty for what is none."""
    found = re.fullmatch(r"(-?\d+)|-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text.rstrip("fFuUlL"), re.I)
    if found is None:
        return ""
    return str(int(found[1])) if found[1] else repr(float(found[0]))


def _tensor(
    name: str, dtype: str, tensors: Mapping[str, np.ndarray] | None, state: bool, value: bool
) -> str:
    parts = [f'dtype = "{dtype}"']
    array = None if tensors is None else tensors[name]
    parts.append(f"shape = {list(array.shape) if array is not None else '[<size>]'}")
    if state:
        parts.append('kind = "state"')
    if array is not None and value:
        parts.append(f"values = {array.tolist()}")
    elif array is not None and array.dtype.kind in "iu" and dtype != "bf16" and array.size:
        parts.append(f"fill = [{int(array.min())}, {int(array.max()) + 1}]")
    return ", ".join(parts)


def _args(launch: HostLaunch, known: Filled | None) -> list[str]:
    names = argument_names(launch)
    args = []
    for param in launch.params:
        text = launch.given[param.name]
        if param.kind == "tensor":
            args.append(f'{names[param.name]} = "{launch.tensor(param)}"')
        elif known is not None:
            args.append(f"{names[param.name]} = {known.numbers[param.name]}")
        else:
            args.append(f"{names[param.name]} = {_number(text) or f'<{text}>'}")
    if known is not None:
        return [*args, *(f"{axis} = {n}" for axis, n in zip(AXES, known.grid, strict=False))]
    sizes = size_texts(launch.around, launch.config[0]) if launch.config else ["blocks"]
    return [*args, *(
        f"{axis} = {_number(text) or f'<{text}>'}" for axis, text in zip(AXES, sizes, strict=False)
    )]  # fmt: skip
