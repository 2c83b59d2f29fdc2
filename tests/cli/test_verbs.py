"""Each verb does its work on a small random model, says it as text and as JSON, and exits right."""

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from mkport.cli import check as check_verb
from mkport.cli.stages import Outcome, brought
from mkport.declare import RECORD, Op
from mkport.extras import install
from mkport.library import all_ops, find_op
from mkport.machines.host.build import compiler
from mkport.models.llama import LlamaConfig
from mkport.plan.file import load_schedule
from mkport.testing import Verdict
from mkport.testing.law import Measured
from mkport.testing.reference import judge_logits
from mkport.testing.suite import Unit, units
from mkport.trace import Trace

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


def test_list_tells_the_forms(mkport: Run) -> None:
    (gemm,) = [e for e in json.loads(mkport("list", "--json").stdout) if e["op"] == "gemm"]
    assert gemm["standalone"] and gemm["oracle"] and gemm["cpu"]
    assert gemm["ladder"] == ["1_naive", "2_tiled"]
    assert "ladder of 2" in mkport("list").stdout


def test_list_tells_an_op_that_is_named_in_full(mkport: Run) -> None:
    order = find_op("argmax").order
    assert order in mkport("list", "argmax").stdout and order not in mkport("list").stdout
    (named,) = json.loads(mkport("list", "argmax", "--json").stdout)
    assert (named["op"], named["order"]) == ("argmax", order)
    assert mkport("list", "argmx").exit_code == 2


def test_check_holds_an_op_to_its_oracle(mkport: Run) -> None:
    args = ("check", "argmax", "--form", "standalone", "--dtype", "f32")
    done = mkport(*args, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["ok"] and found["failed"] == 0
    assert {v["form"] for v in found["verdicts"]} == {"standalone"}
    assert "argmax" in mkport(*args).stdout


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
def test_check_runs_the_cuda_source_on_the_host_machine(mkport: Run) -> None:
    forms = ("standalone", "ported", "solo")
    named = [part for form in forms for part in ("--form", form)]
    args = ("check", "argmax", "select", "--machine", "host", "--dtype", "f32", *named)
    found = json.loads(mkport(*args, "--json").stdout)
    assert found["ok"] and found["machine"] == "host" and found["left_out"] == {}
    assert {(v["machine"], v["form"]) for v in found["verdicts"]} == {("host", f) for f in forms}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
def test_forms_that_a_machine_lacks_are_left_out_by_name(
    mkport: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    argmax = find_op("argmax")
    for file in ("oracle.py", "standalone.py", "standalone.cu"):
        (tmp_path / file).write_bytes((argmax.folder / file).read_bytes())
    monkeypatch.setattr(check_verb, "find_op", lambda name, ops: replace(argmax, folder=tmp_path))
    args = ("check", "argmax", "--machine", "host", "--dtype", "f32", "--form", "solo")
    done = mkport(*args, "--form", "standalone")
    assert done.exit_code == 0, done.output
    assert "left out, not on the host machine: solo of argmax" in done.stdout
    refused = mkport(*args)
    assert refused.exit_code == 2
    assert "the host machine lacks solo of argmax" in " ".join(refused.stderr.split())


def test_a_failed_check_exits_1_and_says_where(
    mkport: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Verdict("argmax", "cpu", "ported", "wide", "f32", 0.0, 0.0, True, "worst y[0]", 0.1)
    bad = replace(good, shape="ragged", same_bits=False, detail="bits differ first at y[3]")

    def fake(unit: Unit, library: object, workers: int) -> list[Verdict]:
        return [good, bad]

    monkeypatch.setattr(check_verb, "run_unit", fake)
    args = ("check", "argmax", "--form", "ported", "--dtype", "f32")
    done = mkport(*args)
    assert done.exit_code == 1
    assert "FAILED" in done.stdout and "'ragged'" in done.stdout and "y[3]" in done.stdout
    assert "1 of 2 checks passed" in done.stdout
    found = json.loads(mkport(*args, "--json").stdout)
    assert (found["ok"], found["failed"]) == (False, 1)


def test_compose_writes_a_program_and_a_schedule_that_verifies(
    mkport: Run, tiny_model: Path, tmp_path: Path
) -> None:
    kernel, schedule = tmp_path / "kernel.py", tmp_path / "schedule.json"
    args = ("--model", tiny_model, "--workers", 3, "--batch", 2, "--context", 100)
    done = mkport("compose", *args, "-o", kernel, "--schedule", schedule, "--json")
    assert done.exit_code == 0
    ast.parse(kernel.read_text())
    assert json.loads(done.stdout)["lines"] == len(kernel.read_text().splitlines())
    reports = [
        json.loads(mkport("verify", *given, "--json").stdout) for given in ([schedule], list(args))
    ]
    for report in reports:
        assert report.pop("seconds") > 0
    assert reports[0] == reports[1]
    assert reports[0]["workers"] == 3
    assert mkport("verify", schedule).stdout.startswith("safe: ")


def test_compose_writes_a_cuda_file_and_a_schedule_that_verifies(
    mkport: Run, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    kernel, schedule = tmp_path / "kernel.cu", tmp_path / "schedule.json"
    args = ("--target", "cuda", "--model", tiny_model, "--batch", 2, "--context", 100)
    done = mkport("compose", *args, "-o", kernel, "--schedule", schedule, "--workers", 3, "--json")
    assert done.exit_code == 0, done.output
    found, source = json.loads(done.stdout), kernel.read_text()
    assert (found["workers"], found["target"]) == (3, "cuda")
    assert "megakernel(" in source and "up to 2 rows" in source
    for op in map(find_op, found["ops"]):
        assert not op.args or (op.folder / "task.cuh").read_text() in source
    assert mkport("verify", schedule).stdout.startswith("safe: ")
    run = slice(RECORD["run"].first, RECORD["run"].end)
    runs = np.concatenate(load_schedule(schedule, all_ops()).lists)[:, run]
    assert {int(stride) for _, stride, count in runs if count > 1} == {3}
    assert json.loads(mkport("compose", *args, "-o", kernel, "--json").stdout)["workers"] == 132


def test_trace_writes_its_files_and_tells_the_waiting(
    mkport: Run, tiny_model: Path, tmp_path: Path
) -> None:
    args = ("trace", "--model", tiny_model, "--steps", 2, "--workers", 2, "--batch", 2)
    done = mkport(*args, "-o", tmp_path / "new" / "out", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {Path(file).name for file in found["files"]} == {
        "timeline.png",
        "timeline.svg",
        "trace.json",
        "times.json",
    }
    assert all(Path(file).stat().st_size for file in found["files"])
    trace = Trace.load(tmp_path / "new" / "out" / "times.json")
    assert trace.workers == 2 and trace.tasks == found["summary"]["tasks"]
    assert "measured on" in trace.caption and "batch 2" in trace.caption
    assert ("layer 1 / o_proj", "gemm") in trace.nodes
    assert "waiting before it" in mkport(*args, "-o", tmp_path).stdout


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were not installed."""
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_trace_without_matplotlib_writes_all_but_the_pictures(
    mkport: Run, tiny_model: Path, tmp_path: Path, no_matplotlib: None
) -> None:
    out = tmp_path / "out"
    args = ("trace", "--model", tiny_model, "--steps", 2, "--workers", 2, "-o", out)
    done = mkport(*args)
    assert done.exit_code == 0, done.output
    assert "waiting before it" in done.stdout and install("plot") in done.stdout
    assert {path.name for path in out.iterdir()} == {"trace.json", "times.json"}
    found = json.loads(mkport(*args, "--json").stdout)
    assert {Path(file) for file in found["files"]} == set(out.iterdir())
    assert install("plot") in found["note"]


def test_the_demo_without_matplotlib_says_how_to_get_the_pictures(
    mkport: Run,
    tiny_model: Path,
    tmp_path: Path,
    no_matplotlib: None,
    one_unit: None,
    ported_file: None,
) -> None:
    done = mkport("demo", "Hi", "--model", tiny_model, "-o", tmp_path / "out", "--max-tokens", 1)
    assert done.exit_code == 0, done.output
    assert "8 ok" in done.stdout and install("plot") in done.stdout
    assert (tmp_path / "out" / "trace.json").exists()


def test_run_streams_the_text_and_keeps_the_rest_on_stderr(mkport: Run, tiny_model: Path) -> None:
    args = ("--model", tiny_model, "--max-tokens", 5, "--context", 100)
    found = json.loads(mkport("run", "Hi", *args, "--json").stdout)
    assert found["generation"]["reason"] in ("length", "stop")
    assert found["dtype"] == "bf16"
    done = mkport("run", "Hi", *args)
    assert done.exit_code == 0
    assert done.stdout == found["generation"]["text"] + "\n"
    assert "prompt tokens" in done.stderr and "tokens/s" in done.stderr


def test_run_reads_stdin_and_uses_the_template_unless_told_not_to(
    mkport: Run, tiny_model: Path
) -> None:
    args = ("--model", tiny_model, "--max-tokens", 1, "--json")

    def prompt_tokens(*more: object, **given: str) -> int:
        found = json.loads(mkport("run", *more, *args, **given).stdout)
        return int(found["generation"]["prompt_tokens"])

    chat = len("user: Hi\nassistant:")
    assert prompt_tokens("-", input="Hi") == chat
    assert prompt_tokens("Hi", "--chat") == chat
    assert prompt_tokens("Hi", "--system", "S") == chat + len("system: S\n")
    assert prompt_tokens("Hi", "--raw") == 2
    (tiny_model / "tokenizer_config.json").unlink()
    assert prompt_tokens("Hi") == 2


def test_run_imports_neither_torch_nor_transformers(tiny_model: Path) -> None:
    code = (
        "import sys\n"
        "from mkport.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))\n"
    )
    args = ["run", "Hi", "--model", str(tiny_model), "--max-tokens", "2"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n[]\n")


def test_eval_measures_a_text(mkport: Run, tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat " * 4)
    args = ("eval", "--model", tiny_model, "--text", text, "--window", 32)
    found = json.loads(mkport(*args, "--json").stdout)
    assert found["result"]["windows"] == 3
    assert found["result"]["predicted"] == 92 - 3
    assert 2 < found["result"]["perplexity"] < 1e6
    assert f"perplexity {found['result']['perplexity']:.4f}" in mkport(*args).stdout


@pytest.fixture
def ported_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's CUDA file is taken as ported: a test of its own looks at that stage."""
    monkeypatch.setattr("mkport.cli.stages.brought", lambda folder: Outcome("ok", "ported"))


def test_the_demo_s_kernels_are_not_read_without_what_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = brought(tmp_path / "ops")
    assert outcome.verdict == "skipped" and install("port") in outcome.text
    assert not list(tmp_path.iterdir())


def test_the_demo_s_kernels_are_ported_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mkport.cli.stages.compiler", lambda: None)
    outcome = brought(tmp_path / "ops")
    assert outcome.verdict == "ok" and "no C++ compiler" in outcome.text
    for kernel in ("linear", "softmax"):
        assert f"{kernel}: 2 lines changed or gone, 2 in their place" in outcome.text
    assert 'op = "softmax"' in (tmp_path / "ops" / "demo.toml").read_text()


@pytest.fixture
def one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo checks one op, not all: the others have tests of their own."""

    def first(ops: list[Op], forms: list[str], dtypes: list[str]) -> list[Unit]:
        return units(ops[:1], ["standalone"], dtypes)

    monkeypatch.setattr("mkport.cli.stages.units", first)


def test_the_demo_goes_the_whole_way(
    mkport: Run, tiny_model: Path, tmp_path: Path, one_unit: None
) -> None:
    out = tmp_path / "out"
    args = ("demo", "Hi", "--model", tiny_model, "-o", out, "--max-tokens", 4)
    done = mkport(*args, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [s["outcome"]["verdict"] for s in found["stages"]] == ["ok"] * 8
    for stage in found["stages"]:
        assert all(Path(file).exists() for file in stage["outcome"]["files"])
    assert "-def gemm" in (out / "diffs" / "gemm.diff").read_text()
    assert "mk_port_shared" in (out / "cuda" / "ops" / "softmax" / "task.cuh").read_text()
    if compiler() is not None:
        assert "has the bits of their launches" in found["stages"][2]["outcome"]["text"]
    text = mkport(*args).stdout
    assert "8 stages" in text and "8 ok" in text and "> Hi" in text


def test_the_demo_says_what_it_skips_without_torch(
    mkport: Run,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ported_file: None,
) -> None:
    found = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> object:
        return None if name == "torch" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    args = ("demo", "Hi", "--model", tiny_model, "-o", tmp_path, "--max-tokens", 4)
    done = mkport(*args)
    assert done.exit_code == 0, done.output
    assert install("oracle") in done.stdout
    assert "6 ok, 2 skipped" in done.stdout


def test_the_demo_exits_1_when_a_stage_fails(
    mkport: Run,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_unit: None,
    ported_file: None,
) -> None:
    def shifted(
        config: LlamaConfig, weights: Any, ids: list[int], cache: str, got: np.ndarray
    ) -> Measured:
        return judge_logits(config, weights, ids, cache, got + 1)

    monkeypatch.setattr("mkport.cli.stages.judge_logits", shifted)
    args = ("demo", "Hi", "--model", tiny_model, "-o", tmp_path, "--max-tokens", 4)
    done = mkport(*args)
    assert done.exit_code == 1
    assert "FAILED" in done.stdout and "7 ok, 1 FAILED" in done.stdout


def test_the_prompt_may_come_from_the_environment(
    mkport: Run,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_unit: None,
    ported_file: None,
) -> None:
    monkeypatch.setenv("PROMPT", "Ho")
    args = ("demo", "--model", tiny_model, "-o", tmp_path, "--max-tokens", 1)
    assert "> Ho" in mkport(*args).stdout
