"""The GPU that is here: what it is called, what it can hold; and kernels compiled for it.

Nothing here imports CuPy before it is asked for a GPU.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from typing import Any

from mkport.cache import cache_dir
from mkport.errors import UserError
from mkport.machines.cuda.nvrtc import nvrtc

OLDEST = 80  # compute capability: bf16 mma, mbarriers, cp.async


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
        raise UserError(
            "The CUDA machine needs CuPy, which is not installed: pip install 'mkport[cuda13]' "
            "(or cuda12, after the driver's CUDA version)."
        ) from error
    if not cupy.cuda.is_available():
        raise UserError(
            "There is no CUDA GPU that CuPy can use here. Without one, use the CPU machine, or "
            "run the CUDA source on the CPU with the host machine."
        )
    device = cupy.cuda.Device()
    capability = int(device.compute_capability)
    properties = cupy.cuda.runtime.getDeviceProperties(device.id)
    name = properties["name"].decode()
    if capability < OLDEST:
        raise UserError(
            f"{name} has compute capability {capability / 10}; the CUDA machine needs "
            f"{OLDEST / 10} (Ampere) or later."
        )
    return Gpu(
        name,
        f"sm_{capability}" + ("a" if capability == 90 else ""),
        int(properties["multiProcessorCount"]),
        int(properties["sharedMemPerBlockOptin"]),
    )


@cache
def load(source: str, kernel: str, cooperative: bool = False) -> Any:
    """Compiles a CUDA file for the device, or takes it from the cache: a `cupy.RawKernel`.

    `cooperative` launches are refused by the driver when their blocks cannot all be resident.
    """
    import cupy

    here, compiler = gpu(), nvrtc()
    key = f"{here.arch} {compiler.version} {source}"
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = cache_dir("cuda") / f"{name}.cubin"
    if not path.is_file():
        compiled = compiler.compile(source, here.arch)
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as new:
            new.write(compiled.cubin)
        os.replace(new.name, path)
    module = cupy.RawModule(path=str(path), enable_cooperative_groups=cooperative)
    return module.get_function(kernel)
