"""Writes a page for each code that `mkport port` answers with: its smallest kernel, its very words.

    python docs/refusals/make.py

The kernels of what the analysis refuses are those of its tests; those of warnings and of originals
that are not well defined stand in kernels/ beside this. A page's words are what a port of the
kernel says now.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from mkport.port.finding import TITLES
from mkport.port.geometry import three
from mkport.port.numba_port import port_python
from mkport.port.port import port_file

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
FOLDERS = (REPOSITORY / "tests/port/refused", HERE / "kernels")
KINDS = (
    ("MK1", "refused", "The port is refused (exit code 3): nothing is written."),
    (
        "MK2",
        "not well defined",
        "The original is not well defined (exit code 4): run on a CPU, unmodified, it did this. "
        "Equal bits are asked of an original that has bits of its own.",
    ),
    ("MK3", "warning", "A warning: the kernel is ported, and this is for its author to answer."),
)
COMPARED = ("MK180", "MK181", "MK307")  # what original and port are run for
COMPILED = ("MK160", "MK161", "MK170")  # what the GPU's compiler has to say something to


@dataclass(frozen=True)
class Case:
    """A code's smallest kernel and the options in its first line."""

    code: str
    text: str
    command: str
    options: dict
    arguments: list[str]

    @property
    def python(self) -> bool:
        """Whether it is a Numba kernel."""
        return ".py" in self.command


def case_of(code: str) -> tuple[Case, Path]:
    """The kernel of a code."""
    paths = [path for folder in FOLDERS for path in sorted(folder.glob(f"{code}.[cp][uy]"))]
    head, text = paths[0].read_text(encoding="utf-8").split("\n", 1)
    options: dict = {}
    arguments: list[str] = []
    words = shlex.split(head.lstrip("/# ")) if head.lstrip("/# ").startswith("--") else []
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name == "--arg":
            arguments.append(value)
        else:
            name = name.removeprefix("--")
            own = {"shared": int, "types": str}.get(name)
            options[name] = own(value) if own else three(value, name)
    text = f"{head}\n{text}"
    kernels = re.findall(r"__global__[^;{]*?\b(\w+)\s*\(\w*[^()]*\)\s*\{", text)
    if len(kernels) > 1:
        options["kernel"] = kernels[-1]
    name = paths[0].name + (f":{kernels[-1]}" if len(kernels) > 1 else "")
    command = " ".join(["mkport port", name, *map(shlex.quote, words)])
    return Case(code, text, command, options, arguments), paths[0]


def message(code: str) -> str:
    """What a port of the code's kernel says, word for word."""
    case, path = case_of(code)
    port = port_python if path.suffix == ".py" else port_file
    report = port(
        path, **case.options, arguments=case.arguments or None,
        run=bool(case.arguments) or code == "MK181",
        compile=code in COMPILED,
    )  # fmt: skip
    said = [str(finding) for finding in report.findings if finding.code == code]
    told = said[0] if said else f"(the kernel is answered with {report.verdict})"
    return re.sub(r"\d{12,}", "(an address)", told)


def page(code: str, said: str) -> str:
    """A code's page."""
    kind, what = next((kind, what) for start, kind, what in KINDS if code.startswith(start))
    lines = [f"# {code}: {TITLES[code]}", "", what, ""]
    case, _ = case_of(code)
    lines += [
        "```python" if case.python else "```cuda",
        case.text.rstrip(),
        "```",
        "",
        f"`{case.command}` says:",
        "",
    ]
    return "\n".join([*lines, f"> {said}", ""])


def index() -> str:
    """The table of all codes."""
    lines = [
        "# What `mkport port` answers with", "",
        "A code, the file and line, what stands there, what it would do in a megakernel, and the",
        "smallest edit that mends it. Each code has a page with its smallest kernel and its words;",
        "the pages are written by [make.py](make.py).", "",
        "| code | about | |", "|---|---|---|",
    ]  # fmt: skip
    for code, title in TITLES.items():
        kind = next(kind for start, kind, _ in KINDS if code.startswith(start))
        lines.append(f"| [{code}]({code}.md) | {title} | {kind} |")
    return "\n".join(lines) + "\n"


def pages(run: bool = True) -> dict[str, str]:
    """Every page by its file's name; `run` says whether those are wanted that need a compiler."""
    made = {"README.md": index()}
    for code in TITLES:
        if run or not (code.startswith("MK2") or code in (*COMPILED, *COMPARED)):
            made[f"{code}.md"] = page(code, message(code))
    return made


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
    sys.exit(0)
