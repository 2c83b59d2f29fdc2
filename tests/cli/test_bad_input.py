"""What a user can get wrong ends in one paragraph, exit code 2, and an untouched folder."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from mkport.declare import RECORD
from mkport.machines.cuda.gpu import gpu

WAITS = RECORD["waits"]
Run = Callable[..., Result]


def _refused(result: Result, *named: str) -> None:
    """One paragraph on stderr that names everything it should; nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    text = " ".join(result.stderr.split())
    assert text.startswith("error: ") and "\n\n" not in result.stderr.strip()
    assert "Traceback" not in text
    for part in named:
        assert part in text, text


def _files(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*")}


@pytest.mark.parametrize("workers", [0, -1, 10_000])
@pytest.mark.parametrize("verb", ["run", "verify", "compose", "trace", "eval"])
def test_a_number_of_workers_that_cannot_be(
    mkport: Run, tiny_model: Path, tmp_path: Path, verb: str, workers: int
) -> None:
    out = {"compose": ["-o", tmp_path / "x.py"], "trace": ["-o", tmp_path]}.get(verb, [])
    before = _files(tmp_path)
    result = mkport(verb, "--model", tiny_model, "--workers", workers, *out)
    _refused(result, f"{workers} workers", "--workers")
    assert _files(tmp_path) == before


@pytest.mark.parametrize("workers", [0, 10_000])
def test_a_number_of_workers_that_cannot_check(mkport: Run, workers: int) -> None:
    args = ("check", "argmax", "--form", "step", "--dtype", "bf16", "--workers", workers)
    _refused(mkport(*args), f"{workers} workers", "--workers")


def test_a_model_directory_that_is_not_there(mkport: Run, tmp_path: Path) -> None:
    _refused(mkport("run", "--model", tmp_path / "none"), "none", "Give an existing")


def test_a_directory_that_holds_no_model(mkport: Run, tmp_path: Path) -> None:
    _refused(mkport("run", "--model", tmp_path), "config.json")


def test_a_truncated_safetensors_file(mkport: Run, tiny_model: Path, tmp_path: Path) -> None:
    file = tiny_model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    out = tmp_path / "kernel.py"
    _refused(mkport("compose", "--model", tiny_model, "-o", out), "model.safetensors", "cut short")
    assert not out.exists()


def test_a_truncated_gguf_file(mkport: Run, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0")
    _refused(mkport("run", "--model", file), "model.gguf")


@pytest.mark.parametrize(
    ("field", "value"), [("model_type", "no_such"), ("hidden_act", "relu"), ("novel_field", 3)]
)
def test_a_config_nobody_implements(
    mkport: Run, tiny_model: Path, field: str, value: object
) -> None:
    file = tiny_model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    _refused(mkport("run", "--model", tiny_model), field.replace("_type", ""), str(value))


@pytest.mark.parametrize("args", [("run", "--model"), ("verify", "--model"), ("inspect",)])
def test_a_dtype_nobody_knows(mkport: Run, tiny_model: Path, args: tuple[str, ...]) -> None:
    _refused(mkport(*args, tiny_model, "--dtype", "fp8"), "'fp8'", "bf16")


def test_a_prompt_longer_than_the_context(mkport: Run, tiny_model: Path) -> None:
    result = mkport("run", "x" * 40, "--raw", "--model", tiny_model, "--context", 32)
    _refused(result, "position 40", "32 positions", "Shorten")


def test_an_empty_prompt(mkport: Run, tiny_model: Path) -> None:
    _refused(mkport("run", "-", "--raw", "--model", tiny_model, input=""), "prompt is empty")


def test_a_prompt_that_is_not_text(tiny_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkport", "run", "-", "--model", str(tiny_model)],
        input=b"\xff\xfe\xfd",
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"},
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: The prompt on stdin is not UTF-8")


def test_a_system_message_without_a_chat(mkport: Run, tiny_model: Path) -> None:
    result = mkport("run", "x", "--raw", "--system", "y", "--model", tiny_model)
    _refused(result, "--system", "--raw")


def test_a_chat_without_a_template(mkport: Run, tiny_model: Path) -> None:
    (tiny_model / "tokenizer_config.json").unlink()
    _refused(mkport("run", "x", "--chat", "--model", tiny_model), "chat template")


def test_a_cache_that_cannot_be_written(
    mkport: Run, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("MKPORT_CACHE_DIR", str(tmp_path / "a_file" / "cache"))
    _refused(mkport("run", "x", "--model", tiny_model), "a_file/cache", "MKPORT_CACHE_DIR")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["no_such_op"], ["no_such_op"]),
        (["gemm", "gem"], ["'gem'", "did you mean", "gemm"]),
        (["--form", "liquid"], ["'liquid'", "standalone"]),
        (["--machine", "tpu"], ["'tpu'", "cpu, host, cuda"]),
        (["--dtype", "int4"], ["'int4'", "bf16"]),
        (["layernorm", "--form", "nothing"], ["'nothing'"]),
    ],
)
def test_a_check_of_what_is_not_there(mkport: Run, args: list[str], named: list[str]) -> None:
    _refused(mkport("check", *args), *named)


@pytest.mark.parametrize("op", ["rmsnorm", "topk"])  # the second oracle names torch itself
def test_a_check_without_torch(mkport: Run, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if "oracle" in name]:
        monkeypatch.delitem(sys.modules, name)
    args = ("check", op, "--form", "standalone", "--dtype", "f32")
    _refused(mkport(*args), "PyTorch", "pip install", "[oracle]'")


def test_a_check_without_a_gpu(mkport: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    gpu.cache_clear()
    _refused(mkport("check", "gemm", "--machine", "cuda"), "No GPU was found", "CuPy", "[cuda13]'")


def test_a_host_check_without_a_compiler(mkport: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mkport.machines.host.build.compiler", lambda: None)
    _refused(mkport("check", "gemm", "--machine", "host"), "g++", "CXX")


@pytest.mark.parametrize(("target", "name"), [("cpu", "x.cu"), ("cuda", "x.py")])
def test_a_file_named_as_another_target_s(
    mkport: Run, tiny_model: Path, tmp_path: Path, target: str, name: str
) -> None:
    before = _files(tmp_path)
    args = ("compose", "--model", tiny_model, "--target", target, "-o", tmp_path / name)
    _refused(mkport(*args), name, f"the target is {target}", "give --target")
    assert _files(tmp_path) == before


def test_a_target_nobody_knows(mkport: Run, tmp_path: Path) -> None:
    result = mkport("compose", "--target", "tpu", "-o", tmp_path / "x")
    _refused(result, "'tpu'", "cpu", "cuda")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(mkport: Run, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "no_folder" / "kernel.py"
    _refused(mkport("compose", "--model", tiny_model, "-o", out), "no_folder/kernel.py", "folder")


def test_a_result_that_cannot_be_written_is_refused_before_the_measuring(
    mkport: Run, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mkport.engine.load.load", None)
    out = tmp_path / "no_folder" / "result.json"
    _refused(mkport("bench", "--model", tiny_model, "-o", out), "no_folder/result.json", "folder")
    _refused(mkport("bench", "--model", tiny_model, "-o", tmp_path), str(tmp_path), "is a folder")


@pytest.mark.parametrize(
    ("args", "named"), [(["--workers", 0], "0 workers"), (["--model", "nowhere"], "nowhere")]
)
def test_the_demo_refuses_before_its_checks(
    mkport: Run,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[object],
    named: str,
) -> None:
    monkeypatch.setattr("mkport.cli.stages.standalone", None)
    _refused(mkport("demo", "--model", tiny_model, "-o", tmp_path / "out", *args), named)


@pytest.mark.parametrize("verb", ["trace", "demo"])
def test_a_folder_that_is_a_file(mkport: Run, tiny_model: Path, tmp_path: Path, verb: str) -> None:
    (tmp_path / "out").touch()
    result = mkport(verb, "--model", tiny_model, "-o", tmp_path / "out")
    _refused(result, "Cannot make the folder", "out")


def test_more_steps_than_the_context_holds(mkport: Run, tiny_model: Path, tmp_path: Path) -> None:
    result = mkport("trace", "--model", tiny_model, "--steps", 1000, "-o", tmp_path / "out")
    _refused(result, "1000 steps", "128 positions")


@pytest.mark.parametrize(
    ("content", "named"), [(None, "No such file"), (b"\xff\xfe", "UTF-8"), (b"a", "at least two")]
)
def test_a_text_that_cannot_be_evaluated(
    mkport: Run, tiny_model: Path, tmp_path: Path, content: bytes | None, named: str
) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    args = ("eval", "--model", tiny_model, "--text", text, "--window", 64)
    _refused(mkport(*args), named)


def test_a_window_longer_than_the_context(mkport: Run, tiny_model: Path) -> None:
    _refused(mkport("eval", "--model", tiny_model, "--window", 129), "129 tokens", "128")


def test_a_full_size_checkpoint(mkport: Run, tmp_path: Path) -> None:
    result = mkport("synth", "--family", "cohere2_moe", "--size", "full", "-o", tmp_path / "x")
    _refused(result, "python -m mkport.engine.bench.gpu_decode", "--size small")
    assert importlib.util.find_spec("mkport.engine.bench.gpu_decode")
    assert not (tmp_path / "x").exists()


def test_a_schedule_file_and_a_model_at_once(mkport: Run, tiny_model: Path) -> None:
    _refused(mkport("verify", "x.json", "--model", tiny_model), "not both")


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda text: text[:-40], ["schedule.json", "not JSON", "line"]),
        (lambda text: text.replace("mkport-schedule-1", "mkport-schedule-9"), ["schedule-9"]),
        (lambda text: text.replace('"ops": ["embed"', '"ops": ["embad"'), ["'embad'", "unknown"]),
        (lambda text: _edit_record(text, 0, 99), ["record 0", "opcode"]),
        (lambda text: _edit_record(text, WAITS.first + 1, 999), ["waits for 999", "wait for ever"]),
        (lambda text: _edit_record(text, 0, "x"), ["record 0 of worker 0", "word 0 (op)", "'x'"]),
    ],
)
def test_a_schedule_edited_by_hand(
    mkport: Run,
    tiny_model: Path,
    tmp_path: Path,
    edit: Callable[[str], str],
    named: list[str],
) -> None:
    file = tmp_path / "schedule.json"
    args = ("compose", "--model", tiny_model, "-o", tmp_path / "k.py", "--schedule", file)
    assert mkport(*args, "--workers", 2).exit_code == 0
    file.write_text(edit(file.read_text()))
    _refused(mkport("verify", file), *named)


def _edit_record(text: str, word: int, value: object) -> str:
    """Changes a word of the first record of worker 0 that waits (word 0: of the first record)."""
    content = json.loads(text)
    records = content["lists"][0]
    record = records[0] if word == 0 else next(r for r in records if r[WAITS.first] >= 0)
    record[word] = value
    return json.dumps(content)


def test_an_error_in_json(mkport: Run, tmp_path: Path) -> None:
    result = mkport("run", "--json", "--model", tmp_path / "none")
    assert result.exit_code == 2
    assert "none" in json.loads(result.stdout)["error"]


@pytest.mark.parametrize("verb", ["compose", "verify", "trace"])
def test_more_sequences_than_a_step_takes(
    mkport: Run, tiny_model: Path, tmp_path: Path, verb: str
) -> None:
    out = [] if verb == "verify" else ["-o", tmp_path / "out"]
    result = mkport(verb, "--model", tiny_model, "--batch", 65, *out)
    assert result.exit_code == 2
    assert "--batch" in result.stderr and "64" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["verify", "--batch", "x"], "--batch"),
        (["verify", "--no-such-option"], "--no-such-option"),
        (["run", "--max-tokens"], "--max-tokens"),
        (["compose"], "--out"),
        (["no_such_verb"], "no_such_verb"),
    ],
)
def test_wrong_use_in_json(mkport: Run, args: list[str], named: str) -> None:
    result = mkport(args[0], "--json", *args[1:])
    assert (result.exit_code, result.stderr) == (2, "")
    assert named in json.loads(result.stdout)["error"]
    assert mkport(*args).stdout == ""  # without --json it is click's own text on stderr
    assert mkport(args[0], "--", "--json", *args[1:]).stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("args", [["list"], ["list", "--json"], ["learn", "list"], ["--help"]])
def test_a_full_disk_behind_stdout(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mkport", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: The output cannot be written (No space left on device)")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_closed_stdin(tiny_model: Path) -> None:
    code = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", code, "-m", "mkport", "run", "-", "--model", str(tiny_model)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: The prompt - is read from stdin, which is closed")


def test_a_character_that_stdout_lacks() -> None:
    code = "from mkport.cli import main\nmain.app = lambda: print('a\\u2192b')\nmain.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (0, b"a?b\n"), done.stderr
