"""The notebook of the engine's how-to page runs, and says what it should."""

import importlib.util
import runpy
from pathlib import Path

import pytest

from mkport.engine.source import DEMO_PACKAGE
from tests.engine.checkpoints import one_program

PAGE = Path(__file__).parents[2] / "docs/how-to/engine"


def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec(DEMO_PACKAGE) is None:
        pytest.skip("the demo model is not installed")
    pytest.importorskip("llguidance")
    with one_program():
        runpy.run_path(str(PAGE / "notebook.py"))
    lines = capsys.readouterr().out.splitlines()
    assert "Paris" in lines[0] and "The capital of France is Paris." in lines
    assert any(line.startswith("{'age': ") for line in lines)
    assert "running=0, waiting=0" in lines[-1]
    assert '--8<-- "docs/how-to/engine/notebook.py"' in PAGE.with_suffix(".md").read_text()
