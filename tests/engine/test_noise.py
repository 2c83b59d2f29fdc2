"""The noise of sampling is the published generator's, and its winners are draws from a softmax."""

import numpy as np
import pytest

from mkport.engine import noise

KNOWN = [  # counter and key words, then the result: the known answers of the Random123 library
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_words_are_philox(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert noise.philox(*map(np.uint64, counter + key)) == words


def written_out(index: int, seed: int, choice: int, position: int) -> np.float32:
    """One entry's noise in plain Python, from the module's own words."""
    c = [index // 4, position, choice, 0]
    k = [seed % 2**32, (seed % 2**64) >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(right >> 32) ^ c[1] ^ k[0], right % 2**32, (left >> 32) ^ c[3] ^ k[1], left % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    v = (np.float32(c[index % 4]) + np.float32(0.5)) * np.float32(2**-32)
    return np.float32(-np.log(-np.log1p(-min(float(v), 1 - 2**-24))))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 123456789012345])
def test_the_noise_is_what_the_page_says(seed: int) -> None:
    indices = np.array([0, 1, 2, 3, 4, 7, 49151, 262143])
    for choice, position in [(0, 0), (3, 8191), (15, 262143)]:
        expected = [written_out(int(i), seed, choice, position) for i in indices]
        got = noise.gumbel(indices, seed, choice, position)
        np.testing.assert_allclose(got, expected, rtol=2e-7)


def test_a_word_at_either_end_gives_finite_noise() -> None:
    ends = [noise.gumbel_of(np.uint64(w)) for w in (0, 2**31, 2**32 - 1)]
    assert ends == pytest.approx([22.874, 0.3665, -2.8117], abs=1e-3)


@pytest.mark.parametrize("vocab", [1, 3, 4, 5, 1000])
def test_a_race_is_won_by_the_greatest_sum(vocab: int) -> None:
    draw = np.random.default_rng(vocab)
    for position in range(200):
        scores = draw.normal(0, 4, vocab).astype(np.float32)
        scores[draw.random(vocab) < 0.3] = -np.inf
        sums = scores + noise.gumbel(np.arange(vocab), 7, 1, position)
        expected = int(sums.argmax()) if (sums > -np.inf).any() else -1
        assert noise.race(scores, 7, 1, position) == expected


def test_nothing_wins_where_nothing_may() -> None:
    nothing = np.full(9, -np.inf, np.float32)
    assert noise.race(nothing, 0, 0, 0) == -1
    assert noise.race(np.full(9, np.nan, np.float32), 0, 0, 0) == -1


def test_seeds_choices_and_positions_draw_apart() -> None:
    indices = np.arange(64)
    draws = [
        noise.gumbel(indices, seed, choice, position).tobytes()
        for seed in (0, 1, 2**32, -1)
        for choice in (0, 1)
        for position in (0, 1)
    ]
    assert len(set(draws)) == len(draws)


def test_winners_are_draws_from_the_softmax() -> None:
    weights = np.array([0.5, 0.25, 0.125, 0.1, 0.02, 0.005])
    scores, draws = np.log(weights).astype(np.float32), 20_000
    counts = np.bincount([noise.race(scores, 5, 0, p) for p in range(draws)], minlength=6)
    expected = weights * draws
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # one in a thousand exceeds it at 5 degrees of freedom
