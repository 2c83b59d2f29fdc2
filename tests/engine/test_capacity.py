"""One limit for admission, page tables and memory: what an engine can hold, and what it refuses."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mkport.engine.capacity import ATTENTION_SPEED, Settings, plan_capacity, widths
from mkport.engine.engine import Engine
from mkport.engine.holdings import window_pages
from mkport.engine.load import LoadedModel, load
from mkport.engine.synth import synthesise
from mkport.engine.target import HOST
from mkport.errors import UserError

CONTEXT = 512  # of the tiny models, whose window is 24


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    def made(family: str) -> LoadedModel:
        out: Path = tmp_path_factory.mktemp(family) / "model"
        synthesise(family, "tiny", out, "f32")
        return load(str(out))

    return {family: made(family) for family in ("llama", "cohere2")}


def bytes_of(model: LoadedModel, layers: int, keys: int) -> int:
    """Keys and values, float32."""
    return layers * 2 * model.config.kv_width * keys * 4


def test_memory_becomes_pages(models: dict[str, LoadedModel]) -> None:
    model = models["llama"]
    three = 3 * bytes_of(model, model.config.layers, CONTEXT)
    shape, limits = plan_capacity(model, Settings(kv_memory=three + 100, page=16))
    assert limits.pools == ((3 * CONTEXT // 16, 0),) and limits.context == CONTEXT
    assert (shape.pool, shape.context, shape.sequences) == (96, CONTEXT, 8)


def test_little_memory_shortens_the_context(models: dict[str, LoadedModel]) -> None:
    model = models["llama"]
    half = bytes_of(model, model.config.layers, CONTEXT) // 2
    shape, limits = plan_capacity(model, Settings(kv_memory=half, page=16))
    assert limits.context == shape.context == CONTEXT // 2
    assert limits.pools == ((CONTEXT // 2 // 16, 0),)
    with pytest.raises(UserError, match="hold 256 positions .* 512 are asked for"):
        plan_capacity(model, Settings(kv_memory=half, page=16, max_model_len=512))
    with pytest.raises(UserError, match="kv-memory"):
        plan_capacity(model, Settings(kv_memory=100))


def test_the_model_s_limit_and_ours(models: dict[str, LoadedModel]) -> None:
    model = models["llama"]
    with pytest.raises(UserError, match="has 512 positions, not 513"):
        plan_capacity(model, Settings(max_model_len=513))
    long = replace(model, config=replace(model.config, context=10**6))
    assert plan_capacity(long, Settings(2))[1].context == 32768
    assert plan_capacity(long, Settings(2, max_model_len=40000))[1].context == 40000


def test_more_than_the_machine_s_memory_is_refused(models: dict[str, LoadedModel]) -> None:
    """Linux gives what it does not have, and ends who uses it."""
    for memory in (2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 1 << 46):
        with pytest.raises(UserError, match="GB of memory: lower kv_memory"):
            Engine(models["llama"], kv_memory=memory)


def test_a_target_s_rows(models: dict[str, LoadedModel]) -> None:
    _, limits = plan_capacity(models["llama"], Settings(max_batch=5), HOST)
    assert (limits.sequences, limits.rows, widths(limits)) == (5, 8, [1, 5, 8])
    with pytest.raises(UserError, match="at most 64 tokens, so 64 requests"):
        plan_capacity(models["llama"], Settings(max_batch=65), HOST)


def test_layers_with_a_window_take_a_window_s_pages(models: dict[str, LoadedModel]) -> None:
    model = models["cohere2"]  # three layers of four have a window
    settings = Settings(max_batch=4, prefill_chunk=32, page=16)
    _, limits = plan_capacity(model, settings)
    windowed = window_pages(24 + 32, 16)
    assert limits.pools == ((4 * CONTEXT // 16, 0), (4 * windowed, 24))
    one = bytes_of(model, 1, CONTEXT) + bytes_of(model, 3, 16 * windowed)
    _, tight = plan_capacity(model, Settings(4, kv_memory=one, prefill_chunk=32, page=16))
    assert tight.pools == ((CONTEXT // 16, 0), (windowed, 24)) and tight.context == CONTEXT


@pytest.mark.parametrize(
    "settings",
    [
        Settings(max_batch=0),
        Settings(prefill_chunk=0),
        Settings(mixed_chunk=0),
        Settings(pause_ms=0.0),
        Settings(pause_ms=float("nan")),
    ],
    ids=["batch", "chunk", "mixed chunk", "pause", "no pause"],
)
def test_sizes_that_hold_nothing(models: dict[str, LoadedModel], settings: Settings) -> None:
    with pytest.raises(UserError, match="run nothing|nothing of a prompt fits"):
        plan_capacity(models["llama"], settings)


@pytest.mark.parametrize(
    "chunk", [lambda n: Settings(prefill_chunk=n), lambda n: Settings(mixed_chunk=n)]
)
def test_a_chunk_that_no_prompt_fills(
    models: dict[str, LoadedModel], chunk: Callable[[int], Settings]
) -> None:
    limit = models["llama"].config.context
    plan_capacity(models["llama"], chunk(limit))
    with pytest.raises(UserError, match=f"{limit} positions, so no step reads {limit + 1} tokens"):
        plan_capacity(models["llama"], chunk(limit + 1))


def test_widths(models: dict[str, LoadedModel]) -> None:
    _, limits = plan_capacity(models["llama"], Settings(max_batch=4))
    assert limits.paced and widths(limits) == [1, 4, 20, 132]
    _, limits = plan_capacity(models["llama"], Settings(1, prefill_chunk=8, mixed_chunk=8))
    assert not limits.paced and widths(limits) == [1, 9]


def test_where_attention_takes_as_much_as_the_weights(models: dict[str, LoadedModel]) -> None:
    config = models["llama"].config
    a_layer = config.hidden * (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    a_layer += 3 * config.hidden * config.ffn
    a_key = 2 * config.heads * config.head_dim
    _, limits = plan_capacity(models["llama"], Settings())
    assert limits.doubles == int(ATTENTION_SPEED * a_layer / a_key)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 18, 33])
def test_a_window_s_pages(window: int) -> None:
    """Counted, for every place of a window on pages of 16."""
    spans = [(position // 16) - max(position - window + 1, 0) // 16 + 1 for position in range(200)]
    assert max(spans) == window_pages(window, 16)
