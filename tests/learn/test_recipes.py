"""Every recipe runs from top to bottom; each module of the engine is introduced by one of them."""

import ast
import itertools
import os
import re
import runpy
from pathlib import Path

import pytest

from docs.generate import learn
from mkport.learn import lesson
from mkport.learn.catalogue import Recipe, recipes

ROOT = Path(__file__).parents[2]
ALL = recipes()
LINES = 250
ENTRY = re.compile(r"^- `(engine/[\w/.]+)`: \S", re.MULTILINE)
PROSE = re.compile(r'^# %% \[markdown\]([^\n]*)\n"""\n(.*?)"""', re.DOTALL | re.MULTILINE)
PROOF = re.compile(r"""(?:prove|served)\(\s*f?["'](mkport [^\n]*)["']""")


@pytest.fixture(params=ALL, ids=lambda recipe: recipe.name)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    """Each recipe."""
    found: Recipe = request.param
    return found


def test_they_are_numbered_without_a_gap() -> None:
    assert [recipe.number for recipe in ALL] == list(range(1, 16))


def test_its_form(recipe: Recipe) -> None:
    text = recipe.file.read_text()
    assert text.startswith('# %% [markdown]\n"""\n# ')
    assert len(text.splitlines()) <= LINES
    assert 900 <= sum(len(prose.split()) for _, prose in PROSE.findall(text)) <= 1200
    last = learn.cells(text)[-1]
    assert not last.prose and PROOF.search(last.text), "it ends with what proves the stage"


def test_its_tabs(recipe: Recipe) -> None:
    """They stand side by side, each begins with prose, and none holds a heading."""
    groups = [
        (tab, list(group))
        for tab, group in itertools.groupby(
            learn.cells(recipe.file.read_text()), key=lambda cell: cell.tab
        )
    ]
    for place, (tab, group) in enumerate(groups):
        if tab:
            assert tab in ("CPU", "CUDA", "Numba")
            assert group[0].prose and not any("\n#" in f"\n{c.text}" for c in group if c.prose)
            assert groups[place - 1][0] or groups[place + 1][0], "a tab stands alone"


def test_recipes_say_where_a_gpu_differs() -> None:
    with_tabs = [recipe.name for recipe in ALL if 'tab="CUDA"' in recipe.file.read_text()]
    assert len(with_tabs) >= 12


def test_it_runs(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lesson, "OUT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    runpy.run_path(str(recipe.file), run_name="recipe")
    for picture in tmp_path.glob("*.svg"):
        assert picture.stat().st_size < 100_000, "a page stays small"
        assert re.search(r"simulated: |measured on ", picture.read_text()), "it says where from"


def _introduced() -> dict[str, list[str]]:
    """The entries of each recipe's list: "engine/pool.py", or "engine/server/" for all in it."""
    return {recipe.name: ENTRY.findall(recipe.file.read_text()) for recipe in ALL}


def _modules() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "engine").rglob("*.py")}


def test_every_module_of_the_engine_is_introduced_once() -> None:
    entries = [entry for found in _introduced().values() for entry in found]
    assert len(set(entries)) == len(entries), "an entry stands twice"
    for module in _modules():
        named = [e for e in entries if module == e or (e.endswith("/") and module.startswith(e))]
        assert len(named) == 1, f"{module} is introduced by {named or 'no recipe'}"


def test_every_entry_exists_and_is_imported_not_copied() -> None:
    for name, entries in _introduced().items():
        reached = _reached(ROOT / "recipes" / name / "recipe.py")
        for entry in entries:
            assert (ROOT / entry).exists(), f"{name}: {entry}"
            assert any(
                m == entry or (entry.endswith("/") and m.startswith(entry)) for m in reached
            ), f"{name} introduces {entry}, but nothing that it imports leads there"


def _reached(script: Path) -> set[str]:
    """The engine's modules that a script imports, by whatever way."""
    found: set[str] = set()
    queue = [script]
    while queue:
        for node in ast.walk(ast.parse(queue.pop().read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for dotted in names:
                if not dotted.startswith("mkport.engine"):
                    continue
                path = ROOT / Path(*dotted.split(".")[1:])
                for file in (path.with_suffix(".py"), path / "__init__.py"):
                    relative = file.relative_to(ROOT).as_posix()
                    if file.is_file() and relative not in found:
                        found.add(relative)
                        queue.append(file)
    return found
