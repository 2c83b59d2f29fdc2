"""Greedy text through HTTP is transformers' own, for a small float32 checkpoint of every family,
and log probabilities are the same to the last bit whatever the server's caches, chunks, pages,
batch and memory."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers")

from mkport.engine.engine import Engine
from mkport.engine.load import LoadedModel
from mkport.models.sizes import TINY
from tests.engine.checkpoints import models_in, one_program, prompts_of, theirs
from tests.serve.live import serving

PAGE, WINDOW, VOCAB, TOKENS, CONTEXT = 16, 24, 288, 40, 128
LENGTHS = (PAGE - 1, PAGE, PAGE + 1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * PAGE, 70)
# each another way than the reference, which reads and writes one after the other
VARIANTS: dict[str, dict[str, Any]] = {
    "no cache": {"max_batch": 2, "prefix_cache": False},
    "chunks of 1": {"max_batch": 3, "prefill_chunk": 1, "mixed_chunk": 1},
    "chunks of 7": {"max_batch": 4, "prefill_chunk": 7, "mixed_chunk": 7},
    "chunks of 64": {"max_batch": 6, "prefill_chunk": 64, "mixed_chunk": 64},
    "large pages": {"max_batch": 7, "page": 64},
    "preempting": {"max_batch": 5, "contexts": 1.2},
    "all at once": {"max_batch": 8},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return prompts_of(LENGTHS, VOCAB)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    """`model(family)`: a tiny float32 checkpoint that transformers wrote."""

    return models_in(tmp_path_factory)


@pytest.fixture(scope="module")
def reference(
    model: Callable[[str], LoadedModel], prompts: list[list[int]]
) -> Callable[[str], list[Any]]:
    """`reference(family)`: the choices of a server of one row."""

    @cache
    def asked(family: str) -> list[Any]:
        return choices(model(family), prompts, max_batch=1)[0]

    return asked


def choices(
    model: LoadedModel, prompts: Sequence[Sequence[int]], times: int = 1, **options: Any
) -> list[list[Any]]:
    """What a server says to all prompts at once, so many times; `contexts` is how many of the full
    length its cache holds."""
    one = model.config.layers * 2 * model.config.kv_width * CONTEXT * 4
    tight = "contexts" in options
    memory = int(options.pop("contexts", 12) * one)
    sizes = {"max_model_len": CONTEXT, "page": PAGE, "workers": 2, "kv_memory": memory} | options
    with one_program(), Engine(model, **sizes) as engine, serving(engine) as live:

        def ask(ids: Sequence[int]) -> Any:
            body = {"prompt": ids, "max_tokens": TOKENS, "temperature": 0, "logprobs": 2}
            answer = live.post("/v1/completions", body | {"ignore_eos": True})
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"]

        with ThreadPoolExecutor(len(prompts)) as pool:
            found = [list(pool.map(ask, prompts)) for _ in range(times)]
        stats = engine.stats()
    assert (stats.preemptions > 0) == tight
    if times > 1 and not tight:
        assert (stats.prefix_hits > 0) == options.get("prefix_cache", True)
    return found


@pytest.mark.parametrize("family", TINY)
def test_greedy_text_is_transformers_s(
    model: Callable[[str], LoadedModel],
    reference: Callable[[str], list[Any]],
    prompts: list[list[int]],
    family: str,
) -> None:
    """Fed our tokens, transformers chooses each of them at its place."""
    loaded = model(family)
    with one_program(), Engine(loaded, max_model_len=CONTEXT, page=PAGE, workers=2) as engine:
        outputs = engine.generate(prompts, TOKENS, temperature=0.0, ignore_eos=True)
    written = [out.ids for out in outputs]
    fed = [[*ids, *own[:-1]] for ids, own in zip(prompts, written, strict=True)]
    logits = theirs(loaded.directory, fed, "float32")
    for ids, own, rows, (choice,) in zip(prompts, written, logits, reference(family), strict=True):
        assert rows[len(ids) - 1 :].argmax(1).tolist() == own
        assert choice["text"] == loaded.tokenizer.decode(own)
        assert choice["finish_reason"] == "length"
        assert len(choice["logprobs"]["tokens"]) == TOKENS


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", TINY)
def test_the_bits_do_not_depend_on_how_it_came_about(
    model: Callable[[str], LoadedModel],
    reference: Callable[[str], list[Any]],
    prompts: list[list[int]],
    family: str,
    variant: str,
) -> None:
    found = choices(model(family), prompts, 2, **VARIANTS[variant])
    assert found == [reference(family)] * 2
