"""What messages tell people to type is what works where they are."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mkport import doctor, extras
from mkport.errors import UserError
from mkport.machines.cuda import gpu as cuda

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADVICE = re.compile(r"""install\(["'](\w+)["']\)""")


def test_every_extra_that_a_message_names_exists() -> None:
    known = PROJECT["optional-dependencies"]
    named = set()
    for folder in ("mkport", "engine"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(part.is_symlink() for part in path.parents):
                text = path.read_text()
                named |= set(ADVICE.findall(text))
                typed = re.findall(r"pip install (?:-e )?['\"]mkport\[(\w+)", text)
                assert not typed or path.name in ("check.py", "extras.py"), f"{path}: use install()"
                named |= set(typed)
    assert {"serve", "port", "plot", "oracle"} <= named <= set(known)


def test_where_it_is_installed_its_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: object())
    assert extras.install("serve").endswith(" install 'mkport[serve]'")


def test_where_it_is_not_the_folder_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    monkeypatch.chdir(ROOT)
    assert extras.install("serve").endswith(" install -e '.[serve]'")
    monkeypatch.chdir(tmp_path)
    assert shlex.split(extras.install("port"))[-1] == f"{ROOT}[port]"
    monkeypatch.setattr(extras, "checkout", lambda: None)
    assert extras.install("port").endswith(" install 'mkport[port]'")


def test_a_tool_is_called_so_that_this_environment_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, other = tmp_path / ".venv/bin", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir(parents=True)
        (folder / "pip").write_text("#!/bin/sh\n")
        (folder / "pip").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(here))
    assert extras.tool("pip") == "pip"
    monkeypatch.setenv("PATH", str(other))
    assert extras.tool("pip") == ".venv/bin/pip"
    assert extras.tool("mkport") == ".venv/bin/python -m mkport"


def test_doctor_has_a_row_for_every_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.EXTRAS.keys() == PROJECT["optional-dependencies"].keys()
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    rows = {row.name: row for row in doctor._extras()}
    for extra in doctor.EXTRAS:
        assert rows[f"extra {extra}"].status == "optional"
        assert f"[{extra}]" in rows[f"extra {extra}"].fix
    assert "torch" in rows["extra learn"].why, "what the extras within an extra ask for counts too"


def test_one_of_the_two_cuda_extras_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1" if name != "cupy-cuda12x" else None)
    rows = {row.name: row.status for row in doctor._extras()}
    assert rows["extra cuda13"] == "ok" and "extra cuda12" not in rows


@pytest.mark.parametrize("driver", [False, True])
def test_a_missing_gpu_is_told_before_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(cuda, "_driver_is_here", lambda: driver)
    cuda.gpu.cache_clear()
    with pytest.raises(UserError, match="CuPy") as refused:
        cuda.gpu()
    assert str(refused.value).startswith("No GPU was found") is not driver


def test_a_new_op_names_commands_that_exist(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkport", "new", "mine"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    for line in done.stdout.split("\n\n")[1].splitlines():
        assert Path(tmp_path, shlex.split(line)[0]).exists(), line
