"""The README keeps its word: its paths and commands exist, its status table tells what is so."""

import re
from pathlib import Path

from mkport.cli.main import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _section(title: str) -> str:
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_linked_path_exists() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
            assert target.startswith("http") or (ROOT / target).exists(), f"{page}: {target}"


def test_every_path_of_the_tree_exists() -> None:
    tree = re.search(r"```text\n(.*?)```", _section("Where things are"), re.DOTALL)
    assert tree
    parent = ROOT
    for line in tree[1].splitlines():
        path = line.split()[0]
        parent = parent if line.startswith(" ") else ROOT
        assert (parent / path).exists(), path
        parent = parent if line.startswith(" ") else parent / path


def test_every_command_exists() -> None:
    inline = re.findall(r"`(mkport [^`\n]*)`", README)
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    named = set(re.findall(r"^mkport ([a-z]+)", "\n".join(inline + blocks), re.MULTILINE))
    assert "doctor" in named
    assert named <= set(VERBS)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)) <= targets


def test_the_status_table_names_tests_and_pages_that_exist() -> None:
    rows = [
        line.strip("|").split("|") for line in _section("What works").splitlines() if "|" in line
    ]
    for part, _command, tests, reading in rows[2:]:
        for cell, folder in ((tests, "tests"), (reading, "docs")):
            linked = re.search(r"\(([^)]+)\)", cell)
            if linked:
                assert (ROOT / linked[1]).is_relative_to(ROOT / folder), part
            else:
                assert cell.strip() == "not yet", f"{part}: link the {folder} or say 'not yet'"


def test_ci_runs_the_readmes_test_command() -> None:
    commands = re.findall(r"^make \w+$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert commands == ["make lint", "make types", "make test"]
    assert "make test " in _section("Two commands")
