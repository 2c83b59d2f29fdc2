"""The wheel: built from the sources, it carries every module and runs outside the repository."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mkport.testing import FORMS

ROOT = Path(__file__).parents[2]
CARRIED = {".css", ".cu", ".cuh", ".h", ".html", ".js", ".json", ".py", ".txt"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the working tree; where one of the folders has no CUDA source, one is planted."""
    tree = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        elif source.exists():
            copy.write_bytes(source.read_bytes())
    for name in ("planted.cu", "planted.cuh", "planted.txt", "planted.json", "ladder/1_naive.py"):
        planted = tree / "kernels/planted" / name
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_text("")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(out), "."]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("mkport-*.whl"))


def test_it_carries_every_source_file_and_one_import_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("kernels", "engine", "recipes"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in CARRIED:
                assert f"mkport/{path.relative_to(ROOT).as_posix()}" in names
    for name in ("planted.cu", "planted.cuh", "planted.txt", "planted.json", "ladder/1_naive.py"):
        assert f"mkport/kernels/planted/{name}" in names
    assert {"mkport/py.typed", "mkport/cli/main.py", "mkport/engine/__init__.py"} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mkport"}
    assert not [name for name in names if "__pycache__" in name]


@pytest.fixture(scope="module")
def mkport(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The command line of the installed wheel, run in an empty folder: `mkport("doctor")`."""
    site = tmp_path_factory.mktemp("site")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import mkport, mkport.kernels, mkport.engine, mkport.cli.main as main\n"
        f"assert mkport.__file__.startswith({str(site)!r}), mkport.__file__\n"
        "main.main()\n"
    )
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*args: str) -> str:
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_it_runs_outside_the_repository(mkport: Callable[..., str]) -> None:
    assert "doctor" in mkport("--help")


@pytest.mark.slow
def test_its_verbs_work_outside_the_repository(mkport: Callable[..., str]) -> None:
    assert json.loads(mkport("doctor", "--json"))["ready"]
    mkport("synth", "--family", "llama", "-o", "model")
    found = json.loads(mkport("run", "Hi", "--model", "model", "--max-tokens", "3", "--json"))
    assert len(found["generation"]["ids"]) == 3 or found["generation"]["reason"] == "stop"
    checked = json.loads(mkport("check", "gemm", "--json"))
    assert checked["ok"] and {v["form"] for v in checked["verdicts"]} == set(FORMS)
