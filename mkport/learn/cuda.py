"""Runs a learner's CUDA kernel on the CPU, and tells what a GPU would have answered with garbage:
races, missing barriers, reads of what nobody wrote, accesses out of bounds."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from mkport.learn.report import Report, Skipped, Wrong
from mkport.machines.host.build import compiler
from mkport.port.original import Launch, NotBuilt, run_original


def run_cuda(
    file: Path, report: Report, kernel: str, grid: int, block: int, **args: Any
) -> dict[str, np.ndarray]:
    """The arrays among `args` after a launch, by name; the arguments are in the kernel's order.

    An array that is full of NaN counts as memory that nobody has filled. Raises Skipped where there
    is no C++ compiler, and Wrong, with the lines, for whatever was found.
    """
    if compiler() is None:
        raise Skipped("There is no C++ compiler here: install g++, or set CXX to one.")
    source = file.read_text(encoding="utf-8")
    if re.search(rf"\b{kernel}\s*\(", source) is None:
        report.say(f"NO  your file has no kernel `{kernel}` any more, which the check launches")
        raise Wrong
    launch = Launch(kernel, (grid, 1, 1), (block, 1, 1), tuple(args.values()), names=tuple(args))
    arrays = {name: value for name, value in args.items() if isinstance(value, np.ndarray)}
    empty = [a for a in arrays.values() if a.dtype.kind == "f" and np.isnan(a).all()]
    try:
        ran = run_original(source, [launch], path=file, unfilled=empty)
    except NotBuilt as error:
        report.say(f"NO  it does not compile, line {error.line}", f"    {error}")
        raise Wrong from error
    fatal = [finding for finding in ran.findings if finding.fatal]
    if fatal or not ran.equal:
        report.say("NO  it is not well defined", *(f"    {finding}" for finding in fatal[:4]))
        raise Wrong
    return dict(zip(arrays, ran.outputs, strict=True))
