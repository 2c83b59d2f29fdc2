"""Renders the recipes as pages of the site: `python docs/generate/learn.py`.

Each recipe is run from top to bottom in a process of its own, and what a cell printed or drew
stands below it. A page is kept while neither its recipe nor the library changes. With `--no-run`
nothing is run, and the pages are prose and code alone. No page is committed: what it shows was
just measured.
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from mkport.files import make_folder, write_text
from mkport.learn import lesson
from mkport.learn.catalogue import Recipe, exercises, recipes

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/learn"
PICTURE = re.compile(r"^picture: (.*\.svg)$", re.MULTILINE)
INDEX = """# Learn

You should know Python and a little NumPy. Nothing is asked of CUDA before recipe 14; where a GPU
differs, there are tabs.

Each recipe is a script that runs from top to bottom on a CPU, in seconds. What stands here as its
output came from such a run. The files are `recipes/NN_name/recipe.py`. Together they introduce
every module of the engine, which they import, so that what you read is what serves.

The exercises come with the program. `mkport learn` gives you a copy of the first one with a blank
in it, checks what you wrote, and goes on:

```sh
mkport learn          # the task; then, when you have written, whether it is right
mkport learn hint     # when you are stuck
mkport learn list     # all of them, and which you have solved
```

`make notebooks` writes every recipe as a notebook into `out/notebooks`, for Jupyter or Colab. The
first cell of code installs mkport where it is missing: from the clone that the notebook lies in,
or else from the address that the clone came from."""
TAB = re.compile(r'tab="([\w ]+)"')
SOURCES = {".py", ".cu", ".cuh", ".h"}
COLUMNS = "96"  # how wide a terminal the commands believe to have


class Cell(NamedTuple):
    """A part of a recipe. Neighbours of one tab are shown in it, tab beside tab."""

    prose: bool
    text: str
    line: int  # that it begins on, from 0 on
    tab: str = ""  # "CPU", "CUDA"


def cells(text: str) -> list[Cell]:
    """A percent script's cells, in order."""
    found = []
    starts = [*re.finditer(r"^# %%(.*)\n", text, re.MULTILINE)]
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=True):
        body, line = text[start.end() : end], text.count("\n", 0, start.end())
        if prose := "[markdown]" in start[1]:
            body = ast.literal_eval(body.strip())
        if body.strip():
            line += len(body) - len(body.lstrip("\n"))
            tab = TAB.search(start[1])
            found.append(Cell(prose, body.strip("\n"), line, tab[1] if tab else ""))
    return found


def run_cells(script: Path, pictures: Path) -> list[str]:
    """What each code cell prints, pictures as lines of `lesson.show`; they are written to
    `pictures`. A cell's last expression is shown as Python's prompt would."""
    lesson.OUT = pictures
    space: dict[str, Any] = {"__name__": "recipe", "__file__": str(script)}
    printed = []
    for cell in cells(script.read_text(encoding="utf-8")):
        if cell.prose:
            continue
        tree = ast.parse("\n" * cell.line + cell.text, str(script))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile(tree, str(script), "exec"), space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), str(script), "eval"), space)
                if value is not None:
                    print(repr(value))
        printed.append(told.getvalue())
    return printed


def page(recipe: Recipe, printed: list[str] | None) -> str:
    """The page of a recipe; `printed` is what `run_cells` returned, None where it was not run."""
    text = recipe.file.read_text(encoding="utf-8")
    outputs = iter(printed or [])
    parts = []
    for tab, group in itertools.groupby(cells(text), key=lambda cell: cell.tab):
        inside = []
        for cell in group:
            inside.append(cell.text if cell.prose else f"```python\n{cell.text}\n```")
            if not cell.prose and printed is not None:
                inside += _shown(next(outputs), recipe.title)
        if tab:
            inside = [f'=== "{tab}"', *(textwrap.indent(part, "    ") for part in inside)]
        parts += inside
    tasks = [exercise for exercise in exercises() if exercise.recipe == recipe]
    if tasks:
        parts.append("## Exercises")
        parts.append(
            "`mkport learn` gives them to you one after the other, from your own copies; "
            "`mkport learn check NUMBER` looks at one."
        )
        parts.append("\n".join(f"- {task.number} `{task.name}`: {task.title}" for task in tasks))
    parts.append(stamp(recipe, ran=printed is not None))
    return "\n\n".join(parts) + "\n"


def stamp(recipe: Recipe, ran: bool) -> str:
    """The last line of a page: what it was made from."""
    digest = hashlib.sha256(recipe.file.read_bytes() + _library()).hexdigest()[:16]
    return f"<!-- {recipe.name} {digest} {'run' if ran else 'not run'} -->"


@functools.cache
def _library() -> bytes:
    """A digest of this file and of everything that a recipe can import."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for folder in ("mkport", "kernels", "engine"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES and not any(part.is_symlink() for part in path.parents):
                digest.update(path.read_bytes())
    return digest.digest()


def _shown(printed: str, title: str) -> list[str]:
    """What a cell printed, as Markdown; a picture stands where it was drawn."""
    parts = []
    for place, text in enumerate(PICTURE.split(printed)):
        if place % 2:
            file = f"pictures/{Path(text).name}"
            parts.append(f"[![A timeline: {title}]({file})]({file})")  # a tap enlarges it
        elif text.strip():
            long = max(map(len, text.splitlines())) > int(COLUMNS)
            kind = ".output .sentences" if long else ".output"
            parts.append(f"``` {{ .text {kind} }}\n{text.strip(chr(10))}\n```")
    return parts


def index() -> str:
    """The page that lists the recipes."""
    rows = ["| | recipe | exercises |", "|---|---|---|"]
    for recipe in recipes():
        tasks = [task for task in exercises() if task.recipe == recipe]
        shown = ", ".join(f"`{task.name}`" for task in tasks)
        rows.append(f"| {recipe.number} | [{recipe.title}]({recipe.name}.md) | {shown} |")
    return "\n\n".join([INDEX, "\n".join(rows)]) + "\n"


def render(recipe: Recipe, pages: Path, run: bool) -> bool:
    """Writes a recipe's page unless it is there already; says whether it was written."""
    file = pages / f"{recipe.name}.md"
    there = file.read_text(encoding="utf-8").splitlines()[-1] if file.is_file() else ""
    if there in (stamp(recipe, ran=True), *([] if run else [stamp(recipe, ran=False)])):
        return False
    printed = None
    if run:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--cells", str(recipe.file), str(pages)]
            around = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": COLUMNS}
            done = subprocess.run(
                command, cwd=folder, env=around, stdout=subprocess.PIPE, text=True, check=False
            )
        if done.returncode:
            raise SystemExit(f"{recipe.file} ended with {done.returncode}")
        printed = json.loads(done.stdout)
    write_text(file, page(recipe, printed))
    return True


def main() -> None:
    """Writes the pages under docs/learn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--no-run", action="store_true", help="prose and code alone")
    parser.add_argument("--pages", type=Path, default=PAGES, help="where to")
    parser.add_argument("--cells", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cells:
        script, pages = asked.cells
        print(json.dumps(run_cells(script, make_folder(pages / "pictures"))))
        return
    write_text(make_folder(asked.pages) / "index.md", index())
    for recipe in recipes():
        if render(recipe, asked.pages, run=not asked.no_run):
            print(f"wrote {asked.pages / recipe.name}.md")


if __name__ == "__main__":
    main()
