"""What the tests have built in a process of its own: models on the CPU machine that runs ahead, and
what fails."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mkport.engine import target as target_module
from mkport.engine.build import Built
from mkport.engine.capacity import Settings, plan_capacity, widths
from mkport.engine.load import load
from mkport.engine.runner import StepRunner
from mkport.engine.target import CpuTarget
from mkport.errors import UserError
from mkport.models import step
from mkport.plan import Graph
from mkport.testing import tiny


class Late(CpuTarget):
    """The CPU machine through the interface of one that runs ahead."""

    ahead = 1


def late(directory: Path, settings: Settings) -> Built:
    """On the program that all tests share, for as long as the process lives."""
    patch = pytest.MonkeyPatch()  # as `checkpoints.one_program`, which imports much more
    patch.setattr(step, "Graph", partial(Graph, tiny.library()))
    patch.setattr(
        target_module, "compose_cpu", lambda ops, weights, cache, title: tiny.program(weights)
    )
    model, target = load(str(directory)), Late()
    shape, limits = plan_capacity(model, settings, target)
    runner = StepRunner(model, shape, limits, widths(limits, target), 2, target)
    return Built(runner, model.tokenizer, model.name, model.config.vocab)


def refused() -> Built:
    """A user's mistake."""
    raise UserError("The model is too large. Take a smaller one.")


def broken() -> Built:
    """A mistake of ours."""
    raise ZeroDivisionError("nobody expected this")


def dying(directory: Path, settings: Settings) -> Built:
    """One whose fifth step raises what nobody expected."""
    built = late(directory, settings)
    run, steps = built.runner.run, 0

    def failing(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise ZeroDivisionError("the fifth step")
        return run(*args)

    built.runner.run = failing  # type: ignore[method-assign, assignment]
    return built
