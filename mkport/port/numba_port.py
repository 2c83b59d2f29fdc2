"""Ports a kernel of a Python file: a `@cuda.jit` one goes through its CUDA C++ text."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkport.port.numba_cuda import translate
from mkport.port.port import port_file
from mkport.port.report import Report


def port_python(
    path: Path,
    kernel: str | None = None,
    types: str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Ports a `@cuda.jit` kernel as `port_file` does the CUDA kernel that it is translated to.

    `types` are the Python kernel's argument types and `arguments` its arguments: arrays bring the
    sizes that the CUDA kernel takes. Lines in the report are the Python file's. Raises UserError
    for wrong use, and NumbaRefused, with a line, for what has no exact counterpart in CUDA C++.
    """
    made = translate(path, kernel, types)
    given = None if arguments is None else made.arguments(arguments)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / path.with_suffix(".cu").name
        text.write_text(made.text, encoding="utf-8")
        return port_file(text, made.kernel, arguments=given, **options)
