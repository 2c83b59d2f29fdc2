"""Every recipe is a notebook as well: prose stays prose, one cell installs, and all of it runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext")

from mkport.extras import MODEL
from mkport.learn.catalogue import recipes
from mkport.learn.notebooks import make, notebook

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


@pytest.mark.slow
def test_they_run(tmp_path: Path) -> None:
    files = [file.name for file in make(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake"]
    command += ["--nbmake-timeout=600", "--rootdir", str(tmp_path), *files]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
