"""The minimal kernels of `refused/`: a file a code, its options in the first line."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkport.port.geometry import three
from mkport.port.port import port_file
from mkport.port.report import Report

HERE = Path(__file__).parent / "refused"
CODES = sorted(path.stem for path in HERE.glob("MK*.cu"))


@dataclass(frozen=True)
class Refused:
    """One file, the kernel in it and the options that its first line names."""

    code: str
    path: Path
    kernel: str
    options: dict[str, Any]

    def port(self, **more: Any) -> Report:
        """Its report; nothing is run or compiled unless that is asked for."""
        quiet = {"run": False, "compile": False}
        return port_file(self.path, self.kernel, **quiet | self.options | more)


def refused(code: str) -> Refused:
    """The file of a code."""
    path = HERE / f"{code}.cu"
    text = path.read_text(encoding="utf-8")
    words = shlex.split(text.split("\n")[0].removeprefix("//"))
    options: dict[str, Any] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        name = name.removeprefix("--")
        options[name] = int(value) if name == "shared" else three(value, name)
    kernel = re.findall(r"__global__[^;{]*?\b(\w+)\s*\(\w*[^()]*\)\s*\{", text)[-1]
    return Refused(code, path, kernel, options)


def message(code: str) -> str:
    """What a code's port is to say, word for word."""
    return (HERE / f"{code}.txt").read_text(encoding="utf-8").rstrip("\n")
