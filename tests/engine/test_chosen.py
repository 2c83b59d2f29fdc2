"""What an engine chooses on its machine is what the definition in NumPy chooses from the same
logits: every field, alone and in a crowd, in whatever order, preempted or not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.declare import TensorSpec
from mkport.engine import build as build_module
from mkport.engine.decoder import Decoder
from mkport.engine.engine import Engine, Output, collect
from mkport.engine.load import LoadedModel, load
from mkport.engine.logprobs import token_logprob
from mkport.engine.request import Grammar, Sampling, TokenLogprob
from mkport.engine.sampled import END, PROMPT, Draw
from mkport.engine.sampling import Sampler, _allows_others
from mkport.engine.sampling_tables import SamplingTables
from mkport.engine.synth import synthesise
from mkport.engine.target import CPU
from mkport.errors import UserError
from tests.engine.apart_build import Late
from tests.engine.checkpoints import one_program

CONTEXT, TOKENS, VOCAB = 128, 40, 288
TEXT = [5, 6, 200, 7, 6]
WEATHER = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'
FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9},
    "top_k": {"top_k": 4, "temperature": 1.3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2, "temperature": 2.0},
    "all cuts": {"top_k": 9, "top_p": 0.8, "min_p": 0.01, "temperature": 3.0},
    "repetition": {"repetition_penalty": 1.4, "temperature": 0.0},
    "repetition, drawn": {"repetition_penalty": 0.8, "top_p": 0.9},
    "frequency": {"frequency_penalty": 0.8, "temperature": 0.0},
    "presence": {"presence_penalty": 1.1, "temperature": 1.0},
    "bias": {"logit_bias": {3: 4.0, 17: -100.0, 44: 3.5}, "temperature": 1.0},
    "early": {"min_tokens": 20, "stop_token_ids": tuple(range(60)), "temperature": 1.0},
    "told": {"temperature": 1.0, "top_k": 3, "logprobs": 20},
    "grammar": {"grammar": Grammar("json_schema", WEATHER), "temperature": 1.0},
    "grammar and all": {
        "grammar": Grammar("json_schema", WEATHER),
        "temperature": 1.5,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "min_tokens": 4,
        "logprobs": 2,
    },
}


def sampling_of(name: str) -> Sampling:
    return Sampling(TOKENS, seed=len(name), **FIELDS[name])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    out: Path = tmp_path_factory.mktemp("chosen") / "model"
    synthesise("cohere2", "tiny", out, "f32", seed=2)
    return load(str(out))


@pytest.fixture(scope="module")
def defined(model: LoadedModel) -> dict[str, tuple[list[int], list[TokenLogprob]]]:
    """By the name of the fields: the tokens, and what is told of each."""
    found: dict[str, tuple[list[int], list[TokenLogprob]]] = {}
    with one_program(), Decoder(model, context=CONTEXT, page=16, workers=2) as decoder:
        with Engine(model, max_model_len=CONTEXT, page=16, workers=2, max_batch=1) as engine:
            for name in FIELDS:
                job = engine.job(TEXT, sampling_of(name))
                choice, sampler = job.choices[0], job.choices[0].sampler
                _, logits = decoder.prefill(0, TEXT)
                ids: list[int] = []
                told: list[TokenLogprob] = []
                while len(ids) < TOKENS:
                    position = len(TEXT) + len(ids) - 1
                    mask = choice.matcher.mask() if choice.matcher else None
                    top, row = job.sampling.logprobs, logits.copy()
                    ids.append(sampler.choose(row, mask, position))
                    if top is not None:
                        told.append(token_logprob(row, ids[-1], top, position))
                    if ids[-1] in (*engine.tokenizer.eos_ids, *job.sampling.stop_token_ids):
                        break
                    if choice.matcher is not None:
                        choice.matcher.accept(ids[-1])
                        if choice.matcher.finished:
                            break
                    _, logits = decoder.step([(0, position + 1, ids[-1])], [0])
                    logits = logits[0]
                found[name] = ids, told
    return found


def same(out: Output, wanted: tuple[list[int], list[TokenLogprob]]) -> None:
    ids, told = wanted
    assert out.ids == ids
    for one, other in zip(out.logprobs or [], told, strict=True):
        assert one.id == other.id and abs(one.logprob - other.logprob) < 1e-5
        assert [i for i, _ in one.top] == [i for i, _ in other.top]
        mine, others = ([x for _, x in which.top] for which in (one, other))
        assert np.allclose(mine, others, atol=1e-5, rtol=0)


@pytest.mark.parametrize("target", [CPU, Late()], ids=["at once", "ahead"])
def test_alone_in_a_crowd_and_preempted(
    model: LoadedModel,
    defined: dict[str, tuple[list[int], list[TokenLogprob]]],
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
) -> None:
    one = model.config.layers * 2 * model.config.kv_width * CONTEXT * 4
    sizes: dict[str, Any] = {"max_model_len": CONTEXT, "page": 16, "workers": 2}
    monkeypatch.setattr(build_module, "target_of", lambda name: target)
    with one_program():
        with Engine(model, max_batch=4, kv_memory=int(1.2 * one), **sizes) as engine:
            for name in FIELDS:
                same(collect(engine.submit(TEXT, sampling_of(name)))[0], defined[name])
            for turn in range(2):
                names = [*FIELDS, *FIELDS][turn:]
                streams = [engine.submit(TEXT, sampling_of(name)) for name in names]
                for name, stream in zip(names, streams, strict=True):
                    same(collect(stream)[0], defined[name])
            assert engine.stats().preemptions > 0


def test_a_prompt_is_told_what_its_logits_say(model: LoadedModel) -> None:
    ids = [int(i) for i in np.random.default_rng(4).integers(0, VOCAB, 30)]
    rows = [(0, position, token) for position, token in enumerate(ids)]
    with (
        one_program(),
        Decoder(model, context=CONTEXT, page=16, workers=2, chunk=30, all_logits=True) as decoder,
    ):
        logits = decoder.step(rows, range(30))[1].copy()
    wanted = [token_logprob(logits[at], ids[at + 1], 3, at) for at in range(29)]
    sizes: dict[str, Any] = {"max_model_len": CONTEXT, "page": 16, "workers": 2}
    with one_program(), Engine(model, max_batch=2, prefill_chunk=7, **sizes) as engine:
        stream = engine.submit(ids, Sampling(1, temperature=0.0, prompt_logprobs=3, logprobs=3))
        (out,) = collect(stream)
        with pytest.raises(UserError, match="of 21 rivals .* 0 to 20"):
            engine.submit(ids, Sampling(1, logprobs=21))
    assert stream.accepted is not None and stream.accepted.prompt_logprobs[0] is None
    told = [one for one in stream.accepted.prompt_logprobs if one is not None]
    same(replace(out, ids=ids[1:], logprobs=told), (ids[1:], wanted))
    same(out, (out.ids, [token_logprob(logits[29], out.ids[0], 3, 29)]))


def test_tables_are_filled_when_their_row_holds_another_s_or_older_ones() -> None:
    specs = {
        "mask": TensorSpec("mask", "i32", (4, 8), "input"),
        "bias": TensorSpec("bias", "f32", (4, 256), "input"),
        "tally": TensorSpec("tally", "i32", (4, 256), "state"),
    }
    written: list[tuple[str, int]] = []
    arrays = {name: np.full(spec.shape, 9, np.int32) for name, spec in specs.items()}

    def write(name: str, places: list[int], contents: np.ndarray) -> None:
        written.append((name, places[0]))
        arrays[name][places] = contents

    tables = SamplingTables(write, specs)
    one = Sampler(Sampling(9, repetition_penalty=2.0, min_tokens=2), [7, 7, 8], ends=[8, 30])
    other = Sampler(Sampling(9, presence_penalty=2.0, logit_bias={5: 2.0}), [7])
    for row, sampler in ((1, one), (1, one), (2, other), (3, one), (1, one), (2, other), (2, one)):
        one.accept(40)
        tables.fill(row, sampler.draw(0))
    rows = [("tally", 1), ("tally", 2), ("bias", 2), ("tally", 3), ("tally", 1), ("tally", 2)]
    assert written == rows  # the machine counts on by itself where a row has not changed hands
    tally = arrays["tally"][2]
    assert {int(at): int(tally[at]) for at in np.flatnonzero(tally)} == {
        7: PROMPT,
        8: PROMPT + END,
        30: END,
        40: 7,
    }
    assert arrays["bias"][2].tolist() == [0] * 5 + [2] + [0] * 250
    written.clear()
    tables.fill(0, Draw(mask=np.array([5, -1], np.int32)))
    assert arrays["mask"][0].tolist() == [5, -1, 0, 0, 0, 0, 0, 0] and written == [("mask", 0)]


def test_a_mask_that_allows_an_end_alone_outranks_min_tokens() -> None:
    mask = np.zeros(4, np.int32)
    mask[1] = 1 << 3
    assert not _allows_others(mask, np.array([35]))
    assert _allows_others(mask, np.array([34, 200]))
    sampler = Sampler(Sampling(9, min_tokens=5), seed=1, ends=[35])
    assert sampler.draw(0).early and not sampler.draw(5).early
    assert not sampler.draw(0, mask).early and sampler.draw(0, ~mask).early
