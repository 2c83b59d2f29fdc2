"""What the program of an original kernel is told, and what its answers mean. See original_run.h."""

import ctypes
import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.port.original_build import SOURCE, Built

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One launch: `<<<grid, block, shared>>>` and the arguments.

    An argument is an array (a pointer to it; an array that occurs twice is one buffer), a NumPy or
    Python scalar (a Python int is an int32, a float a float32), bytes (a struct by value), or None
    (a null pointer). `kernel` is a name, or an instance such as "softmax<float, 128>". `names` are
    the parameters', for messages.
    """

    kernel: str
    grid: Size
    block: Size
    args: tuple[Any, ...]
    shared: int = 0  # bytes of dynamic shared memory
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something that the original did.

    `line` is a line of the file, 0 where it is unknown, and `other` the line of the access that it
    collides with. `fatal`: the kernel is not well defined.
    """

    kind: str
    line: int
    text: str
    fatal: bool
    other: int = 0

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.kind}: {self.text}"


def buffers_of(launches: Sequence[Launch]) -> dict[int, tuple[str, np.ndarray]]:
    """Every distinct array of the launches by its id, in order, with the name of its argument."""
    found: dict[int, tuple[str, np.ndarray]] = {}
    for launch in launches:
        for place, arg in enumerate(launch.args):
            if isinstance(arg, np.ndarray):
                name = launch.names[place] if place < len(launch.names) else f"argument {place}"
                found.setdefault(id(arg), (name, arg))
    return found


def job_text(
    launches: Sequence[Launch], built: Built, unfilled: Sequence[np.ndarray],
    seeds: int, seed: int, limit_s: float,
) -> str:  # fmt: skip
    """The job file. The arrays in `unfilled`, in any shape, are among the launches'. Raises
    UserError for arrays that no kernel can take."""
    buffers = buffers_of(launches)
    empty = {id(array) for array in unfilled}
    lines = [f"runs {seeds} seed {seed} limit {max(int(limit_s), 1)}"]
    for key, (name, array) in buffers.items():
        if not array.flags.c_contiguous:
            raise UserError(f"The array for {name} is not contiguous; pass a contiguous copy.")
        shift = {1: 0, 2: 1}.get(array.itemsize, 2)
        lines.append(f"buffer {array.nbytes} {int(key not in empty)} {shift} {name}")
    lines += [f"shared {a.offset} {a.nbytes} {a.name}" for a in built.shared]
    places = {key: place for place, key in enumerate(buffers)}
    for number, launch in enumerate(launches):
        _check(launch)
        sizes = " ".join(str(n) for n in (*launch.grid, *launch.block))
        lines.append(f"launch {number} {sizes} {launch.shared} {len(launch.args)}")
        for arg in launch.args:
            if isinstance(arg, np.ndarray):
                lines.append(f"buffer {places[id(arg)]}")
            else:
                lines.append(f"value {_value(arg).hex()}")
    return "\n".join(lines) + "\n"


def _check(launch: Launch) -> None:
    threads = int(np.prod(launch.block))
    if not 1 <= threads <= 1024 or min(*launch.grid, *launch.block) < 1:
        raise UserError(
            f"{launch.kernel} cannot be launched with grid {launch.grid} and block "
            f"{launch.block}: a block has 1 to 1024 threads, and every size is positive."
        )
    if not 0 <= launch.shared <= 232448:
        raise UserError(
            f"{launch.kernel} is launched with {launch.shared} bytes of dynamic shared memory; a "
            "block has at most 232448."
        )


def _value(arg: Any) -> bytes:
    if isinstance(arg, bytes):
        return arg
    if isinstance(arg, np.generic):
        return arg.tobytes()
    if arg is None:
        return bytes(8)
    if isinstance(arg, bool):
        return bytes([arg])
    if isinstance(arg, int):
        return bytes(ctypes.c_int32(arg))
    if isinstance(arg, float):
        return bytes(ctypes.c_float(arg))
    raise UserError(f"A kernel's argument cannot be a {type(arg).__name__}.")


def refused_arguments(answer: str, launches: Sequence[Launch]) -> UserError:
    """What the program says when the arguments do not fit its kernels."""
    word = answer.split()
    kernel = launches[int(word[1])].kernel
    if word[0] == "arguments":
        return UserError(f"{kernel} takes {word[3]} arguments, and {word[2]} are given.")
    return UserError(
        f"Argument {word[2]} of {kernel} has {word[4]} bytes, and {word[3]} are given: pass a "
        "NumPy scalar of its type, such as np.int64(5)."
    )


def read_findings(
    text: str, program: Path, aside: Collection[int] = ()
) -> tuple[list[Finding], list[int]]:
    """The findings of all runs, each once, and how each run's process ended: its exit status
    [runs]. Lines in `aside` are nobody's to mend: a finding there is told of who called."""
    rows: dict[tuple[str, ...], tuple[str, ...]] = {}
    states: list[int] = []
    for line in text.splitlines():
        word = tuple(line.split("\t", 5))
        if word[0] == "run":
            states.append(int(word[1]))
        elif len(word) == 6:
            rows.setdefault(word[:4], word)
    places = {int(p) for row in rows.values() for p in row[1:3] if int(p)}
    lines = _lines(program, sorted(places), aside)
    found: dict[tuple[str, int, int], Finding] = {}
    for kind, pc, other, line, fatal, said in rows.values():
        here = int(line) or lines.get(int(pc), 0) or lines.get(int(other), 0)
        there = lines.get(int(other), 0) if kind == "race" else 0
        if there:
            said = said.replace(", and nothing", f" in line {there}, and nothing")
        first, second = (here, there) if kind != "race" else (min(here, there), max(here, there))
        found.setdefault((kind, first, second), Finding(kind, here, said, fatal == "1", there))
    return list(found.values()), states


def _lines(program: Path, places: Sequence[int], aside: Collection[int]) -> dict[int, int]:
    """The line of the user's file that each return address came from: of the innermost call that
    does not lie in `aside`, if there is one."""
    if not places:
        return {}
    asked = "\n".join(hex(place - 1) for place in places)
    command = ["addr2line", "-a", "-i", "-e", str(program)]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True)
    except FileNotFoundError:
        return {}
    lines: dict[int, int] = {}
    here = 0
    for text in done.stdout.splitlines():
        if text.startswith("0x"):
            here = int(text, 16) + 1
        elif found := re.search(rf"{re.escape(SOURCE)}:(\d+)", text):
            if lines.get(here, 0) in aside or here not in lines:
                lines[here] = int(found[1])
    return lines
