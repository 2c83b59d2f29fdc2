"""How the command line behaves whatever the verb: help, exit codes, errors as text and as JSON."""

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from mkport.cli import main, output
from mkport.errors import UserError

ROOT = Path(__file__).parents[2]
MESSAGE = "The folder models/none is not there. " * 6


def _mkport(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkport", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.fixture
def run_verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs doctor's place in the table with the body given: `run_verb(body, "--json")`."""

    def run(body: Callable[[bool], None], *args: str) -> Result:
        module = types.ModuleType("a_verb")

        def command(as_json: output.JsonFlag = False) -> None:
            body(as_json)

        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_verb", module)
        monkeypatch.setitem(main.VERBS, "doctor", main.Verb("a_verb", main.LOOK, "A verb."))
        return CliRunner().invoke(main.app, ["doctor", *args])

    return run


def _refuse(as_json: bool) -> None:
    raise UserError(MESSAGE)


def test_help_lists_every_verb_under_its_heading() -> None:
    done = _mkport("--help")
    assert done.returncode == 0
    for name, verb in main.VERBS.items():
        assert f" {name} " in done.stdout
        assert verb.panel in done.stdout


@pytest.mark.parametrize("name", main.VERBS)
def test_every_verb_has_help_and_json(name: str) -> None:
    done = CliRunner().invoke(main.app, [name, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    command = main._load(name)
    texts = [command.help, *(getattr(param, "help", None) for param in command.params)]
    for bracket in re.findall(r"\[.*?\]", " ".join(filter(None, texts))):
        assert bracket in done.stdout, "brackets of help are read as colours, and are lost"
    assert "--json" in done.output


@pytest.mark.parametrize("args", [["nonsense"], ["doctor", "--nonsense"], ["--nonsense"]])
def test_wrong_use_exits_2_without_a_traceback(args: list[str]) -> None:
    done = _mkport(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_verb_is_answered_with_the_verb() -> None:
    assert "'doctor'" in _mkport("docto").stderr


def test_a_users_mistake_is_one_paragraph(run_verb: Callable[..., Result]) -> None:
    done = run_verb(_refuse)
    assert done.exit_code == 2
    assert done.stdout == ""
    lines = done.stderr.strip().split("\n")
    assert lines[0].startswith("error: The folder")
    assert len(lines) > 1
    assert max(map(len, lines)) <= 100
    assert " ".join(lines) == "error: " + MESSAGE.strip()


def test_a_users_mistake_is_one_json_document(run_verb: Callable[..., Result]) -> None:
    done = run_verb(_refuse, "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout) == {"error": MESSAGE.strip()}
    assert done.stderr == ""


def test_the_process_itself_exits_2_without_a_traceback(tmp_path: Path) -> None:
    code = (
        "import sys, mkport.doctor\n"
        "from mkport.errors import UserError\n"
        "from mkport.cli.main import main\n"
        "def refuse(): raise UserError('No such thing.')\n"
        "mkport.doctor.examine = refuse\n"
        "sys.argv = ['mkport', 'doctor']; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: No such thing.\n")


def test_an_interrupt_exits_130(run_verb: Callable[..., Result]) -> None:
    def interrupt(as_json: bool) -> None:
        raise KeyboardInterrupt

    assert run_verb(interrupt).exit_code == 130


def test_a_failed_verb_exits_1(run_verb: Callable[..., Result]) -> None:
    def fail(as_json: bool) -> None:
        raise typer.Exit(1)

    assert run_verb(fail).exit_code == 1


def test_a_bug_keeps_its_traceback(run_verb: Callable[..., Result]) -> None:
    def crash(as_json: bool) -> None:
        raise RuntimeError("a bug")

    assert isinstance(run_verb(crash).exception, RuntimeError)


def test_results_of_any_kind_become_json(run_verb: Callable[..., Result]) -> None:
    import numpy as np

    @dataclass
    class Finding:
        where: Path
        error: float
        counts: np.ndarray
        exact: np.bool_

    finding = Finding(Path("a/b"), float("nan"), np.arange(2), np.bool_(True))
    done = run_verb(lambda as_json: output.emit([finding], as_json, lambda console: None), "--json")
    expected = [{"where": "a/b", "error": "nan", "counts": [0, 1], "exact": True}]
    assert json.loads(done.stdout) == expected


def test_text_is_rendered_where_json_is_not_asked_for(run_verb: Callable[..., Result]) -> None:
    done = run_verb(lambda as_json: output.emit(1, as_json, lambda console: console.print("one")))
    assert done.stdout == "one\n"


def test_progress_leaves_stdout_alone(run_verb: Callable[..., Result]) -> None:
    def work(as_json: bool) -> None:
        with output.progress("counting", total=2) as advance:
            advance(1)
            advance(1)

    done = run_verb(work)
    assert (done.exit_code, done.stdout) == (0, "")
