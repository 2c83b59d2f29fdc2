"""One composed program of every op for each storage type, shared by the tests of all ops."""

from collections.abc import Callable

import pytest

from mkport.compose import Program
from mkport.testing import tiny


@pytest.fixture(scope="session")
def library_program() -> Callable[[str], Program]:
    """`library_program(dtype)`: the program with every op that has a CPU task."""

    return tiny.program
