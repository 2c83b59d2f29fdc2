"""From a model and sizes to what an engine runs: the one place where a machine is chosen."""

from dataclasses import dataclass

from mkport.engine.capacity import Settings, plan_capacity, widths
from mkport.engine.load import LoadedModel, load
from mkport.engine.runner import Runner, StepRunner
from mkport.engine.target import target_of
from mkport.engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Built:
    """A runner, and what is known of its model."""

    runner: Runner
    tokenizer: Tokenizer
    name: str
    vocab: int


def build(
    model: str | LoadedModel | None,
    dtype: str | None,
    machine: str,
    settings: Settings,
    workers: int | None,
) -> Built:
    """Loads the model, unless it is, and puts it on a machine. Raises UserError for whatever the
    model or the sizes do not allow."""
    target = target_of(machine)
    loaded = opened(model, dtype, machine)
    shape, limits = plan_capacity(loaded, settings, target)
    runner = StepRunner(loaded, shape, limits, widths(limits, target), workers, target)
    return Built(runner, loaded.tokenizer, loaded.name, loaded.config.vocab)


def opened(model: str | LoadedModel | None, dtype: str | None, machine: str) -> LoadedModel:
    """The model, loaded unless it is. A GPU takes experts one by one, so they are left so."""
    if isinstance(model, LoadedModel):
        return model
    return load(model, dtype, stack=machine != "cuda")
