"""Steps whose rows are of very different lengths, up to the longest context, in the host build, by
what the GPU's benchmark runs; and what that benchmark says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram
from mkport.engine.bench import gpu_decode, gpu_host, gpu_sampling
from mkport.engine.bench.gpu_decode import built, check_alone, checked, read_bytes
from mkport.engine.bench.gpu_inputs import lengths_of, shape_of, step_inputs
from mkport.engine.load import load
from mkport.engine.synth import synthesise
from mkport.engine.target import CPU
from mkport.errors import UserError
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.host.machine import SHARED_BYTES, HostMachine
from mkport.models import family_of, parse_config
from mkport.models.sizes import TINY
from mkport.plan import Graph, Schedule
from mkport.testing import tiny
from tests.engine.checkpoints import one_program

WINDOW, PAGE, SPLIT = 600, 64, 512
FIELDS = TINY["cohere2"] | {
    "head_dim": 64,  # keys and values come through the ring
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "max_position_embeddings": 262144,
    "vocab_size": 77,
}
RAGGED = {
    "one long beside seven short": "2000,5x7",
    "the longest context, and edges of pages, splits and windows": (
        f"261120,{PAGE},{PAGE + 1},{SPLIT},{SPLIT + 1},{WINDOW},{WINDOW + 1},1"
    ),
}


def ragged(text: str, workers: int) -> tuple[Schedule, CudaProgram, dict[str, np.ndarray]]:
    """A step of sequences of these lengths, each at its last position."""
    lengths = lengths_of(text)
    config, family = parse_config(FIELDS), family_of(FIELDS)
    shape = shape_of(lengths, stage_bytes(SHARED_BYTES))
    graph, schedule, program = built(config, family, shape, workers)
    given = tiny.held(graph, shape.context, np.random.default_rng(0))
    return schedule, program, given | step_inputs(graph, shape, config.vocab, lengths)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("name", RAGGED)
def test_rows_of_any_length_have_the_bits_that_they_have_alone(name: str) -> None:
    schedule, program, given = ragged(RAGGED[name], 3)
    config, family = parse_config(FIELDS), family_of(FIELDS)
    shape = shape_of(lengths_of(RAGGED[name]), stage_bytes(SHARED_BYTES))
    machine = HostMachine(program, schedule, given)
    logits = checked(machine, runs=2)
    assert check_alone(machine, logits, config, family, shape, HostMachine) == [0, 7]
    logits[7, 3] = np.nextafter(logits[7, 3], 9, dtype=np.float32)
    with pytest.raises(SystemExit, match="row 7 has other bits alone"):
        check_alone(machine, logits, config, family, shape, HostMachine)


def test_runs_that_differ_or_are_not_finite_are_told() -> None:
    class Machine:
        def __init__(self, step: Callable[[np.ndarray, int], object]) -> None:
            self.tensors = {"logits": np.zeros((1, 4), np.float32)}
            self._step, self._count = step, 0

        def poison(self) -> None:
            self.tensors["logits"][...] = np.nan

        def step(self) -> None:
            self._count += 1
            self._step(self.tensors["logits"], self._count)

    assert checked(Machine(lambda x, n: x.fill(1))).tolist() == [[1, 1, 1, 1]]
    with pytest.raises(SystemExit, match="differ"):
        checked(Machine(lambda x, n: x.fill(n // gpu_decode.RUNS)))
    with pytest.raises(SystemExit, match="not finite"):
        checked(Machine(lambda x, n: None))


def test_lengths_are_read() -> None:
    assert lengths_of("204800,500x7") == [204800] + [500] * 7
    for wrong in ("", "0", "5x0", "5xx", "five", "5,-1"):
        with pytest.raises(UserError, match="no length"):
            lengths_of(wrong)


def test_pages_are_dealt_to_one_sequence_alone_and_bytes_are_counted() -> None:
    lengths = [1000, 65, 1]
    config, family = parse_config(FIELDS), family_of(FIELDS)
    shape = shape_of(lengths)
    graph = family.build(config, shape)
    given = step_inputs(graph, shape, config.vocab, lengths)
    for name in ("page_table", "window_page_table"):
        table = given[name]
        used = [table[row, : -(-length // PAGE)] for row, length in enumerate(lengths)]
        assert sorted(np.concatenate(used)) == list(range(16 + 2 + 1))
    assert given["rows"].tolist() == [[0, 999], [1, 64], [2, 0]]
    assert gpu_decode.said(lengths) == "batch 3, ragged: 1 of 1000, 1 of 65, 1 of 1"
    key = 2 * 2 * 64  # of a layer: keys and values, bfloat16
    layers = 4  # the last sees everything
    seen = [min(n, WINDOW) * (layers - 1) + n for n in lengths]
    none = read_bytes(graph, config, [0, 0, 0])
    assert read_bytes(graph, config, lengths) - none == key * sum(seen)


@pytest.mark.usefixtures("host")
def test_every_way_to_choose_is_set_and_greedy_choices_are_the_same() -> None:
    config, family = parse_config(FIELDS), family_of(FIELDS)

    def hold(graph: Graph) -> dict[str, Any]:
        kept = tiny.held(graph, 9, np.random.default_rng(1))
        return {name: array for name, array in kept.items() if name != "tally"}

    plain, whole = gpu_sampling.machines(
        config, family, [9, 3, *[1] * 6], 2, 60000, HostMachine, hold
    )
    gpu_sampling.check_same(plain, whole)
    whole.tensors["tokens"][0] += 1
    with pytest.raises(SystemExit, match="choose other tokens"):
        gpu_sampling.check_same(plain, whole)
    samples = {gpu_sampling.ONLY: [1e-3]}
    for way, draw in gpu_sampling.WAYS.items():
        gpu_sampling.set_way(whole, draw)
        whole.poison()
        whole.step()
        assert (whole.tensors["next"] >= 0).all(), way
        assert (whole.tensors["ids"][0, 0] >= 0) == (draw.told is not None)
        samples[way] = [1.1e-3]
    report = {"gpu": "a GPU", "commit": "abc", "model": "a model"}
    text = gpu_sampling.table(report | {"runs": [{"batch": 8, "context": 9, "samples_s": samples}]})
    assert "1.000 ms |" in text and text.count("| +100 us, +10.0 %") == len(gpu_sampling.WAYS)


def test_what_the_host_does_for_a_step_is_timed(tmp_path: Path) -> None:
    synthesise("cohere2", "tiny", tmp_path / "m", "bf16", seed=1)
    config = tmp_path / "m" / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 9000})
    )
    model = load(str(tmp_path / "m"))
    with one_program():
        run = gpu_host.cost(model, CPU, 2, 2, 8192, steps=2)
    assert len(run["same_pages_us"]) == len(run["new_pages_us"]) == 2
    report = {"gpu": "a GPU", "cpu": "a CPU", "commit": "abc", "runs": [run]}
    assert "| 2 | 8192 |" in gpu_host.table(report)
    assert gpu_host.model_in(tmp_path / "long").config.context == gpu_host.LONGEST
