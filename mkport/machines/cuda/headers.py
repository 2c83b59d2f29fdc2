"""Where CUDA's headers are: a toolkit's, or those that wheels bring. Nothing here needs a GPU."""

import importlib.util
import os
import re
from functools import cache
from pathlib import Path


def folders_for(source: str) -> tuple[Path, ...]:
    """The folders that a CUDA text's includes are looked for in; none for one that has none."""
    return include_folders() if re.search(r"(?m)^\s*#\s*include\s*<", source) else ()


@cache
def include_folders() -> tuple[Path, ...]:
    """Folders with CUDA's headers and CUB's, where a toolkit or wheels brought them."""
    roots = [root / part for root in wheels() for part in ("cu13/include", "cuda_runtime/include")]
    roots += [Path(os.environ[name]) / "include" for name in ("CUDA_PATH", "CUDA_HOME")
              if os.environ.get(name)]  # fmt: skip
    roots.append(Path("/usr/local/cuda/include"))
    found = [root for root in roots if (root / "cuda_fp16.h").is_file()]
    inner = [root / "cccl" for root in roots]
    inner += [root / "cuda_cccl/include" for root in wheels()]
    cupy = importlib.util.find_spec("cupy")
    for place in (cupy.submodule_search_locations or ()) if cupy else ():
        bundled = Path(place) / "_core/include/cupy/_cccl"
        if (bundled / "cub/cub/cub.cuh").is_file():
            found += [bundled / part for part in ("cub", "libcudacxx", "thrust")]
    found += [root for root in inner if (root / "cub/cub.cuh").is_file()][:1]
    return tuple(found)


def wheels() -> list[Path]:
    """The folders of the `nvidia` wheels."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
