"""NVRTC called directly: CUDA C++ text in, machine code out; needs neither a GPU nor a driver.

The library comes with the `nvidia-cuda-nvrtc` wheels (CuPy's `[ctk]` extra, PyTorch) or with a
toolkit; `MKPORT_NVRTC` names another file.
"""

import ctypes
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mkport.errors import UserError
from mkport.extras import install

VARIABLE = "MKPORT_NVRTC"
TOOLKITS = ("CUDA_PATH", "CUDA_HOME")
UNCACHED = (12, 9)  # a version that knows how to compile without a cache
PATTERNS = ("libnvrtc.so.1[2-9]", "libnvrtc.so")


@dataclass(frozen=True)
class Compiled:
    """Machine code, and what the assembler says of each kernel's registers and spills."""

    cubin: bytes
    log: str
    registers: dict[str, int]  # a thread
    spills: dict[str, int]  # bytes stored and loaded, a thread; of called functions too, as
    # which the registers that a call saves count as well
    ptx: str = ""
    names: Mapping[str, str] = field(default_factory=dict)  # of the instances, in the machine code


class Nvrtc:
    """One NVRTC library. Where a call of it fails otherwise than by the text, RuntimeError is
    raised."""

    def __init__(self, path: str) -> None:
        """Loads the library. Raises UserError when that fails, RuntimeError when it has no
        version."""
        try:
            for part in _parts_beside(path):
                ctypes.CDLL(part)
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise UserError(f"NVRTC at {path} cannot be loaded: {error}.") from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.path = path
        self.version = (major.value, minor.value)

    def compile(
        self,
        source: str,
        arch: str,
        name: str = "megakernel.cu",
        lines: bool = False,
        instances: Sequence[str] = (),
        include: Sequence[Path] = (),
        more: Sequence[str] = (),
    ) -> Compiled:
        """Compiles for an architecture such as "sm_90a"; with `lines` the code knows its lines.

        `instances` names templates to instantiate ("softmax<float, 4>"), `include` folders to
        search, `more` further options.

        Raises UserError with the compiler's words when it refuses the text or the architecture, and
        RuntimeError when the library itself fails. Source: NVIDIA's NVRTC documentation.
        """
        program = ctypes.c_void_p()
        self._call(
            "CreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        )
        try:
            options = [*options_of(self.version, arch, lines, include), *more]
            for instance in instances:
                self._call("AddNameExpression", program, instance.encode())
            array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            state = self._library.nvrtcCompileProgram(program, len(options), array)
            log = self._bytes(program, "ProgramLog").decode(errors="replace").rstrip("\0")
            if state:
                reason = self._library.nvrtcGetErrorString(state).decode()
                raise UserError(f"NVRTC {self.version} refused {name} for {arch}: {reason}\n{log}")
            ptx = self._bytes(program, "PTX").decode(errors="replace").rstrip("\0")
            names = {instance: self._lowered(program, instance) for instance in instances}
            return Compiled(self._bytes(program, "CUBIN"), log, *usage(log), ptx, names)
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _lowered(self, program: ctypes.c_void_p, instance: str) -> str:
        name = ctypes.c_char_p()
        self._call("GetLoweredName", program, instance.encode(), ctypes.byref(name))
        return (name.value or b"").decode()

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, text)
        return text.raw

    def _call(self, name: str, *args: object) -> None:
        state = getattr(self._library, f"nvrtc{name}")(*args)
        if state:
            reason = self._library.nvrtcGetErrorString(state).decode()
            raise RuntimeError(f"nvrtc{name}: {reason}")


def options_of(
    version: tuple[int, int], arch: str, lines: bool, include: Sequence[Path]
) -> list[str]:
    """What a library of this version [major, minor] is told. It must not answer from the driver's
    cache: that keeps machine code, but not what the assembler said of it."""
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
    options += ["--no-cache"] if version >= UNCACHED else []
    options += ["-lineinfo"] if lines else []
    return options + [f"--include-path={folder}" for folder in include]


def _parts_beside(path: str) -> list[str]:
    """The library's own parts in its folder, where the loader does not look: loaded before it opens
    them by name."""
    if os.sep not in path:
        return []
    return [str(part) for part in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*"))]


def usage(log: str) -> tuple[dict[str, int], dict[str, int]]:
    """Registers of each kernel and spilled bytes of each function, from the assembler's log."""
    registers: dict[str, int] = {}
    spills: dict[str, int] = {}
    kernel = function = ""
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found[1]
        if found := re.search(r"Function properties for (\w+)", line):
            function = found[1]
        if found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills[function] = int(found[1]) + int(found[2])
        if found := re.search(r"Used (\d+) registers", line):
            registers[kernel] = int(found[1])
    return registers, spills


@cache
def find() -> str | None:
    """The path of the newest NVRTC library found, or its bare name if the process has it; or None.

    Looked for: `MKPORT_NVRTC`, the `nvidia` wheels, the toolkit of CUDA_PATH or /usr/local/cuda,
    the loader's own path.
    """
    if given := os.environ.get(VARIABLE):
        return given
    for folder in _folders():
        for pattern in PATTERNS:
            if files := sorted(folder.glob(pattern), reverse=True):
                return str(files[0])
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def _folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    parts = ("cu13/lib", "cuda_nvrtc/lib")
    tools = [Path(os.environ[name]) for name in TOOLKITS if os.environ.get(name)]
    tools.append(Path("/usr/local/cuda"))
    return [root / part for part in parts for root in wheels] + [root / "lib64" for root in tools]


@cache
def nvrtc() -> Nvrtc:
    """The library of `find`. Raises UserError when there is none."""
    path = find()
    if path is None:
        raise UserError(
            f"The CUDA compiler library NVRTC was not found: {install('cuda13')} (or "
            f"cuda12), or set {VARIABLE} to the path of libnvrtc.so."
        )
    return Nvrtc(path)
