"""What the GPU benchmark compares with is right, and so is what it prints; no GPU needed."""

import json
import os
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.engine.bench.gpu_contestants import TooLong, arguments, timed, within
from mkport.engine.bench.gpu_law import first_layers
from mkport.engine.bench.gpu_report import draw, table
from mkport.engine.bench.gpu_serving.page import page
from mkport.engine.bench.torch_step import TorchStep, kinds
from mkport.engine.decoder import Decoder
from mkport.engine.load import load
from mkport.engine.synth import synthesise
from mkport.machines.cpu.memory import NUMPY
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import TINY, config_of
from mkport.models.step import StepShape
from mkport.plan import flagged_for
from tests.engine.checkpoints import one_program

REPORT: dict[str, Any] = {
    "model": "a model", "context": 64, "gpu": "a GPU", "commit": "abc", "versions": {"x": "1"},
    "read_bytes_per_s": 4e12, "datasheet_bytes_per_s": 5e12,
    "batches": [
        {
            "batch": 2, "nbytes": 1e9, "chained_s": 4e-3,
            "samples": {"megakernel": [5e-4, 4e-4, 6e-4], "PyTorch": [1e-3, 1e-3, 1e-3]},
            "shares": {
                "megakernel": {"of_measured_read": 0.5, "of_datasheet": 0.4},
                "PyTorch": {"of_measured_read": 0.25, "of_datasheet": 0.2},
            },
            "verdicts": {
                "megakernel": {
                    "same_bits_in_runs": 4, "ok": True, "layers": 3, "error": 0.1, "allowed": 0.2,
                },
                "PyTorch": {"finite": True},
            },
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name in ("cohere2_moe", "qwen3_moe") else pytest.mark.slow)
        for name in TINY
    ],
)
def test_the_plain_step_is_the_cpu_machine_s(tmp_path: Path, family: str) -> None:
    """Its float32 run, on the machine's own tensors, with a cache that a prompt has filled."""
    import torch

    synthesise(family, "tiny", tmp_path / "model", "bf16", seed=3)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 288, 40)]
    with (
        one_program(),
        Decoder(load(str(tmp_path / "model")), batch=2, context=40, page=16) as decoder,
    ):
        for sequence in range(2):
            decoder.prefill(sequence, ids[sequence : 39 + sequence])
        rows = [(0, 39, 7), (1, 39, 9)]
        _, logits = decoder.step(rows, [0, 1])
        step = TorchStep(decoder.model.config, decoder.machine.tensors, 2, 40)
        with torch.no_grad():
            margins: list[Any] = []
            plain = step.run(torch.float32, margins=margins).numpy()
            rough = step.run(torch.bfloat16, form="gathered").float().numpy()
        assert np.abs(plain - logits).max() < 1e-3 * np.abs(logits).max()
        assert (plain.argmax(1) == logits.argmax(1)).all()
        assert np.abs(rough - plain).max() < 0.1 * np.abs(plain).max()
        sparse = {"cohere2_moe": 4, "mixtral": 2, "qwen3_moe": 2}
        assert len(margins) == sparse.get(family, 0)
        assert all((lead > 0).all() and lead.shape == (2,) for lead in margins)


def test_the_table_says_what_was_measured_and_compared() -> None:
    text = table(REPORT)
    assert (
        "| 2 | megakernel | 0.500 | 4000 | 40 % | 50 % | 1.00 | 4 runs, same bits, lawful in"
        in text
    )
    assert "read by the host: 500 tokens/s at batch 2." in text
    assert "lawful in 3 layers (1.0e-01 of 2.0e-01)" in text and "NOT" not in text
    wrong = REPORT["batches"][0]["verdicts"]["megakernel"] | {"ok": False}
    batch = REPORT["batches"][0] | {"verdicts": {"megakernel": wrong, "PyTorch": {"finite": False}}}
    assert "NOT LAWFUL" in table(REPORT | {"batches": [batch]})
    assert "NOT FINITE" in table(REPORT | {"batches": [batch]})


def test_a_contestant_that_is_missing_is_told_and_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = deepcopy(REPORT)
    report["batches"].append(deepcopy(REPORT["batches"][0]) | {"batch": 4})
    del report["batches"][0]["samples"]["PyTorch"]
    report["batches"][0]["verdicts"]["PyTorch"] = {"absent": "not compiled in 40 s"}
    assert "At batch 2, PyTorch is missing: not compiled in 40 s." in table(report)
    draw(report, tmp_path / "picture.svg")
    assert "PyTorch" in (tmp_path / "picture.svg").read_text()


def test_contestants_take_turns_and_stop_in_time() -> None:
    order: list[str] = []

    def clock(run: str) -> float:
        order.append(run)
        time.sleep(0.01)
        return 1.0

    names = {name: name for name in "abc"}
    assert timed(names, 2, 60.0, clock) == {name: [1.0, 1.0] for name in "abc"}
    assert "".join(order) == "abc" + "abc" + "bca"  # one of each first
    samples = timed(names, 1000, 0.05, clock)
    assert 1 <= len(samples["a"]) < 10 and len(set(map(len, samples.values()))) == 1
    assert timed(names, 5, 0.0, clock)["c"] == [1.0]


def test_what_takes_too_long_is_ended() -> None:
    started = time.perf_counter()
    with pytest.raises(TooLong), within(0.05):
        while time.perf_counter() - started < 10:
            pass
    assert time.perf_counter() - started < 5
    with within(0.05):
        pass
    time.sleep(0.1)  # the alarm is off again


def test_the_law_on_random_weights_reads_no_files_of_models() -> None:
    """On a machine that has a GPU and little else."""
    code = "import sys; sys.modules['gguf'] = None; import mkport.engine.bench.gpu_law"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("family", list(TINY))
def test_the_law_s_model_is_the_first_layers(family: str) -> None:
    config = parse_config(config_of(family, "tiny"))
    cut = first_layers(config, 1)
    assert cut.layers == 1 and kinds(cut) == kinds(config)[:1]
    assert first_layers(config, 99) is config


@pytest.mark.parametrize("rows", [1, 4])
def test_kernels_one_by_one_have_the_machine_s_tensors_and_scratch_of_their_own(rows: int) -> None:
    """A step of few rows has other scratch than the one that kernels are launched for."""
    shape = StepShape(rows=rows, context=64, sequences=rows, logits=rows, stage=1 << 16)
    config, family = parse_config(TINY["qwen3_moe"]), family_of(TINY["qwen3_moe"])
    step = flagged_for(sampled(family.build(config, shape)), rows)
    plain = sampled(family.build(config, replace(shape, stage=0)))
    held = {name: np.zeros(s.shape, NUMPY[s.dtype]) for name, s in step.tensors.items()}
    calls = arguments(plain, held, rows, np.zeros)
    assert len(calls) == len(plain.nodes) > len(step.nodes) * (rows == 1)
    written: dict[str, Any] = {}
    for node, args in zip(plain.nodes, calls, strict=True):
        assert set(args) == {name for name, value in node.args.items() if value is not None}
        for arg in node.op.tensors:
            name = node.args[arg.name]
            if arg.name == "count":
                assert args["count"].tolist() == [rows]
            elif name is not None:
                assert args[arg.name] is written.setdefault(name, args[arg.name])
                assert args[arg.name] is held.get(name, args[arg.name])


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(REPORT, tmp_path / "picture.svg")
    assert "tokens a second" in (tmp_path / "picture.svg").read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--machine", "cpu"], "CPU's benchmark is"),
        (["--against", "abacus"], "There is no 'abacus'"),
        (["--random", "cohere2_moe/full"], "CuPy"),
    ],
)
def test_what_cannot_be_measured_is_refused(args: list[str], words: str) -> None:
    code = "import sys; from mkport.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", "decode", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if words == "CuPy" and done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert done.returncode == 2 and words in " ".join(done.stderr.split())


SERVED = Path(__file__).parents[2] / "docs" / "results" / "gpu_serving.json"


def test_the_page_of_a_serving_report_says_what_was_missed() -> None:
    report = json.loads(SERVED.read_text())
    full = report["runs"]["full"]
    report["runs"]["tiny"] = deepcopy(full)
    full["first_token"]["median_ms"], full["overhead_8"] = 300.0, 0.2
    full["beside_long"]["p99_more_ms"] = 10.0
    said = page(report)
    assert "first token after 300 ms" in said and "adds 20.0%" in said
    assert "to the p99 gap" not in said
    full["first_token"]["median_ms"], full["overhead_8"] = 200.0, -0.01
    report["runs"]["tiny"]["errors"] = {"seeded": "the tokens differ"}
    del report["runs"]["tiny"]["seeded"]
    said = page(report)
    assert "The tiny model: seeded failed." in said and "**Failed**: the same seed" in said


@pytest.mark.slow
def test_serving_is_measured_on_a_tiny_model(tmp_path: Path) -> None:
    """The whole script, without a GPU; what takes time to be seen may be missing in it."""
    command = [sys.executable, "-m", "mkport.engine.bench.gpu_serving", "--tiny", "--out", "."]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    report = json.loads((tmp_path / "gpu_serving.json").read_text())
    assert done.returncode == 0, done.stdout[-3000:]
    run = report["runs"]["tiny"]
    assert run["errors"] == {} and run["preempted"]["same"] == [True] * 4
    assert max(run["bare"]["keys_off"]["pieces of 40"]) < 1e-5
