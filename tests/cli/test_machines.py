"""`mkport run` and `mkport eval` on other machines, and text that is drawn."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from mkport.machines.host.build import compiler

Run = Callable[..., Result]


def ids(done: Result) -> list[int]:
    """The tokens that a run said."""
    assert done.exit_code == 0, done.output
    found: list[int] = json.loads(done.stdout)["generation"]["ids"]
    return found


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
def test_the_cuda_source_says_what_the_cpu_machine_says(mkport: Run, tiny_model: Path) -> None:
    args = ("run", "ab", "--raw", "--model", tiny_model, "--max-tokens", 6, "--json")
    more = ("--dtype", "f32", "--context", 64)
    cpu, host = mkport(*args, *more), mkport(*args, *more, "--machine", "host")
    assert ids(cpu) == ids(host)
    assert json.loads(host.stdout)["machine"] == "host"


def test_a_seed_gives_the_same_text_again(mkport: Run, tiny_model: Path) -> None:
    args = ("run", "ab", "--raw", "--model", tiny_model, "--max-tokens", 8, "--json")
    drawn = [ids(mkport(*args, "--temperature", "2.5", "--seed", seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert ids(mkport(*args, "--seed", 1)) == ids(mkport(*args)) not in drawn


@pytest.mark.parametrize("verb", [("run", "ab"), ("eval",)])
def test_a_machine_that_is_not_there_is_refused(
    verb: tuple[str, ...], mkport: Run, tiny_model: Path
) -> None:
    done = mkport(*verb, "--model", tiny_model, "--machine", "tpu")
    assert done.exit_code == 2 and "the machines are cpu, cuda, host" in done.stderr
    if importlib.util.find_spec("cupy") is None:
        done = mkport(*verb, "--model", tiny_model, "--machine", "cuda")
        assert done.exit_code == 2 and "needs CuPy" in done.stderr
