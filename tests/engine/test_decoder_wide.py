"""Decoding more than 8 sequences side by side on the CUDA source: each has the tokens that it has
alone, and in float32 those of the CPU machine."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from mkport.engine.decoder import LONG_CHUNK, Decoder
from mkport.engine.load import LoadedModel, load
from mkport.engine.synth import synthesise
from tests.engine.checkpoints import one_program

MACHINES = ["host", pytest.param("cuda", marks=pytest.mark.gpu)]
STEPS = 4


def model(folder: Path, dtype: str) -> LoadedModel:
    """North Mini Code's family, tiny: windows of 24 keys, 3 of 8 experts a token."""
    synthesise("cohere2_moe", "tiny", folder / "model", dtype, seed=3)
    return load(str(folder / "model"), stack=False)


def prompts(count: int) -> list[list[int]]:
    """Of 1 to 26 tokens: within a window of 24, and beyond it."""
    return [[(7 * n + 3 * i) % 256 for i in range(1 + 15 * n % 26)] for n in range(count)]


def decoded(decoder: Decoder, asked: Sequence[Sequence[int]]) -> list[list[int]]:
    """The greedy tokens behind the prompts `asked` [sequences], read and decoded side by side, a
    token of each a step."""
    first = [0] * len(asked)
    for position in range(max(map(len, asked))):
        rows = [(s, position, ids[position]) for s, ids in enumerate(asked) if position < len(ids)]
        chosen, _ = decoder.step(rows, range(len(rows)))
        for (sequence, *_), token in zip(rows, chosen.tolist(), strict=True):
            first[sequence] = token  # the last one counts
    starts = [(s, len(ids), token) for s, (ids, token) in enumerate(zip(asked, first, strict=True))]
    chain = [chosen.tolist() for chosen in decoder.follow(starts, STEPS)]
    return [list(tokens) for tokens in zip(first, *chain, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("batch", [16, 32, 64])
def test_tokens_are_those_of_a_batch_of_one_and_of_the_cpu_machine(
    tmp_path: Path, on: str, batch: int
) -> None:
    given = model(tmp_path, "f32")
    asked = prompts(batch - 1)  # a row stays idle
    with Decoder(given, on=on, batch=batch, context=64, page=16, widths=[1, 8]) as decoder:
        assert [len(m.tensors["next"]) for m in decoder.machines] == [1, 8, batch]
        found = decoded(decoder, asked)
        for sequence in (0, batch // 2, batch - 2):
            assert decoded(decoder, [asked[sequence]]) == [found[sequence]]
        assert decoded(decoder, asked[:7]) == found[:7]
    with one_program(), Decoder(given, batch=batch, context=64, page=16) as decoder:
        assert decoded(decoder, asked) == found


@pytest.mark.slow
@pytest.mark.parametrize("on", MACHINES)
def test_a_prompt_has_the_bits_of_steps_of_one_token_in_chunks_of_64(
    tmp_path: Path, on: str
) -> None:
    """Behind the first chunk's end too, and with what other chunks left in the cache."""
    given = model(tmp_path, "bf16")
    ids = [(7 * i) % 251 for i in range(150)]
    found = []
    for chunk in (1, LONG_CHUNK):
        with Decoder(given, on=on, context=256, page=16, chunk=chunk) as decoder:
            token, logits = decoder.prefill(0, ids)
            found.append((token, logits.tobytes()))
    assert found[0] == found[1]
