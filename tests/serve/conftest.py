"""A server over a scripted engine, shared by the tests of a file; each test may set the script."""

from collections.abc import Iterator

import pytest

from tests.serve.live import Live, serving
from tests.serve.scripted import ScriptedEngine


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    with serving(ScriptedEngine()) as live:
        yield live


@pytest.fixture
def live(shared: Live) -> Iterator[Live]:
    """The file's server, its script the greeting again."""
    shared.engine.script = lambda asked: "Hello, world!"
    shared.engine.submitted.clear()
    yield shared
