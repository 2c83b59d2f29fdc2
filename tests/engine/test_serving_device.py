"""The engine over the CUDA source, in the host build and on a GPU: shared pages, copies of pages,
pages in host memory and back, and the tokens of the CPU machine."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from mkport.engine.engine import Engine, collect
from mkport.engine.load import load
from mkport.engine.request import Sampling
from mkport.engine.synth import synthesise
from tests.engine.checkpoints import one_program, prompts_of
from tests.engine.test_chosen import FIELDS, TEXT, same, sampling_of
from tests.engine.test_decoder_device import on  # noqa: F401

TOKENS, PAGE = 28, 16
LENGTHS = (15, 17, 25, 33)  # about a page, and the window of 24


def test_it_says_what_the_cpu_says(tmp_path: Path, on: str) -> None:  # noqa: F811
    synthesise("cohere2", "tiny", tmp_path / "model", "f32", seed=2)
    model = load(str(tmp_path / "model"))
    prompts = prompts_of(LENGTHS, 288)
    sampling = Sampling(TOKENS, temperature=0.0, ignore_eos=True)
    one = model.config.layers * 2 * model.config.kv_width * 64 * 4  # bytes of a full context
    sizes = {"max_model_len": 64, "page": PAGE, "kv_memory": 2 * one}
    with one_program(), Engine(model, max_batch=1, workers=2, **sizes) as engine:  # type: ignore[arg-type]
        expected = [collect(engine.submit(ids, sampling))[0].ids for ids in prompts]
    # in a process of its own it would be composed as usual; steps have up to 8 rows
    sizes |= {"own_process": False, "prefill_chunk": 4, "mixed_chunk": 4}
    with Engine(model, machine=on, max_batch=4, **sizes) as engine:  # type: ignore[arg-type]
        streams = [engine.submit(ids, sampling) for ids in prompts]
        assert [collect(stream)[0].ids for stream in streams] == expected
        choices = engine.submit(prompts[1], sampling, n=3)
        assert [out.ids for out in collect(choices, 3)] == [expected[1]] * 3
        again = engine.submit(prompts[1], sampling)
        assert collect(again)[0].ids == expected[1]
        assert again.accepted is not None and again.accepted.cached_tokens == PAGE
        stats = engine.stats()
    assert stats.preemptions > 0


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["cohere2_moe", "llama", "qwen3", "qwen3_moe"])
def test_prompts_by_pytorch_in_float32(tmp_path: Path, family: str) -> None:
    """On a GPU with PyTorch, of every length about a chunk's edge: the CPU machine's tokens."""
    pytest.importorskip("torch")
    synthesise(family, "tiny", tmp_path / "model", "f32", seed=2)
    model = load(str(tmp_path / "model"))
    prompts = prompts_of((17, 40, 64, 65, 100), 288)
    sampling = Sampling(12, temperature=0.0, ignore_eos=True)
    sizes = {"max_batch": 4, "max_model_len": 128, "page": PAGE, "own_process": False}
    found = []
    for machine, program in (("cpu", one_program()), ("cuda", nullcontext())):
        with program, Engine(model, machine=machine, **sizes) as engine:  # type: ignore[arg-type]
            streams = [engine.submit(ids, sampling) for ids in prompts]
            found.append([collect(stream)[0].ids for stream in streams])
    assert found[0] == found[1]


def test_every_field_is_what_the_cpu_makes_of_it(tmp_path: Path, on: str) -> None:  # noqa: F811
    synthesise("cohere2", "tiny", tmp_path / "model", "f32", seed=2)
    model = load(str(tmp_path / "model"))
    sizes = {"max_model_len": 64, "page": PAGE, "max_batch": 4}
    asked = [replace(sampling_of(name), max_tokens=10) for name in FIELDS]
    with one_program(), Engine(model, workers=2, **sizes) as engine:  # type: ignore[arg-type]
        expected = [collect(engine.submit(TEXT, sampling))[0] for sampling in asked]
    sizes |= {"own_process": False, "prefill_chunk": 4, "mixed_chunk": 4}
    with Engine(model, machine=on, **sizes) as engine:  # type: ignore[arg-type]
        streams = [engine.submit(TEXT, sampling) for sampling in asked]
        for stream, out in zip(streams, expected, strict=True):
            same(collect(stream)[0], (out.ids, out.logprobs or []))
