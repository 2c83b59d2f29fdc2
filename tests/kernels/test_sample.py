"""Greedy and drawn tokens: noise as it is defined, draws by their probabilities, rows apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mkport.compose import compose_cpu
from mkport.compose.cuda import compose_cuda
from mkport.declare.case import Case
from mkport.engine.noise import gumbel_of, key_of, philox
from mkport.library import find_op
from mkport.machines.host.build import compiler
from mkport.testing import check_op
from mkport.testing.cuda_forms import run_solo as run_host
from mkport.testing.forms import run_ported, run_standalone

OPS = [find_op("sample"), find_op("sample_join")]
CPU = compose_cpu(OPS, "bf16", "bf16")
HOST = compose_cuda(OPS, "bf16", "bf16")
Run = Callable[[str, Case], Any]

# (counter, key) -> words, from the test vectors published with Random123
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.fixture(params=["standalone", "ported", "host"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs an op on a case in a form and returns its outputs."""
    if request.param == "host" and compiler() is None:
        pytest.skip("no C++ compiler for the host build")

    def call(name: str, case: Case) -> Any:
        op = find_op(name)
        if request.param == "standalone":
            return run_standalone(op, case)
        if request.param == "ported":
            return run_ported(op, case, CPU)
        return run_host(op, case, HOST, "host", 3)

    return call


def case_of(x: np.ndarray, temperature: float, seed: int = 7, choice: int = 0) -> Case:
    """Rows of logits that are drawn in one way, at positions 100, 101, ..."""
    rows, n = x.shape
    low, high = (np.array(word, np.uint32).view(np.int32) for word in key_of(seed))
    way = np.array([np.float32(temperature).view(np.int32), low, high, choice], np.int32)
    arrays = {
        "count": np.array([rows], np.int32),
        "x": x.astype(np.float32),
        "sampling": np.tile(way, (rows, 1)),
        "index": np.arange(rows, dtype=np.int32),
        "rows": np.stack([np.zeros(rows), 100 + np.arange(rows)], axis=1).astype(np.int32),
        "best": np.full((rows, -(-n // 4096)), np.nan, np.float32),
        "at": np.full((rows, -(-n // 4096)), -7, np.int32),
    }
    return Case(arrays, {"n": n}, ("best", "at"))


def chosen(run: Run, case: Case) -> list[int]:
    """The tokens that the two ops choose."""
    found = run("sample", case)
    rows, parts = found["at"].shape
    arrays = {"count": case.arrays["count"], **found, "y": np.full(rows, -7, np.int32)}
    return run("sample_join", Case(arrays, {"parts": parts}, ("y",)))["y"].tolist()


@pytest.mark.parametrize("machine", ["cpu", "host"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_form_is_lawful_and_has_the_standalone_s_bits(op: Any, machine: str) -> None:
    if machine == "host" and compiler() is None:
        pytest.skip("no C++ compiler for the host build")
    program = CPU if machine == "cpu" else HOST
    for form in ("ported", "solo"):
        for verdict in check_op(op, machine, form, program=program, workers=3):
            assert verdict.ok, verdict


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_generator_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert philox(*map(np.uint64, counter), *map(np.uint64, key)) == words


@pytest.mark.parametrize("seed", [3, -5, 2**40 + 9])
def test_the_noise_is_the_engine_s(run: Run, seed: int) -> None:
    """The host samples requests that the device cannot; both must draw the same token."""
    n, rows = 6000, 4
    x = np.random.default_rng(abs(seed)).standard_normal((rows, n), np.float32)
    k0, k1 = map(np.uint64, key_of(seed))
    wanted = []
    for row in range(rows):
        blocks = [
            philox(np.uint64(b), np.uint64(100 + row), np.uint64(2), np.uint64(0), k0, k1)
            for b in range(n // 4)
        ]
        noise = np.array([gumbel_of(word) for words in blocks for word in words], np.float32)
        wanted.append(int(np.argmax(x[row] / np.float32(0.7) + noise)))
    assert chosen(run, case_of(x, 0.7, seed, choice=2)) == wanted


def test_draws_follow_the_softmax(run: Run) -> None:
    """5,000 draws of 40 tokens: every count within 4 standard deviations of its expectation."""
    draws, n = 5000, 40
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    ids = chosen(run, case_of(np.tile(x, (draws, 1)), 0.8))
    p = np.exp(x.astype(np.float64) / 0.8)
    p /= p.sum()
    counts = np.bincount(ids, minlength=n)
    assert (abs(counts - draws * p) < 4 * np.sqrt(draws * p * (1 - p)) + 1).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_is_the_same_in_any_company_and_idle_rows_are_left_alone(
    run: Run, temperature: float
) -> None:
    x = np.random.default_rng(1).standard_normal((5, 5000), np.float32)
    case = case_of(x, temperature)
    whole = run("sample", case)
    for row in range(5):
        alone = case.copy()
        for name in ("x", "sampling", "index", "best", "at"):
            alone.arrays[name] = alone.arrays[name][row : row + 1].copy()
        alone.arrays["count"][0] = 1
        found = run("sample", alone)
        assert found["at"].tolist() == whole["at"][row : row + 1].tolist()
        assert found["best"].tobytes() == whole["best"][row : row + 1].tobytes()
    case.arrays["count"][0] = 2
    few = run("sample", case)
    assert few["at"][:2].tolist() == whole["at"][:2].tolist()
    assert (few["at"][2:] == -7).all() and np.isnan(few["best"][2:]).all()


@pytest.mark.parametrize("place", [0, 1, 4095, 4096, 5002])
def test_the_first_of_equals_wins_and_a_broken_logit_ends_the_row(run: Run, place: int) -> None:
    x = np.zeros((4, 5003), np.float32)
    x[:2, [place, 5002]] = 3.0
    x[1, 4999] = np.nan
    x[2, place] = -np.inf
    x[3] = np.finfo(np.float32).min
    assert chosen(run, case_of(x, 0.0)) == [place, -1, -1, 0]
    assert chosen(run, case_of(x, 1.0))[1:3] == [-1, -1]


def test_another_seed_choice_or_position_is_another_draw(run: Run) -> None:
    x = np.zeros((2, 50000), np.float32)
    seen = [chosen(run, case_of(x, 1.0, seed, choice)) for seed, choice in ((1, 0), (2, 0), (1, 1))]
    assert len({token for pair in seen for token in pair}) == 6
