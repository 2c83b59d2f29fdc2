"""The coding agent OpenCode: installed once into the cache by npm, and run in a folder of its own.

It runs offline, with a home folder that belongs to the test. Where node is absent, or npm cannot
install it, the tests are left out with the reason.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mkport.cache import cache_dir

PACKAGE = "opencode-ai@1.18.33"
DOCS = Path(__file__).parents[3] / "docs/how-to/opencode"


@dataclass
class OpenCode:
    """The program, and the folder it works in."""

    program: Path
    folder: Path

    def configure(self, file: str, url: str, model: str) -> dict[str, Any]:
        """Puts a page's configuration into the folder, with another address and model."""
        text = (DOCS / file).read_text().replace("http://127.0.0.1:8000", url)
        config: dict[str, Any] = json.loads(text.replace("MODEL", model))
        (self.folder / "opencode.json").write_text(json.dumps(config))
        return config

    def run(self, message: str, *options: str, limit_s: float = 180) -> list[dict[str, Any]]:
        """The events of one `opencode run`, which ends with 1 when it met an error on its way;
        fails when it ends in another way, or not in time."""
        home = self.folder.with_name(self.folder.name + "-home")
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "NO_PROXY": "127.0.0.1",
        }
        # words apart: one argument with spaces would reach the model in quotes
        command = [str(self.program), "run", "--format", "json", *options, *message.split()]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, timeout=limit_s,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == bool(errors(events)), done.stderr[-2000:]
        return events


def texts(events: list[dict[str, Any]]) -> list[str]:
    """What the model said, by message part."""
    parts = [event["part"] for event in events if event["type"] == "text"]
    return [part["text"] for part in parts if not part.get("synthetic")]


def calls(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tool calls that OpenCode ran: tool, and state with input and output."""
    return [event["part"] for event in events if event["type"] == "tool_use"]


def errors(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What OpenCode complained of: name and data."""
    return [event["error"] for event in events if event["type"] == "error"]


@pytest.fixture(scope="session")
def program() -> Path:
    for needed in ("node", "npm"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed}: apt-get install nodejs npm")
    folder = cache_dir("opencode")
    if not (installed := _found(folder)):
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund",
                   "--ignore-scripts", PACKAGE]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not install {PACKAGE} in 300 s")
        if not (installed := _found(folder)):
            pytest.skip(f"npm cannot install {PACKAGE} here: {done.stderr.strip()[-300:]}")
    return installed


def _found(folder: Path) -> Path | None:
    """The binary for this system, if the package is installed in the right version."""
    modules = folder / "node_modules"
    package = modules / "opencode-ai/package.json"
    if not package.is_file() or json.loads(package.read_text())["version"] not in PACKAGE:
        return None
    programs = [path for path in sorted(modules.glob("opencode-*/bin/opencode")) if _runs(path)]
    return programs[0] if programs else None


def _runs(path: Path) -> bool:
    """Whether a binary is for this machine (a package for each kind may be there)."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.fixture
def opencode(program: Path, tmp_path: Path) -> OpenCode:
    folder = tmp_path / "project"
    folder.mkdir()
    return OpenCode(program, folder)
