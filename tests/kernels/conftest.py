"""One composed program of every op for each storage type, shared by the tests of all ops."""

from collections.abc import Callable
from functools import cache

import pytest

from mkport.compose import Program, compose_cpu
from mkport.library import all_ops


@pytest.fixture(scope="session")
def library_program() -> Callable[[str], Program]:
    """`library_program(dtype)`: the program with every op that has a CPU task."""

    @cache
    def of(dtype: str) -> Program:
        ops = [op for op in all_ops().values() if (op.folder / "task.py").is_file()]
        return compose_cpu(ops, dtype, dtype)

    return of
