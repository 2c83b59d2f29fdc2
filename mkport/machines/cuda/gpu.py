"""The GPU that is here: what it is called, what it can hold; and kernels compiled for it.

Whatever stands in the way (no GPU, an old one, an old driver, another process, too little memory)
is told as an error that names it and the way out. Nothing here imports CuPy before it is asked for
a GPU.
"""

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mkport.cache import cache_dir
from mkport.errors import UserError
from mkport.extras import install
from mkport.machines.cuda.headers import folders_for
from mkport.machines.cuda.nvrtc import nvrtc

OLDEST = 80  # compute capability: bf16 mma, mbarriers, cp.async
BESIDE = 768 << 20  # bytes that code, records and the context may take beside a program's tensors
ELSEWHERE = (
    "Without one, use the CPU machine, or run the CUDA source on the CPU with the host machine."
)
# What the runtime answers when it cannot work, by CUDA's error number.
OUT_OF_MEMORY, OLD_DRIVER, UNAVAILABLE, NO_DEVICE = 2, 35, 46, 100
REFUSALS = {
    OUT_OF_MEMORY: "The GPU has no memory left for a process of ours: another process holds it. "
    "Look with nvidia-smi, end that process, or choose another GPU with CUDA_VISIBLE_DEVICES.",
    UNAVAILABLE: "The GPU is held by another process, which has it for itself (compute mode "
    "exclusive), or takes none (prohibited). Look with nvidia-smi, end that process, or choose "
    "another GPU with CUDA_VISIBLE_DEVICES.",
    NO_DEVICE: f"There is no CUDA GPU that CuPy can use here. {ELSEWHERE}",
}


@dataclass(frozen=True)
class Gpu:
    """The current device."""

    name: str
    arch: str  # as NVRTC names it: "sm_90a"
    multiprocessors: int
    shared_bytes: int  # of a block, at most


@cache
def gpu() -> Gpu:
    """The current device. Raises UserError when there is none that this machine can use."""
    try:
        import cupy
    except ImportError as error:
        if _driver_is_here():
            raise UserError(
                "The CUDA machine needs CuPy, which is not installed: "
                f"{install('cuda13')} (or cuda12, after the driver's CUDA version). {ELSEWHERE}"
            ) from error
        raise UserError(
            f"No GPU was found: there is no NVIDIA driver here. {ELSEWHERE} Where there is one, "
            f"the CUDA machine needs CuPy too: {install('cuda13')} (or cuda12)."
        ) from error
    runtime = cupy.cuda.runtime
    try:
        if runtime.getDeviceCount() < 1:
            raise UserError(REFUSALS[NO_DEVICE])
        device = cupy.cuda.Device()
        capability = int(device.compute_capability)
        properties = runtime.getDeviceProperties(device.id)
        name = properties["name"].decode()
        if capability < OLDEST:
            raise UserError(
                f"{name} has compute capability {capability / 10}; the CUDA machine needs "
                f"{OLDEST / 10} (Ampere) or later. {ELSEWHERE}"
            )
        runtime.memGetInfo()  # the first call that needs a place on the device
    except runtime.CUDARuntimeError as error:
        raise UserError(_refusal(error, runtime)) from error
    return Gpu(
        name,
        f"sm_{capability}" + ("a" if capability == 90 else ""),
        int(properties["multiProcessorCount"]),
        int(properties["sharedMemPerBlockOptin"]),
    )


def _driver_is_here() -> bool:
    """Whether the driver's library can be loaded, which is asked without CuPy."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def _refusal(error: Any, runtime: Any) -> str:
    """Why the runtime cannot work, and what to do about it."""
    code = int(error.status)
    if code == OLD_DRIVER:
        driver = int(runtime.driverGetVersion())
        if driver == 0:
            return f"There is no NVIDIA driver here. {REFUSALS[NO_DEVICE]}"
        built = int(runtime.runtimeGetVersion())
        return (
            f"The NVIDIA driver knows CUDA up to {_version(driver)}, but CuPy was built for "
            f"{_version(built)}: update the driver, or {install(f'cuda{driver // 1000}')}."
        )
    return REFUSALS.get(code, f"CUDA does not work here: {error}. Look with nvidia-smi.")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def free_bytes() -> int:
    """Bytes that can still be allocated, what CuPy keeps for reuse included."""
    import cupy

    gpu()
    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free) + int(cupy.get_default_memory_pool().free_bytes())


def check_room(parts: Mapping[str, int], advice: str) -> None:
    """Raises UserError when what is to be allocated, bytes by name, does not fit the device.

    `advice` says how to make it less.
    """
    free, needed = free_bytes(), sum(parts.values()) + BESIDE
    if needed <= free:
        return
    said = ", ".join(f"{name} {_gigabytes(size)}" for name, size in parts.items() if size)
    raise UserError(
        f"This needs {_gigabytes(needed)} of GPU memory ({said}, code and records "
        f"{_gigabytes(BESIDE)}), but {gpu().name} has {_gigabytes(free)} free. {advice}"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def fill_words(array: Any, word: int) -> None:
    """Queues on the current stream that all words of a CuPy `array` [...], of 4 n bytes in all,
    become `word`, an int32. Raises UserError when the driver refuses."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    error = _driver().cuMemsetD32Async(
        ctypes.c_uint64(array.data.ptr),
        ctypes.c_uint32(word & 0xFFFFFFFF),
        ctypes.c_size_t(array.nbytes // 4),
        ctypes.c_void_p(stream),
    )
    if error:
        raise UserError(f"The NVIDIA driver could not fill memory: its error is {error}.")


@cache
def _driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def compiled(source: str) -> Path:
    """The machine code of a CUDA file for this device, from the cache if it is there; several
    threads may ask at once. Errors as `load`."""
    import cupy

    here, compiler = gpu(), nvrtc()
    driver = int(cupy.cuda.runtime.driverGetVersion())
    if driver // 1000 < compiler.version[0]:
        raise UserError(
            f"The NVIDIA driver knows CUDA up to {_version(driver)}, but the compiler "
            f"{compiler.path} makes code for {'.'.join(map(str, compiler.version))}: update the "
            f"driver, or {install(f'cuda{driver // 1000}')}."
        )
    key = f"{here.arch} {compiler.version} {source}"
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = cache_dir("cuda") / f"{name}.cubin"
    if not path.is_file():
        made = compiler.compile(source, here.arch, include=folders_for(source))
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as new:
            new.write(made.cubin)
        os.replace(new.name, path)
    return path


@cache
def load(source: str, kernel: str, cooperative: bool = False) -> Any:
    """Compiles a CUDA file for the device, or takes it from the cache: a `cupy.RawKernel`.

    `cooperative` launches are refused by the driver when their blocks cannot all be resident.
    Raises UserError when the driver is older than the compiler.
    """
    import cupy

    path = compiled(source)
    module = cupy.RawModule(path=str(path), enable_cooperative_groups=cooperative)
    return module.get_function(kernel)
