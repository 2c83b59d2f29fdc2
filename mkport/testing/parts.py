"""Finds an op's files (oracle, standalone, ladder) beside its declaration, and imports them."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numba

import mkport.kernels
from mkport.cache import cache_dir
from mkport.declare import Op
from mkport.errors import UserError
from mkport.extras import install
from mkport.testing.blame import blamed

NO_TORCH = f"Checks compare with PyTorch, which is not installed here: {install('oracle')}."
LIBRARY = Path(mkport.kernels.__file__).resolve().parent


def load_file(path: Path) -> ModuleType:
    """Imports a Python file by its path, once.

    A file of the installed kernels is imported under its own name, `mkport.kernels.gemm.op`; any
    other under a name made from its path. Raises UserError when there is no such file.
    """
    path = path.resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"There is no Python file {path}; check the path, or write the file.")
    if path.is_relative_to(LIBRARY):
        inside = path.relative_to(LIBRARY).with_suffix("")
        return importlib.import_module(".".join([mkport.kernels.__name__, *inside.parts]))
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"mkport_part_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _kept_in(cache_dir("parts", digest)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Functions declared with `cache=True` meanwhile are kept on disk in this folder.

    Numba keeps compiled code beside the source and writes the module's name into it. The names
    made up here would break whoever imports the file under its own name, or moves it.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def is_port(op: Op) -> bool:
    """Whether the op's folder is what `mkport port` wrote, and has no oracle: the original is its
    standalone form."""
    return (op.folder / "port.json").is_file() and not (op.folder / "oracle.py").is_file()


def load_part(op: Op, part: str) -> ModuleType:
    """The op's `part`.py ("oracle", "standalone"). Raises UserError naming the missing file."""
    path = op.folder / f"{part}.py"
    if not path.is_file():
        raise UserError(f"Op {op.name} has no {part}: {path} is missing; write it or leave it out.")
    try:
        with blamed(op, f"importing {part}.py"):
            return load_file(path)
    except UserError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == "torch":
            raise UserError(NO_TORCH) from cause
        raise


def kernel_of(module: ModuleType, op: Op) -> Any:
    """The function that a standalone file or rung defines: it has the op's name. Raises UserError
    when there is none."""
    kernel = getattr(module, op.name, None)
    if kernel is None:
        raise UserError(
            f"{module.__file__} defines no function {op.name}; the kernel is called as its op is."
        )
    return kernel
