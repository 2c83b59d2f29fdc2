"""Pages tell what is so: generated ones are the program's, programs on them run and print what is
shown, commands exist, pictures are drawn from traces that are looked at here."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from docs.generate import home, reference
from mkport.cli.main import VERBS
from mkport.trace import draw
from mkport.verify import verify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "learn" not in path.parts)
SHOWN = sorted(
    path for path in (DOCS / "how-to").rglob("*.py") if path.with_suffix(".txt").exists()
)
SESSIONS = sorted((DOCS / "how-to").rglob("*.sh"))
AROUND = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}


def name_of(path: Path) -> str:
    """A page's name in the tests' list."""
    return path.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_the_programs(name: str) -> None:
    written = (reference.FOLDER / name).read_text()
    assert written == reference.PAGES[name](), "run python docs/generate/reference.py"


@pytest.mark.parametrize("path", SHOWN, ids=name_of)
def test_a_program_prints_what_its_page_shows(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=AROUND, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == path.with_suffix(".txt").read_text()


@pytest.mark.parametrize("path", SESSIONS, ids=name_of)
def test_a_session_runs(path: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(DOCS)
    for line in path.read_text().splitlines():
        words = shlex.split(line)
        assert words[0] == "mkport"
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=AROUND, capture_output=True, text=True
        )
        assert done.returncode == 0, line + done.stdout + done.stderr


def test_no_page_is_typed_with_code_that_no_test_runs() -> None:
    """Fences of a language that can be run hold an include and nothing else; those of the pages of
    gallery and refusals are written by the scripts beside them."""
    for page in PAGES:
        if page.parent.name == "refusals":
            continue
        for kind, body in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.S | re.M):
            if kind in ("python", "cuda", "toml", "json", "cpp", "c"):
                lines = [line for line in body.splitlines() if line.strip()]
                assert all(line.startswith("--8<-- ") for line in lines), f"{name_of(page)}: {body}"


def test_commands_on_pages_exist() -> None:
    told = (reference.FOLDER / "cli.md").read_text()
    sections = dict(re.findall(r"^##+ mkport ([\w ]+)\n(.*?)(?=^##|\Z)", told, re.S | re.M))
    assert set(VERBS) <= set(sections)
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
        lines = "\n".join(fences).replace("\\\n", " ").splitlines()
        inline = [] if page.parent.name == "refusals" else re.findall(r"`(mkport [^`]*)`", text)
        for line in [*lines, *inline]:
            words = line.split("#")[0].split()
            if words[:1] != ["mkport"] or len(words) == 1 or words[1] == "VERB":
                continue
            verb = words[1]
            if verb == "--help":
                continue
            assert verb in VERBS, f"{name_of(page)}: {line}"
            known = "".join(text for name, text in sections.items() if name.split()[0] == verb)
            for word in words[2:]:
                option = word.split("=")[0]
                if option.startswith("--") and option not in ("--json", "--help"):
                    assert f"`{option}" in known, f"{name_of(page)}: {line}: no {option}"


def test_the_glossary_has_the_words_of_the_house() -> None:
    rule = (ROOT / "CONTRIBUTING.md").read_text().split("**Words.** ")[1].split(". One")[0]
    defined = re.findall(r"^(\w[\w ]*)\n:   ", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert {word.strip() for word in rule.split(",")} <= {word.lower() for word in defined}


def test_the_picture_of_the_home_page(tmp_path: Path) -> None:
    """It shows a safe schedule in which workers wait less than they work, and is the committed
    one."""
    schedule, trace = home.made_up()
    assert verify(schedule).workers == trace.workers == home.WORKERS
    start, ready, end = trace.times.T
    assert (start <= ready).all() and (ready <= end).all()
    assert (end - ready).sum() > (ready - start).sum()
    assert trace.caption.startswith("simulated: ")
    if f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "constraints.txt").read_text():
        draw(trace, tmp_path / "home.svg", title=home.TITLE)
        drawn = (tmp_path / "home.svg").read_bytes()
        assert drawn == home.FILE.read_bytes(), "run python docs/generate/home.py"


def test_pictures_say_where_they_come_from() -> None:
    """A picture on a page is the home page's, or one of results, which tells what it was measured
    on and lies beside the file that it was made from."""
    for page in PAGES:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            file = (page.parent / target).resolve()
            if page.parent.name == "results":
                assert "measured on" in words, f"{name_of(page)}: {target}"
                assert file.is_file() and any(file.parent.glob("*.json")), file
            else:
                assert file == home.FILE, f"{name_of(page)}: {target}"
