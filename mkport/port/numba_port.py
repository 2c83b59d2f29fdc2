"""Ports a kernel of a Python file: a `@cuda.jit` one goes through its CUDA C++ text to the CUDA
machine, an `@njit` one to the CPU machine."""

import ast
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mkport.errors import UserError
from mkport.port.finding import Finding
from mkport.port.numba_cuda import Translated, translate
from mkport.port.numba_file import NumbaRefused, read_module
from mkport.port.numba_njit import FIX, NjitReport
from mkport.port.port import port_file
from mkport.port.report import Report, Steps

Given = Mapping[str, Any] | Sequence[str]
SHAPE = re.compile(r"\s*(\w+)\s*=\s*\w+\[([\d,\s]*)\]")


def port_python(
    path: Path,
    kernel: str | None = None,
    types: str | None = None,
    *,
    arguments: Given | None = None,
    out: Path | None = None,
    run: bool = True,
    **options: Any,
) -> Report:
    """Ports a `@cuda.jit` kernel as `port_file` does the CUDA kernel that it is translated to, and
    an `@njit` function to the CPU machine.

    `types` are the Python function's argument types and `arguments` its arguments, by name or as
    texts ("A=f32[40,40]"): arrays bring the sizes that the port takes. Lines in the report are the
    Python file's. What has no exact counterpart is a refusal (MK107). Raises UserError for wrong
    use.
    """
    path = Path(path)
    try:
        if _is_cuda(path, kernel):
            made = translate(path, kernel, types)
            return _cuda(path, made, arguments, out=out, run=run, **options)
    except NumbaRefused as refused:
        return _refused(path, kernel or "", refused)
    for option, value in options.items():
        idle = value is None or option not in ("grid", "block", "name", "immutable")
        if not idle and value != []:
            raise UserError(
                f"--{option} is for CUDA kernels, and what is ported of {path} is an @njit "
                "function. Leave it out."
            )
    if options.get("machine", "cpu") == "cuda":
        raise UserError(f"--machine cuda: an @njit function of {path} runs on the CPU machine.")
    return NjitReport(path, kernel, types, arguments, out, run).report()


def _is_cuda(path: Path, kernel: str | None) -> bool:
    functions = read_module(path).functions
    marks = {
        name: " ".join(ast.unparse(d) for d in f.decorator_list) for name, f in functions.items()
    }
    if kernel is not None:
        if kernel not in functions:
            there = ", ".join(name for name, mark in marks.items() if "jit" in mark) or "none"
            raise UserError(f"{path} has no function {kernel!r}; those of Numba: {there}.")
        return "cuda.jit" in marks[kernel]
    return any("cuda.jit" in mark for mark in marks.values())


def _cuda(path: Path, made: Translated, arguments: Given | None, **options: Any) -> Report:
    given: Given | None = arguments
    if isinstance(arguments, Mapping):
        given = made.arguments(arguments)
    elif arguments is not None:
        shapes = {m[1]: re.findall(r"\d+", m[2]) for m in map(SHAPE.match, arguments) if m}
        sizes = [
            f"{p.name}={shapes[p.array][p.axis]}"
            for p in made.parameters
            if p.array in shapes and p.axis < len(shapes[p.array])
        ]
        given = [*arguments, *sizes]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / path.name
        text.write_text(made.text, encoding="utf-8")
        return port_file(text, made.kernel, arguments=given, **options)


def _refused(path: Path, kernel: str, refused: NumbaRefused) -> Report:
    steps = Steps(path.name)
    finding = Finding(
        "MK107", refused.line, 1, f"Numba: {str(refused).split(': ', 1)[1]}",
        "A translation that computes something else would be worse than none.", FIX,
        "refusal", path.name,
    )  # fmt: skip
    steps.found(steps.begin("scan"), [finding])
    last = steps.begin("result")
    last.state = "refused"
    last.say(f"refused: {finding.code}")
    return Report(path.name, kernel, "refused", (finding,), tuple(steps.all), {}, None)
