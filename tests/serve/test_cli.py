"""The verb `serve`: what it refuses, and what it makes of its options."""

import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from mkport.cli.serve import own_arguments, size
from mkport.engine.server import lifecycle
from mkport.engine.server.settings import Settings
from mkport.engine.server.start import sampling_defaults, start
from mkport.errors import UserError
from mkport.extras import install
from tests.cli.conftest import mkport, tiny_model  # noqa: F401

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--model", "/nowhere"], "no model at /nowhere"),
        (["--machine", "abacus"], "abacus"),
        (["--port", "70000"], "65535"),
        (["--host", "nowhere.invalid"], "cannot listen on nowhere.invalid"),
        (["--api-key", " "], "--api-key"),
        (["--max-batch", "0"], "--max-batch"),
        (["--kv-memory", "much"], "is not a size"),
        (["--kv-memory", "0"], "is not a size"),
        (["--max-model-len", "1"], "--max-model-len"),
        (["--prefill-chunk", "0"], "--prefill-chunk"),
        (["--dtype", "int3"], "int3"),
        (["--format", "morse"], "morse"),
    ],
)
def test_wrong_use_is_told_in_a_paragraph(mkport: Run, options: list[str], word: str) -> None:  # noqa: F811
    result = mkport("serve", "--port", "0", *options)
    assert result.exit_code == 2, result.output
    assert word in " ".join(result.output.replace("│", "").split())
    assert "Traceback" not in result.output


def test_a_port_in_use_is_told_before_anything_is_loaded(mkport: Run) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = mkport("serve", "--port", port, "--model", "/nowhere")
    assert result.exit_code == 2 and f"port {port}" in " ".join(result.output.split())


def test_a_missing_extra_is_named(mkport: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    result = mkport("serve")
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert "Serving needs uvicorn" in told and install("serve") in told


def test_sizes() -> None:
    assert [size(text) for text in ("1000", "4GiB", "500MB", "1.5k", "2gi")] == [
        1000,
        4 << 30,
        500_000_000,
        1500,
        2 << 30,
    ]


def test_what_replicas_are_told() -> None:
    given = "--model x --host 0.0.0.0 --port=9 --replicas 2 --max-batch 4".split()
    assert own_arguments(given) == ["--model", "x", "--max-batch", "4"]


def test_a_models_own_sampling_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert sampling_defaults(tmp_path) == {}
    path.write_text('{"temperature": 0.3, "top_k": 20, "eos_token_id": 2, "top_p": null}')
    assert sampling_defaults(tmp_path) == {"temperature": 0.3, "top_k": 20}
    for bad in ('{"temperature": 3}', '{"top_p": "x"}', '{"min_p": true}'):
        path.write_text(bad)
        with pytest.raises(UserError, match="generation_config.json"):
            sampling_defaults(tmp_path)


def test_options_reach_the_engine_and_the_server(
    tiny_model: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(lifecycle, "serve", lambda *given: served.append(given))
    (tiny_model / "generation_config.json").write_text('{"temperature": 0.3}')
    running = start(
        str(tiny_model),
        host="127.0.0.1",
        port=0,
        api_key="k",
        dtype=None,
        form="llama3",
        machine="cpu",
        max_batch=2,
        max_model_len=64,
        kv_memory=None,
        prefill_chunk=None,
        pause_ms=7.5,
    )
    try:
        assert running.engine._loop.core.scheduler.limits.pause_s == 0.0075  # type: ignore[attr-defined]
        assert running.engine.max_batch == 2 and running.engine.context == 64
        assert running.settings == Settings(
            api_key="k", defaults={"temperature": 0.3}, format="llama3"
        )
        running.serve()
        assert served == [(running.engine, running.settings, running.listener)]
        assert running.address.startswith("http://127.0.0.1:")
    finally:
        running.engine.close()
        running.listener.close()
