"""Rules that hold for every source file: no fast arithmetic, every module says what it holds."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mkport.doctor import CORE_PACKAGES
from mkport.extras import MODEL

ROOT = Path(__file__).parents[2]
SOURCE_SUFFIXES = {".py", ".cu", ".cuh", ".h"}
FAST_ARITHMETIC = re.compile(r"fastmath|fast[-_]math|-Ofast|use_fast")


def _tracked() -> list[Path]:
    """Every file that git knows or would add, as it is in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def test_no_fast_arithmetic_anywhere_in_the_library() -> None:
    guilty = [
        path.relative_to(ROOT).as_posix()
        for path in _tracked()
        if path.suffix in SOURCE_SUFFIXES
        and path.relative_to(ROOT).parts[0] in {"mkport", "kernels", "engine"}
        and FAST_ARITHMETIC.search(path.read_text())
    ]
    assert not guilty, f"arithmetic order is promised, so none of these may relax it: {guilty}"


def test_every_module_says_what_it_holds() -> None:
    silent = []
    for path in _tracked():
        if path.suffix == ".py" and (source := path.read_text().strip()):
            if not ast.get_docstring(ast.parse(source)):
                silent.append(path.relative_to(ROOT).as_posix())
    assert not silent


def test_no_unfinished_places() -> None:
    mark = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in _tracked()
        if path.suffix in SOURCE_SUFFIXES and mark.search(path.read_text())
    ]
    assert not found


def test_no_large_file_is_committed() -> None:
    large = [path.name for path in _tracked() if path.stat().st_size > 2**20]
    assert not large, f"generate or install these instead: {large}"


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def test_doctor_looks_for_what_the_package_requires() -> None:
    required = {_name(line) for line in _project()["dependencies"]}
    assert set(CORE_PACKAGES) | {"rich", "typer"} == required
    assert any(line == MODEL for line in _project()["optional-dependencies"]["demo"])


@pytest.mark.parametrize("extra", ["demo", "plot", "oracle", "bench", "dev", "docs"])
def test_what_ci_installs_is_pinned(extra: str) -> None:
    pinned = {
        _name(line).lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = [*_project()["dependencies"], *_project()["optional-dependencies"][extra]]
    assert {_name(line).lower().replace("_", "-") for line in wanted} <= pinned
