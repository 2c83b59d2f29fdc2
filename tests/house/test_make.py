"""The Makefile: what its targets would run, without running it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def _make(*args: str) -> str:
    command = ["make", "--no-print-directory", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_lists_every_target_and_variable() -> None:
    told = _make("help")
    (targets,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    for target in targets.split():
        assert f"  make {target} " in told
        assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE)
    for variable in re.findall(r"^(\w+) \?=|^export (\w+)$", MAKEFILE, re.MULTILINE):
        assert f"  {''.join(variable)}=... " in told


def test_an_exercise_that_is_not_solved_is_no_failed_target(tmp_path: Path) -> None:
    (tmp_path / ".base").touch()
    (tmp_path / "bin").mkdir()
    told = tmp_path / "bin" / "mkport"
    for code, ends in ((0, 0), (1, 0), (2, 2)):
        told.write_text(f"#!/bin/sh\nexit {code}\n")
        told.chmod(0o755)
        command = ["make", f"VENV={tmp_path}", "--old-file", str(tmp_path / ".base"), "learn"]
        assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == ends


def test_torch_may_come_from_another_index_and_by_default_does_not() -> None:
    run = ("--dry-run", "--always-make", "run", "test")
    installs = [line for line in _make(*run).splitlines() if "pip install" in line]
    assert installs and not any("index" in line for line in installs)
    named = [line for line in _make(*run, f"TORCH_INDEX={CPU_INDEX}").splitlines() if "pip" in line]
    assert len(named) == len(installs)
    assert all(f"--extra-index-url {CPU_INDEX}" in line for line in named)
