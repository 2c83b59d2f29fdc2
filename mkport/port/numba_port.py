"""Ports a kernel of a Python file: a `@cuda.jit` one goes through its CUDA C++ text to the CUDA
machine, an `@njit` one to the CPU machine."""

import ast
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkport.errors import UserError
from mkport.port.arguments import read_arguments
from mkport.port.finding import Finding
from mkport.port.kernel import Kernel, Param
from mkport.port.numba_cpu import port_njit, same_bits
from mkport.port.numba_cuda import Translated, translate
from mkport.port.numba_file import NumbaRefused, read_module
from mkport.port.numba_tiles import PortedNjit
from mkport.port.port import port_file
from mkport.port.report import Report, Step
from mkport.testing.parts import load_file

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
        ported = port_njit(path, kernel, types)
    except NumbaRefused as refused:
        return _refused(path, kernel or "", refused)
    return _njit(path, ported, arguments, out, run)


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
    finding = Finding(
        "MK107", refused.line, 1, f"Numba: {str(refused).split(': ', 1)[1]}",
        "A translation that computes something else would be worse than none.",
        "Write it in the part of Python that docs/decisions/numba_port.md describes.",
        "refusal", path.name,
    )  # fmt: skip
    step = Step(1, "scan", "refused", [str(finding)])
    return Report(path.name, kernel, "refused", (finding,), (step,), {}, None)


def _njit(
    path: Path, ported: PortedNjit, arguments: Given | None, out: Path | None, run: bool
) -> Report:
    steps = [
        Step(1, "scan", "ok", [f"{ported.name}: its outermost loop becomes the op's tiles"]),
        Step(8, "emit", "ok", [f"{', '.join(ported.files)}: an op of the CPU machine"]),
    ]
    report = Report(path.name, ported.name, "ported", (), (), ported.files, None)
    compared = Step(11, "run check", "skipped", ["no --arg given: bits were not compared"])
    result = Step(12, "result", "ok", ["ported"])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ported.write(place)
        if run and arguments is not None:
            given = arguments
            if not isinstance(arguments, Mapping):
                op = load_file(place / ported.name / "op.py").OP
                params = tuple(
                    Param(a.name, a.kind, a.kind, a.dtype)
                    for a in op.args
                    if a.name not in ported.sizes
                )
                kernel = Kernel(None, ported.name, params, (), (), None, 0)  # type: ignore[arg-type]
                given = read_arguments(list(arguments), kernel)
            assert isinstance(given, Mapping)
            if not same_bits(ported, given, place):
                finding = Finding(
                    "MK180", 0, 0, "The function and its port left different bits.",
                    "A port has the bits of what it was made from.", "Report it.",
                    "refusal", path.name,
                )  # fmt: skip
                compared = Step(11, "run check", "refused", [str(finding)])
                result = Step(12, "result", "refused", ["refused: MK180"])
                steps += [compared, result]
                return replace(report, verdict="refused", findings=(finding,), steps=tuple(steps))
            compared = Step(11, "run check", "ok", ["the function and its port: the same bits"])
            report = replace(report, ran=True)
    if not report.ran:
        result.lines[0] += ", but not run here"
    if out is not None:
        target = ported.write(out)
        result.lines.append(f"written to {target}")
        report = replace(report, op=load_file(target / "op.py").OP)
    return replace(report, steps=(*steps, compared, result))
