"""What the GPU's compiler makes of a kernel and its port: registers, spills, non-coherent loads.

NVRTC needs no GPU; where it is missing, or a header is, that is said and nothing is concluded. The
machine code is read by nvdisasm where there is one; the assembler's input always.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mkport.compose.cuda import compose_cuda
from mkport.declare import Op
from mkport.declare.generate import struct_name
from mkport.errors import UserError
from mkport.machines.cuda.headers import include_folders, wheels
from mkport.machines.cuda.nvrtc import Compiled, nvrtc
from mkport.port.finding import Finding
from mkport.port.kernel import Kernel
from mkport.port.loads import noncoherent

ARCH = "sm_90a"
MAX_REGISTERS = 168
PROBE = "mk_probe"
# An original's constexpr functions need not say that they are for the device too.
ORIGINAL = ("--device-as-default-execution-space",)
DISASSEMBLER = "MKPORT_NVDISASM"


@dataclass(frozen=True)
class Code:
    """One kernel's machine code in numbers; -1 where that was not to be had."""

    what: str  # "the original", "the port alone", "inside a megakernel"
    registers: int
    spills: int  # bytes
    noncoherent: int  # loads of memory, in the assembler's input
    constant: int = -1  # LDG.*.CONSTANT, in the machine code
    tables: int = 0  # non-coherent loads of tables that are compiled in, which are safe


@dataclass(frozen=True)
class Built:
    """What was compiled, and why not where it was not."""

    codes: tuple[Code, ...]
    version: str
    skipped: str = ""
    findings: tuple[Finding, ...] = ()
    note: str = ""  # why the original is not among the codes


def compile_port(
    op: Op,
    kernel: Kernel,
    instance: str,
    original: str,
    immutable: bool,
    libraries: bool = False,
) -> Built:
    """Compiles the original, the port alone and the port inside a megakernel, and compares.

    `instance` is how the file's global scope names the kernel's instance, "" for no template;
    `original` holds the file after a line `#line 1`, so that an error's line is the file's. With
    `libraries` it includes headers of other releases than it may have been written for: that it
    does not compile is noted then, and says nothing of the port.
    """
    try:
        compiler = nvrtc()
    except UserError as error:
        return Built((), "", str(error))
    version = f"NVRTC {compiler.version[0]}.{compiler.version[1]} for {ARCH}"
    program = compose_cuda([op], "f32", "f32", rows=1)
    include = include_folders()
    probe = (
        f'\nextern "C" __global__ void __launch_bounds__(256) {PROBE}(const MkBox* box, int tile, '
        f"int ring) {{\n  MkCompute c = {{}};\n  c.ring.base = mk_shared() + MK_FIXED_BYTES;\n"
        f"  c.ring.bytes = ring;\n  struct {op.name}::compute(mk_args<{struct_name(op)}>(*box), "
        "tile, c);\n}\n"
    ).replace(f"struct {op.name}::", f"{op.name}::")
    codes: list[Code] = []
    last = original.partition("\n#line 1\n")[2].count("\n") + 1
    note = ""
    try:
        first = compiler.compile(
            original, ARCH, f"{kernel.name}.cu",
            instances=[instance] if instance else (), include=include, more=ORIGINAL,
        )  # fmt: skip
        codes.append(_code("the original", first, kernel.name))
    except UserError as error:
        missing = _missing_header(str(error))
        refused = _refused(kernel, "the original", str(error), last)
        if missing:
            note = f"the original was not compiled: the header {missing} is not here"
        elif libraries:
            note = f"the original was not compiled with the headers that are here: {refused.cause}"
        else:
            return Built((), version, "", (refused,))
    try:
        whole = compiler.compile(program.source + probe, ARCH, include=include)
    except UserError as error:
        if missing := _missing_header(str(error)):
            return Built(tuple(codes), version, f"the header {missing} is not here")
        return Built(tuple(codes), version, "", (_refused(kernel, "the port", str(error)),), note)
    codes += [
        _code("the port alone", whole, PROBE),
        _code("inside a megakernel", whole, "megakernel"),
    ]
    return Built(tuple(codes), version, "", tuple(_judged(kernel, codes, immutable)), note)


def _judged(kernel: Kernel, codes: list[Code], immutable: bool) -> list[Finding]:
    found = []
    port = next(code for code in codes if code.what == "the port alone")
    most = max(code.registers for code in codes if code.what != "inside a megakernel")
    if most > MAX_REGISTERS:
        found.append(
            Finding(
                "MK160", kernel.line, 1,
                f"{kernel.name} needs {most} registers a thread.",
                f"A megakernel has {MAX_REGISTERS} for each of its threads; the rest would spill "
                "to memory.",
                "Compute fewer outputs a thread, or split the kernel.",
            )
        )  # fmt: skip
    constant = 0 if port.tables else port.constant  # in machine code they look alike
    if not immutable and (port.noncoherent > 0 or constant > 0):
        count = max(port.noncoherent, constant)
        loads = "load" if count == 1 else "loads"
        found.append(
            Finding(
                "MK170", kernel.line, 1,
                f"The port's machine code has {count} non-coherent {loads} (LDG.CONSTANT).",
                "They may be served from before another worker's write: stale data, silently.",
                "Name the buffers that nothing writes during a step: --immutable NAME,...; this is "
                "a fault of the port if there are none.",
            )
        )  # fmt: skip
    return found


def deduced(kernel: Kernel, words: str) -> Finding | None:
    """The refusal of a helper with shared arrays for a type that its call leaves to the compiler,
    other than those that room was made for; None where a compiler's `words` are of other things."""
    found = re.search(r"mk_place_of_(\w+)<([^>]*)", words)
    if found is None:
        return None
    return Finding(
        "MK123", kernel.line, 1,
        f"{found[1]} has shared arrays and is called for {found[2].split('::')[-1]}, which its "
        "call does not name.",
        "Each instance has arrays of its own in the original, and which instances there are was "
        "not found out; in the arena they would be one, and overwrite each other.",
        "Declare the arrays in the kernel and pass them on, or name the template's arguments in "
        "each call.",
    )  # fmt: skip


def _refused(kernel: Kernel, what: str, words: str, last: int = 0) -> Finding:
    """The compiler's first error; of the original, whose lines are the file's, in its line."""
    if (helper := deduced(kernel, words)) is not None:
        return helper
    lines = [line for line in words.splitlines() if "error" in line]
    first = (lines or words.splitlines() or [""])[0]
    said = re.sub(r"^\S+\(\d+\): ", "", first).strip()
    place = re.match(rf"{re.escape(kernel.name)}\.cu\((\d+)\): ", first)
    line = int(place[1]) if place and int(place[1]) <= last else kernel.line
    return Finding(
        "MK161", line, 1,
        f"The GPU's compiler refuses {what} of {kernel.name}: {said[:200]}.",
        "There is nothing to run.",
        "Make the file compile alone with NVRTC; names of other headers must come with it.",
    )  # fmt: skip


def _missing_header(words: str) -> str:
    found = re.search(r'(?:could not|cannot) open source file "([^"]+)"', words)
    return found[1] if found else ""


def _code(what: str, compiled: Compiled, name: str) -> Code:
    entries = [entry for entry in compiled.registers if name in entry]
    entry = name if name in compiled.registers else (entries or [""])[0]
    body = re.search(
        rf"\.entry\s+{re.escape(entry)}\b.*?(?=\n\.visible \.entry|\Z)", compiled.ptx, re.DOTALL
    )
    loads, tables = noncoherent(body[0], compiled.ptx) if body and entry else (-1, 0)
    return Code(
        what, compiled.registers.get(entry, -1), compiled.spills.get(entry, -1), loads,
        _constant_loads(compiled.cubin, entry), tables,
    )  # fmt: skip


@cache
def disassembler() -> str | None:
    """The path of nvdisasm: `MKPORT_NVDISASM`, the path, a toolkit, the `nvidia` wheels."""
    if given := os.environ.get(DISASSEMBLER):
        return given
    if found := shutil.which("nvdisasm"):
        return found
    places = [root / part for root in wheels() for part in ("cu13/bin", "cuda_nvdisasm/bin")]
    places += [Path(os.environ[name]) / "bin" for name in ("CUDA_PATH", "CUDA_HOME")
               if os.environ.get(name)]  # fmt: skip
    places.append(Path("/usr/local/cuda/bin"))
    for place in places:
        if os.access(place / "nvdisasm", os.X_OK):
            return str(place / "nvdisasm")
    return None


def _constant_loads(cubin: bytes, entry: str) -> int:
    """How many LDG.*.CONSTANT a kernel's machine code has; -1 without a disassembler."""
    tool = disassembler()
    if tool is None or not entry:
        return -1
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "code.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, str(path)], capture_output=True, text=True, errors="replace")
    if done.returncode:
        return -1
    section = re.search(
        rf"\.section\s+\.text\.{re.escape(entry)}\b.*?(?=\n\s*\.section\s+\.text\.|\Z)",
        done.stdout, re.DOTALL,
    )  # fmt: skip
    return len(re.findall(r"\bLDG\.\S*CONSTANT", section[0])) if section else -1
