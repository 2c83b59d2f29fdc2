"""The reference page tells of every route, field and code, and of no other."""

import re
from pathlib import Path

from mkport.engine.server.schema import ChatRequest, CompletionRequest, Generation
from mkport.engine.server.settings import MIB, Settings
from tests.serve.live import Live

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/server.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def named(title: str) -> set[str]:
    """The code words in the first column of a section's table."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_routes(live: Live) -> None:
    described = live.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, item in described.items() for method in item}
    assert named("Routes") == routes | {"GET /openapi.json", "GET /"}


def test_fields() -> None:
    shared = set(Generation.model_fields)
    assert named("Fields of both generating routes") == shared
    assert named("Fields of chat completions") == set(ChatRequest.model_fields) - shared
    assert named("Fields of completions") == set(CompletionRequest.model_fields) - shared


def test_codes() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "engine/server").glob("*.py"))
    told = set(re.findall(r"`([a-z]+_?[a-z_]+)`", section("Errors"))) - {"param", "error"}
    assert set(re.findall(r'code="(\w+)"', code)) <= told
    assert told <= set(re.findall(r'"(\w+)"', code))


def test_limits() -> None:
    settings = Settings()
    told = section("Limits")
    assert f"{settings.max_body // MIB} MiB" in told and f"{settings.max_held // MIB} MiB" in told
    assert f"{settings.max_requests} requests" in told and settings.body_s == 60
    assert f"{settings.drain_s:.0f} seconds" in section("Stopping")
    assert f"up to {settings.max_prompts}" in section("Fields of completions")
