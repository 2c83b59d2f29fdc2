"""Which recipes and exercises there are, and what each says of itself. Nothing is run here."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mkport.recipes
from mkport.errors import UserError

RECIPES = Path(mkport.recipes.__file__).resolve().parent
_TITLE = re.compile(r"^# (.*)$", re.MULTILINE)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """One chapter: a percent script that runs from top to bottom."""

    number: int
    folder: Path
    title: str
    headings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name: "03_tiled_gemm"."""
        return self.folder.name

    @property
    def file(self) -> Path:
        """The percent script."""
        return self.folder / "recipe.py"


@dataclass(frozen=True)
class Exercise:
    """One exercise. `solved` is the solution, which the learner's file is cut from; `judge` holds
    the check: the same file, but for CUDA C++."""

    recipe: Recipe
    place: int  # within the recipe, from 1 on
    name: str
    solved: Path
    judge: Path
    title: str
    task: str
    hint: str
    read: str  # a heading of the recipe
    wrong: tuple[str, str]  # a mistake: this text in the solution, and what stands there then

    @property
    def number(self) -> str:
        """ "3.1"."""
        return f"{self.recipe.number}.{self.place}"


@cache
def recipes() -> tuple[Recipe, ...]:
    """The recipes, in order."""
    found = []
    for path in sorted(RECIPES.glob("[0-9][0-9]_*/recipe.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title = _TITLE.search(text)
        prose = path.read_text(encoding="utf-8")
        found.append(
            Recipe(
                int(path.parent.name[:2]),
                path.parent,
                title[1] if title else path.parent.name,
                tuple(_HEADING.findall(prose)),
            )
        )
    return tuple(found)


@cache
def exercises() -> tuple[Exercise, ...]:
    """The exercises, in the order of the recipes."""
    found = []
    for recipe in recipes():
        for judge in sorted((recipe.folder / "exercises").glob("[0-9]_*.py")):
            found.append(_read(recipe, judge))
    return tuple(found)


def find(wanted: str) -> Exercise:
    """The exercise of this number or name. Raises UserError when there is none."""
    for exercise in exercises():
        if wanted in (exercise.number, exercise.name):
            return exercise
    raise UserError(
        f"There is no exercise {wanted!r}. `mkport learn list` shows them; give a number such as "
        "3.1, or a name."
    )


def _read(recipe: Recipe, judge: Path) -> Exercise:
    tree = ast.parse(judge.read_text(encoding="utf-8"))
    title, _, task = (ast.get_docstring(tree) or "").partition("\n")
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("HINT", "READ", "WRONG")
    }
    place, name = judge.stem.split("_", 1)
    cuda = judge.with_suffix(".cu")
    return Exercise(
        recipe,
        int(place),
        name,
        cuda if cuda.is_file() else judge,
        judge,
        title.rstrip("."),
        task.strip(),
        constants["HINT"],
        constants["READ"],
        constants["WRONG"],
    )
