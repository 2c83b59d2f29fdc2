"""Settings shared by every test: hypothesis' profile, threads under xdist, GPU tests without a GPU.

Fixtures for one part of the library live beside that part's tests, not here.
"""

import importlib.util
import os

import pytest
from hypothesis import settings

settings.register_profile("mkport", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("mkport")

if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core: the oracles' threads would collide
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _has_gpu() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU that CuPy can use"))
