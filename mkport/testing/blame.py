"""Mistakes in a user's own files, said with their file and line; mkport's own stay tracebacks."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from mkport.declare import Op
from mkport.errors import UserError


@contextmanager
def blamed(op: Op, what: str) -> Iterator[None]:
    """Raises UserError, with file and line, in place of an exception that a file of the op's folder
    raised.

    `what` says what was being asked of it. An exception from elsewhere goes through.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = place_in(error, op.folder)
        if place is None:
            raise
        raise UserError(
            f"Op {op.name}: {what} failed at {place}: {type(error).__name__}: {_short(error)}."
        ) from error


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 400 else text[:397] + "..."


def place_in(error: BaseException, folder: Path) -> str | None:
    """ "FILE:LINE" of the innermost frame of an exception within a folder."""
    folder = folder.resolve()
    if isinstance(error, SyntaxError) and error.filename:
        if Path(error.filename).resolve().is_relative_to(folder):
            return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve().is_relative_to(folder):
            return f"{frame.filename}:{frame.lineno}"
    return None


def part_of(module: ModuleType, name: str, op: Op) -> Any:
    """What a file of an op must define. Raises UserError naming the file where it does not."""
    if not hasattr(module, name):
        raise UserError(
            f"Op {op.name}: {module.__file__} defines no {name}; see what `mkport new` writes."
        )
    return getattr(module, name)


def truth_of(op: Op, function: Any, given: Any) -> Mapping[str, Any]:
    """An oracle's outputs: tensors by name. Raises UserError for anything else."""
    import torch

    with blamed(op, "the oracle"):
        outputs = function(given)
    code = function.__code__
    place = f"{code.co_filename}:{code.co_firstlineno}"
    if not isinstance(outputs, Mapping):
        raise UserError(
            f"Op {op.name}: the oracle at {place} returns a {type(outputs).__name__}; it must "
            "return a dict of tensors by the names of the outputs."
        )
    for name, value in outputs.items():
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"Op {op.name}: the oracle at {place} returns a {type(value).__name__} for "
                f"{name!r}; it must be a tensor."
            )
    return outputs
