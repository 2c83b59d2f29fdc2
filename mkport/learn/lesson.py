"""What recipes use beside the library: a timeline to look at, and the command that proves a stage.

In a notebook a picture shows itself; run as a script, a recipe writes it to `out/recipes`.
"""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

from mkport.files import make_folder
from mkport.trace import Trace, draw
from mkport.trace.sketch import sketch

OUT = Path("out/recipes")


class Picture:
    """An SVG that notebooks show by themselves."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg


def show(trace: Trace, name: str, title: str | None = None) -> Picture | None:
    """Draws a trace. In a script it is written to out/recipes/`name`.svg; without matplotlib it is
    printed in characters. The caption, which says whether it was measured or simulated, is the
    trace's own."""
    if importlib.util.find_spec("matplotlib") is None:
        print(sketch(trace))
        return None
    file = make_folder(OUT) / f"{name}.svg"
    draw(trace, file, title=title)
    if "ipykernel" in sys.modules:
        return Picture(file.read_text(encoding="utf-8"))
    print(f"picture: {file}")
    return None


def prove(command: str) -> str:
    """Runs a command of mkport, prints what it says, and returns it.

    Raises AssertionError when it does not end with 0.
    """
    words = shlex.split(command)
    assert words[0] == "mkport", "a proof is a command of mkport"
    print(f"$ {command}")
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, encoding="utf-8"
    )
    print((done.stdout + done.stderr).strip())
    assert done.returncode == 0, f"{command} ended with {done.returncode}"
    return done.stdout
