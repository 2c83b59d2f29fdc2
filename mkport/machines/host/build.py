"""Compiles CUDA files for the host build with the system's C++ compiler, and loads them.

A shared object is kept in the cache under a digest of everything that went into it.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mkport.cache import cache_dir
from mkport.errors import UserError

HERE = Path(__file__).parent
HEADERS = (
    "fiber.h", "world.h", "device.h", "names.h", "vectors.h", "arithmetic.h", "conversions.h",
    "integers.h", "warp.h", "ordinary.h", "include/cuda_fp16.h", "include/cuda_bf16.h",
    "include/half_more.h", "include/cuda_fp8.h", "ptx.h", "apart.h",
)  # fmt: skip
MESSAGE_BYTES = 1 << 16


class HostFault(RuntimeError):
    """The host build found what a GPU would hang on, or answer with garbage."""


@cache
def compiler() -> str | None:
    """The path of g++ or clang++ ($CXX first); None when there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def build(
    source: str, kernels: Sequence[str], sanitize: str = "", ordinary: bool = False
) -> ctypes.CDLL:
    """Compiles a CUDA file and loads it: `host_<kernel>` for each of `kernels`.

    `sanitize` names sanitizers ("address,undefined"), whose runtime must then be in the process
    before this. `ordinary` is for a kernel that is written for CUDA alone. Raises UserError when
    there is no compiler or it refuses the file.
    """
    path = shared_object(source, kernels, sanitize, ordinary)
    return ctypes.CDLL(str(path))


def program_of(source: str) -> Path:
    """A composed file compiled as a program of its own, under AddressSanitizer where the compiler
    has it, from the cache if it is there. See apart.h.

    Raises UserError when there is no compiler or it refuses the file.
    """
    checked = (
        ["-O1", "-g1", "-fno-aggressive-loop-optimizations", "-fsanitize=address"]
        if not unchecked()
        else []
    )
    text = source + '\nMK_HOST_ENTRY(megakernel)\n#include "apart.h"\n'
    return _compiled(text, ["-include", "device.h", *checked], "kernel")


@cache
def unchecked() -> str:
    """Why programs cannot be built and run under AddressSanitizer here; "" where they can."""
    cxx = compiler()
    if cxx is None:
        return "there is no C++ compiler"
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / "tried"
        command = [cxx, "-fsanitize=address", "-x", "c++", "-", "-o", str(made)]
        done = subprocess.run(
            command, input="int main() { return 0; }", capture_output=True, text=True
        )
        if done.returncode:
            return f"{Path(cxx).name} has no AddressSanitizer here"
        done = subprocess.run([str(made)], capture_output=True, text=True, env=plain())
        return "" if done.returncode == 0 else "AddressSanitizer's programs do not start here"


def plain() -> dict[str, str]:
    """The environment without what sets up AddressSanitizer for other programs."""
    return {name: value for name, value in os.environ.items() if name != "ASAN_OPTIONS"}


def shared_object(
    source: str, kernels: Sequence[str], sanitize: str = "", ordinary: bool = False
) -> Path:
    """The compiled file of `build`, from the cache if it is there; arguments as there.

    Raises UserError when there is no compiler or it refuses the file.
    """
    flags = ["-fPIC", "-shared", "-include", "ordinary.h" if ordinary else "device.h"]
    if sanitize:
        flags += ["-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=undefined"]
    text = source + "".join(f"\nMK_HOST_ENTRY({kernel})" for kernel in kernels) + "\n"
    return _compiled(text, flags, "kernel.so")


def _compiled(text: str, more: Sequence[str], name: str) -> Path:
    """The compiled text, a file called `name` in a folder of the cache."""
    cxx = compiler()
    if cxx is None:
        raise UserError(
            "The host build needs a C++ compiler and found neither g++ nor clang++: install one, "
            "or set CXX to its path."
        )
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-DMK_HOST"]
    flags += [f"-I{HERE}", *more]
    key = "\0".join([cxx, *flags, *((HERE / header).read_text() for header in HEADERS), text])
    folder = cache_dir("host", hashlib.sha256(key.encode()).hexdigest()[:16])
    made = folder / name
    if made.is_file():
        return made
    file = folder / "kernel.cc"
    with tempfile.TemporaryDirectory(dir=folder) as work:
        draft = Path(work) / "kernel.cc"
        draft.write_text(text)
        new = Path(work) / name
        command = [cxx, *flags, "-o", str(new), str(draft)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{cxx} refused the composed file:\n{done.stderr[:4000]}")
        os.replace(draft, file)
        os.replace(new, made)
    return made


def launch(
    library: ctypes.CDLL,
    kernel: str,
    args: Sequence[ctypes._SimpleCData],
    *,
    blocks: int,
    together: int,
    threads: int,
    seed: int,
    shared_bytes: int,
) -> str:
    """Runs a kernel: `together` of its blocks side by side, in an order drawn from `seed`.

    Returns "" or, after a deadlock that every thread could leave, what each waited for.
    Raises HostFault for anything worse.
    """
    run = getattr(library, f"host_{kernel}")
    pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
    raw = ctypes.create_string_buffer(shared_bytes * together + 1024)
    shared = -(-ctypes.addressof(raw) // 1024) * 1024
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    state = run(
        pointers,
        blocks,
        together,
        threads,
        ctypes.c_uint64(seed),
        ctypes.c_void_p(shared),
        ctypes.c_int64(shared_bytes),
        message,
        ctypes.c_int64(MESSAGE_BYTES),
    )
    text = message.value.decode(errors="replace")
    if state == 2:
        raise HostFault(text)
    return text if state else ""
