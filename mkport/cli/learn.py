"""The verb `learn`: exercises on copies of one's own, checked under a watchdog. What it prints is
put together here; exercises, cutting and checking are in `mkport.learn`."""

import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mkport.cli.output import JsonFlag, emit, progress
from mkport.errors import UserError
from mkport.extras import tool
from mkport.learn.catalogue import Exercise, exercises, find
from mkport.learn.cut import cut, first_missing, solution
from mkport.learn.desk import OLD, Desk
from mkport.learn.watch import Outcome, check

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FolderOption = Annotated[
    Path,
    typer.Option("--folder", metavar="DIR", help="Where your copies are.", envvar="MKPORT_LEARN"),
]
NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[EXERCISE]", help="Its number or name; the current one if left out."),
]
FOLDER = Path("learn")
BAR = 24  # characters


@app.callback(invoke_without_command=True)
def command(ctx: typer.Context, folder: FolderOption = FOLDER, as_json: JsonFlag = False) -> None:
    """Learn by doing: exercises that are checked, from a tile to the serving engine.

    Without a verb of its own it goes on where you are. Your files are copies in ./learn.
    """
    if ctx.invoked_subcommand is None:
        continue_(folder, as_json)


@app.command("continue")
def continue_(folder: FolderOption = FOLDER, as_json: JsonFlag = False) -> None:
    """Check the current exercise, and go on to the next one when it is solved."""
    desk = Desk(folder)
    exercise = desk.current()
    if exercise is None:
        total = len(exercises())
        emit({"done": True}, as_json, lambda console: print(f"All {total} exercises are solved."))
        return
    fresh = not desk.path(exercise).exists()
    file = desk.open(exercise)
    outcome = None if fresh else _checked(desk, exercise)
    after = desk.current() if outcome is not None and outcome.ok else exercise
    if after is not None and after is not exercise:
        file = desk.open(after)
    data = {"exercise": _facts(exercise, desk), "outcome": outcome, "next": after and after.name}

    def tell(console: Any) -> None:
        if outcome is not None:
            print(_told(exercise, outcome), end="\n\n")
        if after is None:
            print("That was the last one: all exercises are solved.")
        elif outcome is None or outcome.ok or outcome.state == "blank":
            print(_task(after, file, desk))
        else:
            print(_onward(exercise, file, desk))

    emit(data, as_json, tell)
    if outcome is not None and not outcome.ok:
        raise typer.Exit(1)


@app.command("list")
def list_(folder: FolderOption = FOLDER, as_json: JsonFlag = False) -> None:
    """List the exercises and say which are solved."""
    desk = Desk(folder)
    facts = [_facts(exercise, desk) for exercise in exercises()]

    def tell(console: Any) -> None:
        recipe = None
        for exercise, fact in zip(exercises(), facts, strict=True):
            if exercise.recipe is not recipe:
                recipe = exercise.recipe
                print(f"\n{recipe.number}. {recipe.title}")
            mark = "x" if fact["solved"] else " "
            print(f"  [{mark}] {exercise.number:5} {exercise.name:20} {exercise.title}")
        print(f"\n{_bar(desk)}")

    emit(facts, as_json, tell)


@app.command()
def hint(
    name: NameArgument = None, folder: FolderOption = FOLDER, as_json: JsonFlag = False
) -> None:
    """Give a hint, and where to read."""
    exercise = _chosen(name, Desk(folder))
    data = {"exercise": exercise.name, "hint": exercise.hint, "read": exercise.read}
    told = f'{exercise.hint}\n\nTo read: {_near(exercise.recipe.file)}, under "{exercise.read}".'
    emit(data, as_json, lambda console: print(told))


@app.command()
def reset(
    name: NameArgument = None, folder: FolderOption = FOLDER, as_json: JsonFlag = False
) -> None:
    """Put an exercise back as it was in the beginning; your file stays beside it as .old."""
    desk = Desk(folder)
    exercise = _chosen(name, desk)
    file = desk.reset(exercise)
    old = file.with_name(file.name + OLD)
    told = f"{_at(file)} is as it was in the beginning."
    if old.is_file():
        told += f" Yours is in {_near(old)}."
    data = {"exercise": exercise.name, "file": file, "old": old if old.is_file() else None}
    emit(data, as_json, lambda console: print(told))


@app.command("solution")
def solution_(
    name: NameArgument = None, folder: FolderOption = FOLDER, as_json: JsonFlag = False
) -> None:
    """Show the solution."""
    exercise = _chosen(name, Desk(folder))
    text = solution(exercise.solved.read_text(encoding="utf-8"))
    emit({"exercise": exercise.name, "text": text}, as_json, lambda console: print(text, end=""))


@app.command("check")
def check_(
    name: NameArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Check every exercise that you have begun.")
    ] = False,
    folder: FolderOption = FOLDER,
    as_json: JsonFlag = False,
) -> None:
    """Check an exercise, or all that you have begun. Exits with 1 when one is not solved."""
    desk = Desk(folder)
    chosen = [_chosen(name, desk)]
    if everything:
        if name is not None:
            raise UserError("Give an exercise or --all, not both.")
        chosen = [e for e in exercises() if desk.path(e).exists()] or chosen
    outcomes = []
    with progress("checking", total=len(chosen)) as advance:
        for exercise in chosen:
            desk.open(exercise)
            outcomes.append(_checked(desk, exercise))
            advance(1)
    told = [_told(e, o, short=len(chosen) > 1) for e, o in zip(chosen, outcomes, strict=True)]
    if len(chosen) == 1 and not outcomes[0].ok:
        told += ["", _onward(chosen[0], desk.path(chosen[0]), desk)]
    ok = all(outcome.ok for outcome in outcomes)
    emit({"ok": ok, "outcomes": outcomes}, as_json, lambda console: print("\n".join(told)))
    if not ok:
        raise typer.Exit(1)


def _checked(desk: Desk, exercise: Exercise) -> Outcome:
    outcome = check(exercise, desk.path(exercise))
    try:
        if outcome.ok:
            desk.mark(exercise, outcome.score)
        else:
            desk.unmark(exercise)
    except UserError as error:
        return replace(outcome, lines=(*outcome.lines, f"This could not be noted: {error}"))
    return outcome


def _chosen(name: str | None, desk: Desk) -> Exercise:
    exercise = desk.current() if name is None else find(name)
    return exercises()[-1] if exercise is None else exercise


def _facts(exercise: Exercise, desk: Desk) -> dict[str, Any]:
    _, blanks = cut(exercise.solved.read_text(encoding="utf-8"))
    return {
        "number": exercise.number,
        "name": exercise.name,
        "title": exercise.title,
        "file": desk.path(exercise),
        "solved": exercise.name in desk.solved(),
        "lines": sum(blank.lines for blank in blanks),
    }


def _task(exercise: Exercise, file: Path, desk: Desk) -> str:
    _, blanks = cut(exercise.solved.read_text(encoding="utf-8"))
    lines = sum(blank.lines for blank in blanks)
    rule = "-" * min(72, shutil.get_terminal_size().columns)
    return "\n".join(
        [
            f"{_bar(desk)}\n",
            f"{exercise.number} {exercise.title}",
            rule,
            exercise.task,
            rule,
            f"write      {_at(file)} (about {lines} line{'s' if lines > 1 else ''})",
            f"then       {_learn(desk)}",
            f'read       {_near(exercise.recipe.file)}, under "{exercise.read}"',
            f"stuck?     {_learn(desk, 'hint')}",
        ]
    )


def _onward(exercise: Exercise, file: Path, desk: Desk) -> str:
    """What to do about an exercise that is not solved."""
    other = "" if exercise == desk.current() else f" {exercise.number}"
    return "\n".join(
        [
            f"change     {_at(file)}",
            f"then       {_learn(desk, f'check{other}' if other else '')}",
            f"stuck?     {_learn(desk, f'hint{other}')}",
            f"at last    {_learn(desk, f'solution{other}')}",
        ]
    )


def _learn(desk: Desk, verb: str = "") -> str:
    """A command of this verb as it is typed here, on the folder that was given."""
    folder = "" if desk.folder == FOLDER else f" --folder {shlex.quote(str(desk.folder))}"
    if os.environ.get("MKPORT_LEARN") == str(desk.folder):
        folder = ""
    return f"{tool('mkport')} learn{f' {verb}' if verb else ''}{folder}"


def _at(file: Path) -> str:
    """The file, and the line of the first blank where there is one left."""
    line = first_missing(file) if file.is_file() else None
    return f"{_near(file)}:{line}" if line else f"{_near(file)}"


def _near(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _told(exercise: Exercise, outcome: Outcome, short: bool = False) -> str:
    words = {
        "passed": "solved",
        "failed": "not right yet",
        "blank": "not done yet",
        "skipped": "skipped",
        "hung": "ended by the watchdog",
        "crashed": "crashed",
    }
    head = f"{exercise.number} {exercise.name}: {words[outcome.state]} ({outcome.seconds:.1f} s)"
    return head if short and outcome.ok else "\n".join([head, *outcome.lines])


def _bar(desk: Desk) -> str:
    known = {exercise.name for exercise in exercises()}
    solved, total = len(known & set(desk.solved())), len(known)
    full = BAR * solved // max(total, 1)
    return f"[{'#' * full}{'.' * (BAR - full)}] {solved} of {total} solved"
