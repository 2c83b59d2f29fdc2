"""Finds an op's files (oracle, standalone, ladder) beside its declaration; loads them by path."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mkport.declare import Op
from mkport.errors import UserError

NO_TORCH = "Checks compare with PyTorch, which is not installed here: pip install 'mkport[oracle]'."


def load_file(path: Path) -> ModuleType:
    """Imports a Python file by its path, once."""
    name = (
        f"mkport_part_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    )
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{path} is not there or not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_part(op: Op, part: str) -> ModuleType:
    """The op's `part`.py ("oracle", "standalone"). Raises UserError naming the missing file."""
    path = op.folder / f"{part}.py"
    if not path.is_file():
        raise UserError(f"Op {op.name} has no {part}: {path} is missing; write it or leave it out.")
    try:
        return load_file(path)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError(NO_TORCH) from error


def kernel_of(module: ModuleType, op: Op) -> Any:
    """The function that a standalone file or rung defines: it has the op's name."""
    kernel = getattr(module, op.name, None)
    if kernel is None:
        raise UserError(f"{module.__file__} defines no function {op.name}.")
    return kernel
