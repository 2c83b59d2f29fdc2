"""A decoder refuses, by name, what its machine would read or write out of place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.engine.decoder import Decoder
from mkport.engine.load import load
from mkport.errors import UserError
from tests.cli.conftest import tiny_model  # noqa: F401


@pytest.fixture
def decoder(tiny_model: Path) -> Iterator[Decoder]:  # noqa: F811
    with Decoder(load(str(tiny_model)), batch=2, context=64, workers=1, chunk=8) as made:
        yield made


@pytest.mark.parametrize("page", [0, 1, 8, 17, -16])
def test_a_page_that_attention_cannot_read(tiny_model: Path, page: int) -> None:  # noqa: F811
    with pytest.raises(UserError, match=f"page of {page} keys .* multiple of 16"):
        Decoder(load(str(tiny_model)), context=64, workers=1, page=page)


def test_a_step_out_of_place(decoder: Decoder) -> None:
    one = [(0, 0, 5)]
    cases: list[tuple[list[Any], list[Any], str]] = [
        (one, [1], "row 1 is wanted, .* rows 0 to 0"),
        (one, [-1], "row -1 is wanted"),
        (one, [1 << 40], "is wanted"),
        (one, [0.0], "row 0.0 is wanted"),
        ([(0, p, 5) for p in range(9)], [0], "9 tokens .* holds 8 tokens"),
        ([(0, p, 5) for p in range(4)], [0, 1, 2], "logits of 3 rows .* logits of 2 rows"),
        ([(0, 0, 5.5)], [0], "not three whole numbers"),
        ([(0, 0, True)], [0], "not three whole numbers"),
        ([(0, "0", 5)], [0], "not three whole numbers"),
        ([(1, 3, 5), (1, 3, 6)], [0], "Position 3 of sequence 1 occurs twice"),
        ([(0, 64, 5)], [0], "Position 64 of sequence 0 is outside"),
        ([(2, 0, 5)], [0], "sequence 2 is outside"),
        ([(0, 0, 258)], [0], "258 is outside the vocabulary"),
    ]
    for tokens, wanted, named in cases:
        with pytest.raises(UserError, match=named):
            decoder.step(tokens, wanted)


def test_numbers_of_numpy_are_numbers(decoder: Decoder) -> None:
    choices, _ = decoder.step([(0, 0, np.int64(5))], [np.int32(0)])  # type: ignore[list-item]
    expected = int(choices[0])
    assert int(decoder.step([(0, 0, 5)], [0])[0][0]) == expected
