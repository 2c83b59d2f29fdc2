"""A learner's own folder: copies of the exercises, and which of them are solved."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkport.errors import UserError
from mkport.files import make_folder, write_text
from mkport.learn.catalogue import Exercise, exercises
from mkport.learn.cut import cut

PROGRESS = "progress.json"
OLD = ".old"  # behind the name of a file that was put back


class Desk:
    """The folder. Nothing in it is ever written over, but by `reset`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, exercise: Exercise) -> Path:
        """Where the learner's copy is, or would be."""
        return self.folder / exercise.recipe.name / exercise.solved.name

    def open(self, exercise: Exercise) -> Path:
        """The learner's copy, made when there is none. Raises UserError where it cannot be."""
        path = self.path(exercise)
        if not path.exists():
            self.reset(exercise)
        return path

    def reset(self, exercise: Exercise) -> Path:
        """Puts the exercise back as it was in the beginning; the old file stays beside it. Raises
        UserError where a file cannot be written."""
        path = self.path(exercise)
        try:
            make_folder(path.parent)
        except UserError as error:
            raise UserError(
                f"{error} Your copies may lie anywhere: --folder DIR, or the variable MKPORT_LEARN."
            ) from error
        text, _ = cut(exercise.solved.read_text(encoding="utf-8"))
        if path.exists() and (old := path.read_text(encoding="utf-8")) != text:
            write_text(path.with_name(path.name + OLD), old)
        write_text(path, text)
        self._write({name: at for name, at in self.solved().items() if name != exercise.name})
        return path

    def solved(self) -> dict[str, Any]:
        """The solved exercises by name, each with its score or None.

        Raises UserError for a progress file that cannot be read.
        """
        path = self.folder / PROGRESS
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return dict(found["solved"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is damaged ({error}). Remove it and run `mkport learn check --all`, which "
                "writes it again."
            ) from error

    def mark(self, exercise: Exercise, score: Any = None) -> None:
        """Notes that an exercise is solved. Raises UserError as `solved` does, and where the
        progress cannot be written."""
        self._write({**self.solved(), exercise.name: score})

    def unmark(self, exercise: Exercise) -> None:
        """Notes that an exercise is not solved; raises as `mark` does."""
        self._write({name: at for name, at in self.solved().items() if name != exercise.name})

    def current(self) -> Exercise | None:
        """The first exercise that is not solved; None when all are; raises as `solved`."""
        solved = self.solved()
        return next((e for e in exercises() if e.name not in solved), None)

    def _write(self, solved: Mapping[str, Any]) -> None:
        make_folder(self.folder)
        write_text(self.folder / PROGRESS, json.dumps({"solved": solved}, indent=1) + "\n")
