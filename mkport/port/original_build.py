"""Compiles a user's CUDA file, as it is, into programs that run its kernels on a CPU.

There are two: in one every load and store has a hook, in the other AddressSanitizer's checks. What
answers them is compiled apart, once. Between any two arrays in shared memory there is room that is
nobody's, and which arrays there are is read off the compiled file. Running is `original.py`'s.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mkport.machines.host as host
from mkport.cache import cache_dir
from mkport.errors import UserError
from mkport.machines.host.build import compiler

HOST = Path(host.__file__).parent
SOURCE = "original.cu"  # the name under which the user's text is compiled
DYNAMIC_BYTES = 232448  # of dynamic shared memory, as in original_job.h
COMMON = ("-std=c++17", "-fno-pie", "-ffp-contract=off", "-w")
CHECKED = ("-O1", "-g", "-fno-strict-aliasing")
HOOKED = (
    "-fsanitize=thread",
    "-fsanitize=bounds,shift-exponent,signed-integer-overflow,unreachable,return",
)  # fmt: skip
GNU = (  # a loop goes as far as it says, whatever its arrays have
    "-fno-extern-tls-init", "-fno-gnu-unique", "-fpermissive",
    "-fno-aggressive-loop-optimizations",
)  # fmt: skip
# A vector is loaded as a whole; volatile accesses have hooks of their own.
GNU_HOOKED = ("-fno-tree-sra", "--param=tsan-distinguish-volatile=1")
CLANG_HOOKED = ("-mllvm", "-tsan-distinguish-volatile=1")
ADDRESS = ("-fsanitize=address",)
BETWEEN = 64  # bytes behind each shared array that are nobody's
_BRACKETED = r"\((?:[^()]|\([^()]*\))*\)"  # such as (sizeof(T))
DYNAMIC_ARRAY = re.compile(
    rf"\bextern\s+(?:\w+\s*{_BRACKETED}\s*)*__shared__\b[^;{{}}()]*?"
    rf"(?:{_BRACKETED}[^;{{}}()]*?)*(\w+)\s*\[\s*\]"
)
ARRAY = re.compile(r"^([\w.$]+):\n[ \t]+\.zero[ \t]+(\d+)$", re.MULTILINE)
SECTION = re.compile(r"^[ \t]+\.(?:section[ \t]|text\b|data\b|bss\b)", re.MULTILINE)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[\"<]([^\">\n]+)[\">]", re.MULTILINE)
ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
AT = re.compile(rf"{re.escape(SOURCE)}:(\d+):\d+: (?:fatal )?error: (.*)")


class NotBuilt(UserError):
    """The C++ compiler refused the user's file. `line` is the first error's, 0 if it is nowhere."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class SharedArray:
    """A static array in shared memory: its place among all of them, and its bytes."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Built:
    """The program, and the static shared arrays that its kernels have."""

    program: Path
    shared: tuple[SharedArray, ...]


def build_original(
    source: str,
    kernels: Sequence[str],
    include: Sequence[Path] = (),
    define: Mapping[str, str] | None = None,
    address: bool = False,
) -> Built:
    """Compiles a file's text for these kernels, names or instances such as `softmax<float, 128>`.

    `include` are folders of files that it includes, `define` macros. The program is the one with
    hooks, or with AddressSanitizer if `address`. What was compiled before is
    taken from the cache. Raises UserError without a compiler or on another system than Linux, and
    NotBuilt where the compiler refuses the file.
    """
    cxx = compiler()
    if cxx is None or not sys.platform.startswith("linux"):
        raise UserError(
            "Running an original kernel on a CPU needs Linux and a C++ compiler, and "
            + ("found neither g++ nor clang++" if cxx is None else f"this is {sys.platform}")
            + ": install g++, or set CXX to a compiler's path. Analysis and emission need none."
        )
    cases = "".join(f"case {n}: return MK_ENTRY({k}); " for n, k in enumerate(kernels))
    text = (
        f'{source}\nextern "C" MkKernel mk_kernel(int n) {{ switch (n) {{ {cases}}} abort(); }}\n'
    )
    gnu = "clang" not in Path(cxx).name
    flags = [*COMMON, *CHECKED, *(GNU if gnu else ())]
    flags += ADDRESS if address else (*HOOKED, *(GNU_HOOKED if gnu else CLANG_HOOKED))
    flags += [f"-I{HOST}", f"-I{HOST / 'include'}"]
    flags += [f"-I{folder}" for folder in include]
    flags += [f"-D{name}={value}" for name, value in (define or {}).items()]
    key = "\0".join([cxx, *flags, text, _headers(), *_included(text, include)])
    folder = cache_dir("original", hashlib.sha256(key.encode()).hexdigest()[:16])
    made, arrays = folder / "original", folder / "shared.txt"
    if not made.is_file() or not arrays.is_file():
        runner = _runner(cxx, address)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            _make(cxx, flags, text, source, runner, Path(work))
            (Path(work) / "shared.txt").replace(arrays)
            (Path(work) / "original").replace(made)
    lines = (line.split() for line in arrays.read_text().splitlines())
    return Built(made, tuple(SharedArray(n, int(at), int(size)) for n, at, size in lines))


def _make(cxx: str, flags: list[str], text: str, source: str, runner: Path, work: Path) -> None:
    (work / SOURCE).write_text(text, encoding="utf-8")
    done = _run(
        [cxx, *flags, "-include", "original.h", "-x", "c++", "-S", SOURCE, "-o", "k.s"], work
    )
    if done.returncode:
        raise _refusal(cxx, done.stderr, source)
    assembly = (work / "k.s").read_text(encoding="utf-8", errors="surrogateescape")
    (work / "k.s").write_text(_apart(assembly), encoding="utf-8", errors="surrogateescape")
    done = _run([cxx, "-c", "k.s", "-o", "k.o"], work)
    if done.returncode:
        raise _refusal(cxx, done.stderr, source)
    names = DYNAMIC_ARRAY.findall(COMMENT.sub(" ", source))
    missing = _run(["nm", "-u", "k.o"], work).stdout.split()
    wanted = {symbol for symbol in missing for name in names if _is(symbol, name)}
    (work / "dynamic.s").write_text(_dynamic(sorted(wanted)))
    linked = ADDRESS if ADDRESS[0] in flags else ()
    command = [cxx, "-no-pie", *linked, "k.o", str(runner), "dynamic.s", "-o", "original"]
    done = _run(command, work)
    if done.returncode:
        raise _refusal(cxx, done.stderr, source)
    (work / "shared.txt").write_text(_shared_arrays(work))


@cache
def _headers() -> str:
    """All of mkport's own that a built program is made with: headers, and this module."""
    headers = (path for path in sorted(HOST.rglob("*.[hc]*")) if path.suffix in (".h", ".cuh"))
    return "\0".join(path.read_text(encoding="utf-8") for path in [Path(__file__), *headers])


def _included(text: str, folders: Sequence[Path]) -> list[str]:
    """The texts that a text includes from some folders, and what they include in turn: they belong
    to what is compiled."""
    found: dict[Path, str] = {}
    todo = [(text, list(folders))]
    while todo:
        here, places = todo.pop()
        for name in INCLUDE.findall(here):
            path = next((p for folder in places if (p := Path(folder) / name).is_file()), None)
            if path is not None and path not in found:
                found[path] = path.read_text(encoding="utf-8", errors="replace")
                todo.append((found[path], [path.parent, *folders]))
    return [found[path] for path in sorted(found)]


def _apart(assembly: str) -> str:
    """The compiled text with room behind each array in shared memory."""
    parts, at = [], 0
    for head in SECTION.finditer(assembly):
        parts.append(assembly[at : head.start()])
        at = head.start()
    return "".join(
        ARRAY.sub(rf"\g<0>\n\t.zero\t{BETWEEN}", part) if ".tbss" in part[:40] else part
        for part in [*parts, assembly[at:]]
    )


def _runner(cxx: str, address: bool) -> Path:
    """The compiled original_hooks.h."""
    key = hashlib.sha256(f"{cxx}\0{address}\0{_headers()}".encode()).hexdigest()[:16]
    made = cache_dir("original", "runner", key) / "run.o"
    if not made.is_file():
        with tempfile.TemporaryDirectory(dir=made.parent) as work:
            command = [cxx, *COMMON, "-O2", f"-I{HOST}", "-x", "c++", "-c"]
            command += ["-DMK_BESIDE_ADDRESS"] if address else []
            done = _run([*command, str(HOST / "original_hooks.h"), "-o", "run.o"], Path(work))
            if done.returncode:
                raise UserError(f"{cxx} refused original_hooks.h:\n{done.stderr[:4000]}")
            (Path(work) / "run.o").replace(made)
    return made


def _run(command: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=work, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"{command[0]} is missing: install it (binutils, g++).") from error


def _refusal(cxx: str, text: str, source: str) -> NotBuilt:
    found = AT.search(text)
    line, what = (int(found[1]), found[2]) if found else (0, text.strip()[:2000])
    if not found and "ssembler messages" in text and (asm := ASM.search(source)):
        line, what = source[: asm.start()].count("\n") + 1, "inline PTX"
    where = f" at line {line}: {what}" if line else f": {what}"
    return NotBuilt(
        f"{cxx} cannot compile the kernel's file for a CPU{where}. What only a GPU has (inline "
        "PTX, libraries that are not here) must be written in CUDA C++ to be run without one.",
        line,
    )


def _is(symbol: str, name: str) -> bool:
    """Whether a symbol is the variable of this name, in any namespace."""
    return symbol == name or (symbol.startswith("_ZN") and symbol.endswith(f"{len(name)}{name}E"))


def _dynamic(symbols: Sequence[str]) -> str:
    """Assembler: every name of the dynamic shared array is the one array."""
    lines = ['.section .tbss,"awT",@nobits', ".balign 1024", ".globl mk_dynamic"]
    lines += [".type mk_dynamic,@object", f"mk_dynamic: .zero {DYNAMIC_BYTES}"]
    lines += [f".size mk_dynamic, {DYNAMIC_BYTES}"]
    for symbol in symbols:
        lines += [f".globl {symbol}", f".set {symbol}, mk_dynamic", f".type {symbol},@object"]
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])


def _shared_arrays(work: Path) -> str:
    """A line for each static shared array: name, offset, bytes."""
    lines = []
    for line in _run(["readelf", "-sW", "original"], work).stdout.splitlines():
        word = line.split()
        if len(word) != 8 or word[3] != "TLS" or word[6] == "UND":
            continue
        size = int(word[2], 0)
        if size != DYNAMIC_BYTES and int(size):
            name = "-" if word[7].startswith("_ZGV") else _plain(word[7])
            lines.append(f"{name} {int(word[1], 16)} {size}")
    return "\n".join(sorted(set(lines)))


def _plain(symbol: str) -> str:
    """The variable's own name: the last one of a mangled symbol."""
    found = re.findall(r"E(\d+)([A-Za-z_]\w*?)(?:_\d+)?$", symbol)
    return found[-1][1][: int(found[-1][0])] if found else symbol
