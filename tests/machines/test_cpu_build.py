"""What stands damaged in the cache of compiled code is made again, once and in silence."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from numba.core.errors import NumbaError

from mkport.cache import cache_dir, keep_compiled
from mkport.compose import Program
from mkport.machines.cpu.build import build

SOURCE = """# {}
from numba import njit


@njit("int64(int64)", cache=True)
def run_worker(x):
    return x + {}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MKPORT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def program(title: str, add: str = "1") -> Program:
    return Program((), "f32", "f32", SOURCE.format(title, add))


def forget_module(made: Program) -> None:
    """As a new process would find it."""
    sys.modules.pop(f"mkport_composed_{made.digest}", None)


def truncate(folder: Path, ending: str, keep: int) -> None:
    files = list(folder.rglob(f"*.{ending}"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:keep])


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("keep", [0, 40, 300])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_compiled_code_cut_short(
    ending: str, keep: int, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if elsewhere:
        monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "numba"))
    made = program(f"{ending} {keep} {elsewhere}")
    assert build(made).run_worker(1) == 2
    truncate(tmp_path, ending, keep)
    for _ in range(2):
        forget_module(made)
        assert build(made).run_worker(1) == 2


def test_bytes_or_a_folder_in_place_of_the_file() -> None:
    made = program("in place")
    path = build(made).path
    for damage in (lambda: path.write_bytes(b"\xff\xfe\x00"), path.mkdir):
        path.unlink()
        damage()
        forget_module(made)
        assert build(made).run_worker(1) == 2
        assert path.read_text() == made.source


def test_a_program_that_does_not_compile_says_so() -> None:
    with pytest.raises(NumbaError):
        build(program("wrong", "no_such_name"))


def test_where_numba_keeps_what_it_compiles(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    keep_compiled(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ  # the package's own folder can be written to
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    keep_compiled(tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == str(cache_dir("numba").resolve())
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    keep_compiled(tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == "/elsewhere"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    shutil.rmtree(cache)
    cache.touch()
    keep_compiled(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ
