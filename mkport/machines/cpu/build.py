"""Turns a composed file into callable code, kept on disk so that a second start is quick."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mkport.cache import cache_dir
from mkport.compose import Program


@dataclass(frozen=True)
class Built:
    """A program's compiled worker and the file it came from."""

    path: Path
    run_worker: Callable[..., bool]


def build(program: Program) -> Built:
    """Writes the program into the cache and compiles it, or loads what was compiled before."""
    name = f"mkport_composed_{program.digest}"
    path = cache_dir("composed", program.digest) / "megakernel.py"
    if not path.is_file() or path.read_text() != program.source:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as new:
            new.write(program.source)
        os.replace(new.name, path)
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return Built(path, module.run_worker)
