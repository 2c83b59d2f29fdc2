"""The whole step against transformers, and against itself: greedy tokens, batches, runs.

Greedy agreement is checked in one forward pass: transformers reads the prompt and our
continuation, and must choose each of our tokens at its place. By induction that is the same as
generating them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mkport.engine.decoder import Decoder
from mkport.engine.generate import continuation
from mkport.engine.load import LoadedModel, load
from mkport.engine.synth import synthesise
from mkport.errors import UserError

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of motion are:\n1.",
    "<|im_start|>user\nWhat is a megakernel?<|im_end|>\n<|im_start|>assistant\n",
)
STEPS = 64


def continue_all(decoder: Decoder, prompts: list[list[int]], steps: int) -> np.ndarray:
    """Greedy continuations of several prompts side by side: int [prompts, steps]."""
    tokens = [decoder.prefill(s, ids)[0] for s, ids in enumerate(prompts)]
    out = [tokens]
    for step in range(steps - 1):
        rows = [(s, len(prompts[s]) + step, token) for s, token in enumerate(out[-1])]
        choices, _ = decoder.step(rows, range(len(rows)))
        out.append([int(choice) for choice in choices])
    return np.array(out).T


@pytest.fixture(scope="module")
def demo(demo_f32: Path) -> LoadedModel:
    return load(str(demo_f32))


def test_greedy_tokens_are_transformers_s(demo: LoadedModel) -> None:
    """Five prompts, 64 tokens each, float32, decoded as one ragged batch."""
    import torch
    import transformers

    prompts = [demo.tokenizer.encode(text) for text in PROMPTS]
    with Decoder(demo, batch=len(prompts), context=256, workers=1) as decoder:
        ours = continue_all(decoder, prompts, STEPS)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        demo.directory, dtype=torch.float32, local_files_only=True
    ).eval()
    for ids, said in zip(prompts, ours, strict=True):
        whole = torch.tensor([[*ids, *said[:-1]]])
        with torch.inference_mode():
            chosen = oracle(whole).logits[0, len(ids) - 1 :].argmax(-1).numpy()
        np.testing.assert_array_equal(chosen, said)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    out = tmp_path_factory.mktemp("tiny") / "llama"
    synthesise("llama", "tiny", out, "bf16", seed=3)
    return load(str(out))


def logits_of(tiny: LoadedModel, sequences: list[list[int]], **options: int) -> list[bytes]:
    """The bits of every decode step's logits, for each sequence of a ragged batch."""
    seen = [b"" for _ in sequences]
    with Decoder(tiny, batch=len(sequences), context=512, **options) as decoder:  # type: ignore[arg-type]
        starts = [len(ids) - 6 for ids in sequences]
        for s, ids in enumerate(sequences):
            decoder.prefill(s, ids[: starts[s]])
        for step in range(6):
            rows = [(s, starts[s] + step, ids[starts[s] + step]) for s, ids in enumerate(sequences)]
            _, logits = decoder.step(rows, range(len(rows)))
            for s in range(len(sequences)):
                seen[s] += logits[s].tobytes()
    return seen


@pytest.fixture(scope="module")
def ragged(tiny: LoadedModel) -> list[list[int]]:
    draw = np.random.default_rng(5)
    lengths = (7, 20, 70, 255, 256, 257, 262, 300)
    return [[int(i) for i in draw.integers(0, tiny.config.vocab, n)] for n in lengths]


@pytest.fixture(scope="module")
def alone(tiny: LoadedModel, ragged: list[list[int]]) -> list[bytes]:
    return [logits_of(tiny, [ids])[0] for ids in ragged]


@pytest.mark.parametrize("batch", range(2, 9))
def test_bits_do_not_depend_on_batch_mates(
    tiny: LoadedModel, ragged: list[list[int]], alone: list[bytes], batch: int
) -> None:
    for first in range(0, len(ragged) - batch + 1, 3):
        assert logits_of(tiny, ragged[first : first + batch]) == alone[first : first + batch]


@pytest.mark.parametrize(
    "options",
    [{"workers": 1}, {"workers": 5}, {"chunk": 1}, {"chunk": 7}, {"page": 16}],
    ids=lambda o: "-".join(f"{k}{v}" for k, v in o.items()),
)
def test_bits_do_not_depend_on_workers_chunks_or_pages(
    tiny: LoadedModel, ragged: list[list[int]], alone: list[bytes], options: dict[str, int]
) -> None:
    assert logits_of(tiny, ragged[5:], **options) == alone[5:]


def test_twenty_runs_give_the_same_bits(
    tiny: LoadedModel, ragged: list[list[int]], alone: list[bytes]
) -> None:
    for _ in range(20):
        assert logits_of(tiny, ragged[2:4]) == alone[2:4]


def test_poisoned_scratch_changes_nothing(tiny: LoadedModel, ragged: list[list[int]]) -> None:
    """Neither a step's scratch nor a fresh cache may be read before it is written."""
    ids = ragged[3]
    with Decoder(tiny, batch=1, context=512) as decoder:
        clean = decoder.prefill(0, ids)[1].tobytes()
    with Decoder(tiny, batch=1, context=512) as decoder:
        for machine in decoder.machines:
            machine.poison()
            for name, array in machine.tensors.items():
                if name.startswith("cache."):
                    array[...] = 0x7FC0  # bfloat16 NaN
        assert decoder.prefill(0, ids)[1].tobytes() == clean


class Patched(dict[str, np.ndarray]):
    """A model's weights with one of them replaced."""

    def __init__(self, model: LoadedModel, name: str, array: np.ndarray) -> None:
        super().__init__({key: model.weights[key] for key in model.weights} | {name: array})
        self.dtype = model.weights.dtype

    def hold(self) -> None:
        """They are in memory already."""


def test_a_nan_weight_ends_in_an_error_not_in_a_token(tiny: LoadedModel) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    broken = tiny.weights[name].copy()
    broken[3, 5] = 0x7FC0
    model = replace(tiny, weights=Patched(tiny, name, broken))  # type: ignore[arg-type]
    with Decoder(model, context=64) as decoder:
        assert decoder.step([(0, 0, 7)], [0])[0][0] == -1
        with pytest.raises(UserError, match="logits at position 2 are not finite"):
            list(continuation(decoder, [1, 2, 3], 5))
