"""A module's own kernels, run as their author would and as one program: its FILE and CASES."""

from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Any:
    module = request.module
    return module.harness.Kernels(module.FILE, module.CASES)


@pytest.fixture(scope="module")
def program(kernels: Any) -> CudaProgram:
    made: CudaProgram = kernels.program()
    return made


@pytest.fixture(scope="module")
def originals(kernels: Any) -> dict[str, dict[str, np.ndarray]]:
    left: dict[str, dict[str, np.ndarray]] = kernels.originals()
    return left
