"""What the CUDA source's tests need: a C++ compiler for the host build, an NVRTC library."""

import os
import shutil
from pathlib import Path

import pytest

from mkport.machines.cuda.nvrtc import Nvrtc, find
from mkport.machines.host.build import compiler


@pytest.fixture(scope="session")
def host() -> None:
    """Skips where the host build cannot be made."""
    if compiler() is None:
        pytest.skip("no C++ compiler for the host build")


def _libraries() -> list[str]:
    """Every NVRTC to test: the paths in MKPORT_TEST_NVRTC, colon between, else the one found."""
    given = [path for path in os.environ.get("MKPORT_TEST_NVRTC", "").split(":") if path]
    found = find()
    return given or ([found] if found else [])


@pytest.fixture(scope="session")
def nvdisasm() -> str:
    """NVIDIA's disassembler: MKPORT_TEST_NVDISASM, or one on the path."""
    found = shutil.which(os.environ.get("MKPORT_TEST_NVDISASM") or "nvdisasm")
    if found is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm, set MKPORT_TEST_NVDISASM")
    return found


@pytest.fixture(scope="session", params=_libraries() or [""], ids=lambda path: Path(path).name)
def nvrtc(request: pytest.FixtureRequest) -> Nvrtc:
    """An NVRTC library."""
    if not request.param:
        pytest.skip("no NVRTC library: pip install nvidia-cuda-nvrtc")
    return Nvrtc(request.param)
