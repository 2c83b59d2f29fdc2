"""Greedy and drawn tokens: noise as it is defined, draws by their probabilities, rows apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mkport.compose import compose_cpu
from mkport.compose.cuda import compose_cuda
from mkport.declare.case import Case
from mkport.engine.noise import gumbel_of, key_of, philox
from mkport.engine.truncation import survivors
from mkport.kernels.sample.oracle import BIASED, COUNTS, EARLY, END, MASKED, PROMPT, REPEATS, way
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


def case_of(
    x: np.ndarray, temperature: float, seed: int = 7, choice: int = 0, **fields: Any
) -> Case:
    """Rows of logits that are drawn in one way, at positions 100, 101, ...; each one a sequence."""
    rows, n = x.shape
    padded = -(-n // 128) * 128
    words = way(np.random.default_rng(0), temperature, **fields)
    words[1:3] = np.array(key_of(seed), np.uint32).view(np.int32)
    words[3] = choice
    arrays = {
        "count": np.array([rows], np.int32),
        "x": x.astype(np.float32),
        "sampling": np.tile(words, (rows, 1)),
        "index": np.arange(rows, dtype=np.int32),
        "rows": np.stack([np.arange(rows), 100 + np.arange(rows)], axis=1).astype(np.int32),
        "mask": np.full((rows, padded // 32), -1, np.int32),
        "bias": np.zeros((rows, padded), np.float32),
        "tally": np.zeros((rows, padded), np.int32),
        "scores": np.full((rows, padded), np.nan, np.float32),
        "best": np.full((rows, -(-n // 4096)), np.nan, np.float32),
        "at": np.full((rows, -(-n // 4096)), -7, np.int32),
        "peaks": np.full((rows, 2, padded // 128), np.nan, np.float32),
        "sums": np.full((rows, 2, padded // 128), np.nan, np.float32),
    }
    return Case(arrays, {"n": n}, ("best", "at", "scores", "peaks", "sums"))


def joined(run: Run, case: Case) -> Any:
    """What the two ops leave."""
    found = run("sample", case)
    rows = len(found["at"])
    arrays = {**case.arrays, **found, "y": np.full(rows, -7, np.int32)}
    arrays["ids"] = np.full((rows, 20), -7, np.int32)
    arrays["logprobs"] = np.full((rows, 21), np.nan, np.float32)
    del arrays["mask"], arrays["bias"]
    outputs = ("y", "tally", "ids", "logprobs")
    return run("sample_join", Case(arrays, dict(case.values), outputs))


def chosen(run: Run, case: Case) -> list[int]:
    """The tokens that the two ops choose."""
    tokens: list[int] = joined(run, case)["y"].tolist()
    return tokens


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
        for name in ("x", "sampling", "index", *case.outputs):
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


FIELDS: tuple[dict[str, Any], ...] = (
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.6},
    {"top_p": 1e-7},
    {"min_p": 0.2},
    {"top_k": 7, "top_p": 0.7, "min_p": 0.05},
    {"top_k": 200, "top_p": 0.9},
)


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("levels", [0, 4])
def test_a_cut_row_draws_what_a_whole_one_would_if_the_rest_were_masked(
    run: Run, fields: dict[str, Any], levels: int
) -> None:
    """The cuts take tokens out, and nothing else: the same noise decides among those left."""
    draw = np.random.default_rng(5)
    x = draw.normal(0, 2, (6, 5000)).astype(np.float32)
    if levels:
        x = draw.integers(0, levels, x.shape).astype(np.float32)
    found = chosen(run, case_of(x, 1.5, **fields))
    for row in range(6):
        scores = x[row] / np.float32(1.5)
        left = survivors(
            scores, fields.get("min_p", 0), fields.get("top_k", 0), fields.get("top_p", 1)
        )
        alone = case_of(x, 1.5, flags=MASKED)
        allowed = np.zeros(alone.arrays["tally"].shape[1], bool)
        allowed[left] = True
        alone.arrays["mask"][row] = np.packbits(allowed, bitorder="little").view(np.int32)
        assert chosen(run, alone)[row] == found[row]


def test_what_is_told_is_the_softmax_of_the_logits(run: Run) -> None:
    x = np.random.default_rng(6).normal(0, 3, (2, 4500)).astype(np.float32)
    x[1, 4300:] = x[1].max()  # equals: the lowest columns are told first
    case = case_of(x, 1.0, told=21, flags=BIASED, top_p=0.5)
    case.arrays["bias"][...] = 1e3 * (np.arange(case.arrays["bias"].shape[1]) == 17)
    found = joined(run, case)
    assert found["y"].tolist() == [17, 17]
    wide = x.astype(np.float64)
    known = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    for row in range(2):
        order = np.argsort(-x[row], kind="stable")[:20]
        assert found["ids"][row].tolist() == order.tolist()
        wanted = known[row][[17, *order]]
        assert np.abs(found["logprobs"][row] - wanted).max() < 4e-6


def test_a_token_is_counted_where_a_penalty_needs_it_and_then_counts(run: Run) -> None:
    x = np.tile(np.linspace(0, 3, 300, dtype=np.float32), (3, 1))
    case = case_of(x, 0.0, flags=COUNTS, presence=1.0, frequency=1.0)
    case.arrays["sampling"][2, 4] = 0
    seen = []
    for _ in range(3):
        found = joined(run, case)
        seen.append(found["y"].tolist())
        case.arrays["tally"] = found["tally"]
    assert seen == [[299, 299, 299], [298, 298, 299], [297, 297, 299]]
    assert case.arrays["tally"].sum(axis=1).tolist() == [3, 3, 0]


def test_every_edit_alone(run: Run) -> None:
    x = np.zeros((1, 200), np.float32)
    x[0, :4] = 4, 3.5, 3, -1

    def token(flags: int, tally: int = 0, **fields: Any) -> int:
        case = case_of(x, 0.0, flags=flags, **fields)
        case.arrays["tally"][0, 0] = tally
        case.arrays["bias"][0, 2] = 7
        case.arrays["mask"][0, 0] = 0b1110
        return chosen(run, case)[0]

    assert token(0) == 0 and token(BIASED) == 2 and token(MASKED) == 1
    assert token(EARLY) == 0 and token(EARLY, END) == 1
    assert token(REPEATS, repetition=2.0) == 0
    assert token(REPEATS, PROMPT, repetition=2.0) == token(REPEATS, 1, repetition=2.0) == 1
    assert token(COUNTS, PROMPT, presence=2.0) == 0 and token(COUNTS, 1, presence=2.0) == 1
    assert token(COUNTS, 1, frequency=0.4) == 0 and token(COUNTS, 2, frequency=0.4) == 1


def test_a_row_without_a_column_that_may_be_chosen_says_so(run: Run) -> None:
    case = case_of(np.zeros((3, 4200), np.float32), 1.0, flags=MASKED, top_k=5)
    case.arrays["mask"][0] = 0
    case.arrays["mask"][1, : 4096 // 32] = 0
    case.arrays["x"][2, 7] = np.nan
    tokens = chosen(run, case)
    assert tokens[0] == -2 and tokens[1] >= 4096 and tokens[2] == -1


def test_a_given_token_is_told_and_counted(run: Run) -> None:
    x = np.random.default_rng(8).standard_normal((1, 700)).astype(np.float32)
    case = case_of(x, 0.0, flags=COUNTS, given=1 + 33, told=1)
    found = joined(run, case)
    assert found["y"].tolist() == [33] and found["tally"][0, 33] == 1
    wanted = float(x[0, 33]) - np.log(np.exp(x.astype(np.float64)).sum())
    assert abs(found["logprobs"][0, 0] - wanted) < 2e-6
    assert (found["ids"] == -7).all() and np.isnan(found["logprobs"][0, 1:]).all()
