"""What the engine says does not depend on how it came about: generated blocks found again, company,
preemption, restarts, a neighbour of NaN. Log probabilities are compared bit for bit. That greedy
text is transformers' own is tested through the server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from mkport.engine.engine import Engine, Output, collect
from mkport.engine.load import LoadedModel
from mkport.engine.request import Sampling
from tests.engine.checkpoints import models_in, one_program, prompts_of
from tests.engine.test_agreement import Patched

PAGE, WINDOW, VOCAB, TOKENS = 16, 24, 288, 40
LENGTHS = (PAGE - 1, PAGE, PAGE + 1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * PAGE, 70)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    """`model(family)`: a tiny float32 checkpoint that transformers wrote."""

    return models_in(tmp_path_factory)


@contextmanager
def serving(model: LoadedModel, kv_contexts: float = 12, **options: Any) -> Iterator[Engine]:
    """An engine with room for the longest prompt; `kv_contexts` sizes its cache in such."""
    config, context = model.config, 128
    one = config.layers * 2 * config.kv_width * context * 4
    sizes = {"max_model_len": context, "page": PAGE, "workers": 2} | options
    sizes["kv_memory"] = int(kv_contexts * one)
    with one_program(), Engine(model, **sizes) as engine:
        yield engine


def outputs(engine: Engine, prompts: list[list[int]], **fields: Any) -> list[Output]:
    """All prompts at once, each with its log probabilities."""
    given = {"temperature": 0.0, "logprobs": 2, "ignore_eos": True} | fields
    sampling = Sampling(TOKENS, **given)
    streams = [engine.submit(ids, sampling) for ids in prompts]
    return [collect(stream)[0] for stream in streams]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return prompts_of(LENGTHS, VOCAB)


@pytest.fixture(scope="module")
def reference(
    model: Callable[[str], LoadedModel], prompts: list[list[int]]
) -> Callable[[str], list[Output]]:
    """`reference(family)`: each prompt alone, in an engine of one row."""

    @cache
    def run(family: str) -> list[Output]:
        with serving(model(family), max_batch=1) as engine:
            return [outputs(engine, [ids])[0] for ids in prompts]

    return run


@pytest.mark.parametrize("family", ["llama", "cohere2_moe"])
def test_a_follow_up_turn_finds_what_was_generated(
    model: Callable[[str], LoadedModel], prompts: list[list[int]], family: str
) -> None:
    with serving(model(family), prefix_cache=False) as engine:
        turn = prompts[5] + outputs(engine, [prompts[5]])[0].ids + prompts[0]
        fresh = outputs(engine, [turn])[0]
    with serving(model(family)) as engine:
        outputs(engine, [prompts[5]])
        stream = engine.submit(turn, Sampling(TOKENS, temperature=0, logprobs=2, ignore_eos=True))
        assert collect(stream)[0] == fresh
        ran = len(prompts[5]) + TOKENS - 1  # the last token was never run
        assert stream.accepted is not None
        assert stream.accepted.cached_tokens == ran // PAGE * PAGE
        whole = engine.submit(turn[:48], Sampling(1, temperature=0))  # three pages, all known
        collect(whole)
        assert whole.accepted is not None and whole.accepted.cached_tokens == 47


@pytest.mark.parametrize("family", ["llama", "cohere2_moe"])
def test_a_seed_gives_the_same_text_in_every_company(
    model: Callable[[str], LoadedModel], prompts: list[list[int]], family: str
) -> None:
    """Alone, in a crowd, preempted, after a restart, and as each of n choices."""
    drawn: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "seed": 11}
    sampling = Sampling(TOKENS, ignore_eos=True, logprobs=2, **drawn)
    with serving(model(family), max_batch=1) as engine:
        alone = [outputs(engine, [ids], **drawn)[0] for ids in prompts]
        choices = collect(engine.submit(prompts[3], sampling, n=3), 3)  # one after the other
    assert choices[0] == alone[3]
    assert len({tuple(out.ids) for out in [*alone, *choices[1:]]}) == len(alone) + 2
    for options in ({"max_batch": 8}, {"max_batch": 5, "kv_contexts": 1.5}):
        with serving(model(family), **options) as engine:
            crowd = [engine.submit(ids, Sampling(30, ignore_eos=True)) for ids in prompts[:3]]
            assert outputs(engine, prompts, **drawn) == alone
            for stream in crowd:
                stream.cancel()
            assert collect(engine.submit(prompts[3], sampling, n=3), 3) == choices


def test_a_nan_ends_its_request_alone(
    model: Callable[[str], LoadedModel],
    reference: Callable[[str], list[Output]],
    prompts: list[list[int]],
) -> None:
    """A token whose embedding holds NaN ruins its own requests' pages and nobody else's, not even
    when these take the pages over."""
    poison = next(i for i in range(VOCAB) if not any(i in ids for ids in prompts))
    loaded, name = model("qwen3_moe"), "model.embed_tokens.weight"  # its head is another matrix
    table = loaded.weights[name].copy()
    table[poison, 3] = np.nan
    broken = replace(loaded, weights=Patched(loaded, name, table))  # type: ignore[arg-type]
    with serving(broken, kv_contexts=4, max_batch=4) as engine:
        bad = [
            engine.submit([*prompts[i], poison, 5], Sampling(TOKENS, temperature=0.0))
            for i in (5, 6)
        ]
        assert outputs(engine, prompts[:4]) == reference("qwen3_moe")[:4]
        ends = [collect(stream)[0] for stream in bad]
        assert [(end.reason, end.ids) for end in ends] == [("error", []), ("error", [])]
        assert "not finite" in ends[0].error
        engine.reset_prefix_cache()
        assert outputs(engine, prompts) == reference("qwen3_moe")
