"""Turns a composed file into callable code, kept on disk so that a second start is quick."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numba
from numba.core.errors import NumbaError

from mkport.cache import cache_dir
from mkport.compose import Program


@dataclass(frozen=True)
class Built:
    """A program's compiled worker and the file it came from."""

    path: Path
    run_worker: Callable[..., bool]


def build(program: Program) -> Built:
    """Writes the program into the cache and compiles it, or loads what was compiled before.

    What stands in the cache and is damaged is made again.
    """
    name = f"mkport_composed_{program.digest}"
    path = cache_dir("composed", program.digest) / "megakernel.py"
    text = program.source.encode()
    if not path.is_file() or path.read_bytes() != text:
        _write(path, text)
    module = sys.modules.get(name)
    if module is None:
        try:
            module = _load(name, path)
        except Exception as error:
            if isinstance(error, NumbaError) or not _forget(path):
                raise  # the program itself is at fault, or the disk
            module = _load(name, path)
    return Built(path, module.run_worker)


def _write(path: Path, text: bytes) -> None:
    """Puts a file in its place, whole, whatever stood there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, suffix=".tmp", delete=False) as new:
        new.write(text)
    os.replace(new.name, path)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _forget(path: Path) -> bool:
    """Removes what was compiled of a file; false when there was nothing.

    Numba keeps it beside the file, or in a folder of its own named after the file's.
    """
    folders = [path.parent / "__pycache__"]
    if numba.config.CACHE_DIR:
        folders += Path(numba.config.CACHE_DIR).glob(f"{path.parent.name}_*")
    found = [folder for folder in folders if folder.is_dir()]
    for folder in found:
        shutil.rmtree(folder)
    return bool(found)
