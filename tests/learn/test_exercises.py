"""The gates of every exercise: the blank fails as it should, the solution passes, a slip shows."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mkport.cli import learn as verb
from mkport.errors import UserError
from mkport.learn import watch
from mkport.learn.catalogue import Exercise, exercises, find, recipes
from mkport.learn.child import examine, load
from mkport.learn.cut import MISSING, cut, solution
from mkport.learn.desk import PROGRESS, Desk
from mkport.learn.report import Report, Skipped, Wrong

ROOT = Path(__file__).parents[2]
ALL = exercises()
SECONDS = 5.0  # of processor time a check may take


@pytest.fixture(params=ALL, ids=lambda exercise: exercise.name)
def exercise(request: pytest.FixtureRequest) -> Exercise:
    """Each exercise."""
    found: Exercise = request.param
    return found


def _written(tmp_path: Path, exercise: Exercise, text: str) -> Path:
    file = tmp_path / exercise.solved.name
    file.write_text(text)
    return file


def test_there_are_enough_and_their_names_are_their_own() -> None:
    assert len(ALL) >= 30
    assert len({e.name for e in ALL}) == len({e.number for e in ALL}) == len(ALL)
    for exercise in ALL:
        assert find(exercise.name) is find(exercise.number) is exercise


def test_the_readme_counts_them_right() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"first of {len(ALL)} exercises" in text and f"{len(ALL)} exercises that are" in text
    assert f"the course: {len(recipes())} recipes" in text


def test_it_says_what_to_do_where_to_read_and_gives_a_hint(exercise: Exercise) -> None:
    assert exercise.title and exercise.task and len(exercise.hint) > 20
    assert exercise.read in exercise.recipe.headings
    siblings = [e.place for e in ALL if e.recipe == exercise.recipe]
    assert siblings == list(range(1, len(siblings) + 1))


def test_the_blank_says_that_it_is_one(exercise: Exercise, tmp_path: Path) -> None:
    text, blanks = cut(exercise.solved.read_text())
    assert blanks and "=== check" not in text and "WRONG" not in text
    file = _written(tmp_path, exercise, text)
    found = examine(exercise.judge, file)
    assert found["state"] == "blank" and MISSING in found["lines"][0]
    if file.suffix == ".cu":
        with suppress(Wrong, Skipped):  # it compiles, and then is wrong
            report = Report()
            load(exercise.judge, "mkport_learn_judge").check(file, report)
        assert not any("compile" in line for line in report.lines)
    if file.suffix == ".py":
        load(file, "mkport_learn_skeleton")
        assert examine(exercise.judge, file, look=False)["state"] == "blank"


def test_the_solution_passes_in_time(exercise: Exercise, tmp_path: Path) -> None:
    file = _written(tmp_path, exercise, solution(exercise.solved.read_text()))
    found = examine(exercise.judge, file)
    assert found["state"] in ("passed", "skipped"), found["lines"]
    assert found["state"] == "passed" or found["lines"][-1]  # the reason
    assert found["cpu_s"] < SECONDS


def test_a_mistake_is_found(exercise: Exercise, tmp_path: Path) -> None:
    right = exercise.solved.read_text()
    before, after = exercise.wrong
    assert before in right
    file = _written(tmp_path, exercise, solution(right.replace(before, after, 1)))
    found = examine(exercise.judge, file)
    if found["state"] == "skipped":
        pytest.skip(found["lines"][-1])
    assert found["state"] == "failed"
    assert any(line.startswith("NO ") or line.startswith("    at ") for line in found["lines"])


def test_the_watchdog_ends_what_does_not_end(tmp_path: Path) -> None:
    exercise = ALL[0]
    body = "def tile_of(row, column, columns):\n    while True:\n        pass\n"
    file = _written(tmp_path, exercise, body)
    outcome = watch.check(exercise, file, limit_s=4.0)
    assert outcome.state == "hung" and not outcome.ok
    assert "a loop" in outcome.lines[0] and ", in tile_of" in outcome.lines[1]


def test_a_crash_is_told_and_so_is_what_was_printed(tmp_path: Path) -> None:
    exercise = ALL[0]
    file = _written(tmp_path, exercise, "import os\nprint('here', flush=True)\nos._exit(7)\n")
    outcome = watch.check(exercise, file)
    assert outcome.state == "crashed"
    assert "here" in outcome.lines[0] and "code 7" in outcome.lines[-1]
    body = "def tile_of(row, column, columns):\n    import ctypes\n    ctypes.string_at(0)\n"
    outcome = watch.check(exercise, _written(tmp_path, exercise, body))
    assert outcome.state == "crashed"
    assert "SIGSEGV" in outcome.lines[-2] and "line 3, in tile_of" in outcome.lines[-1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def tile_of(row):\n    return (1\n", ("SyntaxError", "line 2: return (1")),
        ("", ("has no `tile_of`",)),
        ("import sys\nsys.exit(3)\n", ("ended the program", "3")),
        ("import nonsense_x\n", ("ModuleNotFoundError", "line 1: import nonsense_x")),
        ("def tile_of(row, column, columns):\n    pass\n", ("yours is None", "wanted (0, 0, 0)")),
        ("def tile_of(row):\n    return 1\n", ("TypeError", "takes 1 positional", "yours.tile_of")),
    ],
)
def test_a_mistake_is_told_in_a_sentence(tmp_path: Path, text: str, told: tuple[str, ...]) -> None:
    found = examine(ALL[0].judge, _written(tmp_path, ALL[0], text))
    assert found["state"] == "failed"
    assert all(part in "\n".join(found["lines"]) for part in told), found["lines"]


def test_a_kernel_that_is_gone_is_told(tmp_path: Path) -> None:
    exercise = find("scale_rows")
    found = examine(exercise.judge, _written(tmp_path, exercise, "int other() { return 0; }\n"))
    assert found["state"] == "skipped" or "no kernel `scale_rows`" in found["lines"][-1]


def test_a_result_of_none_is_told_to_lack_a_return(tmp_path: Path) -> None:
    exercise = find("bound")
    text = "def tokens_per_second(*args):\n    pass\n"
    found = examine(exercise.judge, _written(tmp_path, exercise, text))
    assert "without a `return`" in found["lines"][-1]


def test_an_array_is_told_by_its_first_wrong_elements() -> None:
    report, truth = Report(), np.zeros((4, 4))
    report.array("right", truth.astype(np.float32), truth)
    assert report.lines[-1].startswith("    error 0")
    got = truth.astype(np.float32)
    got[3, 2] = np.nan
    with pytest.raises(Wrong):
        report.array("y", got, truth, tile=(2, 2))
    text = "\n".join(report.lines)
    assert "NO  y: 1 of 16 elements are wrong; error nan" in text
    assert "at [3, 2] (tile [1, 1]): yours nan, wanted 0" in text and "nobody has written" in text
    assert report.lines[-2:] == ["    ..", "    .#"]
    with pytest.raises(Wrong):
        report.equal("two shapes", np.zeros(2), np.zeros(3))


def test_an_exception_names_the_learners_line(tmp_path: Path) -> None:
    exercise = ALL[0]
    file = _written(tmp_path, exercise, "def tile_of(row, column, columns):\n    return 1 // 0\n")
    found = examine(exercise.judge, file)
    assert found["state"] == "failed"
    assert "ZeroDivisionError" in "".join(found["lines"]) and "line 2" in "".join(found["lines"])


def test_markers_that_do_not_pair_up_are_refused() -> None:
    for text in ("# blank\n", "# end\n", "# blank\n# blank\nx\n# end\n", "# blank\n# end\n"):
        with pytest.raises(ValueError):
            cut(text)


def test_a_desk_keeps_what_was_written_and_what_was_solved(tmp_path: Path) -> None:
    desk, exercise = Desk(tmp_path / "mine"), ALL[0]
    assert desk.current() is exercise
    file = desk.open(exercise)
    file.write_text("mine")
    assert desk.open(exercise).read_text() == "mine"
    desk.mark(exercise)
    assert desk.current() is ALL[1]
    desk.reset(exercise)
    assert MISSING in file.read_text() and desk.current() is exercise
    assert file.with_name(file.name + ".old").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_told_with_the_way_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(UserError, match="--folder DIR"):
        Desk(tmp_path / "mine").open(ALL[0])


def test_a_file_where_the_folder_should_be_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="--folder DIR"):
        Desk(tmp_path / "mine").open(ALL[0])


def test_a_verdict_that_cannot_be_noted_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, exercise = Desk(tmp_path), ALL[0]
    desk.open(exercise).write_text(solution(exercise.solved.read_text()))
    (tmp_path / PROGRESS).unlink()
    (tmp_path / PROGRESS).mkdir()
    outcome = verb._checked(desk, exercise)
    assert outcome.ok and "could not be noted" in outcome.lines[-1]


def test_the_verb_leads_from_one_exercise_to_the_next(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}

    def mkport(*args: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "mkport", "learn", *args, "--folder", "mine"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
        return done.returncode, done.stdout + done.stderr

    code, told = mkport("continue")
    assert code == 0 and ALL[0].title in told
    code, told = mkport("check")
    assert code == 1 and MISSING in told
    assert "1_which_tile.py:19" in told and "learn hint" in told and "learn solution" in told
    code, text = mkport("solution")
    assert code == 0
    Desk(tmp_path / "mine").path(ALL[0]).write_text(text)
    code, told = mkport("continue")
    assert code == 0 and "solved" in told and ALL[1].title in told
    code, told = mkport("hint", "nonsense")
    assert code == 2 and "learn list" in told
