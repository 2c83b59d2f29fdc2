"""What `e2e` runs on a GPU without a model: random weights, drawn where they are used."""

from pathlib import Path

from mkport.engine.bench.gpu_serving.model import (
    Drawn,
    without_weights,
    write_config,
    write_tokenizer,
)
from mkport.engine.build import Built
from mkport.engine.capacity import Settings, plan_capacity, widths
from mkport.engine.engine import Engine
from mkport.engine.runner import StepRunner
from mkport.engine.tokenizer import Tokenizer
from mkport.models.sizes import config_of


def drawn(model: Path, batch: int, context: int) -> Built:
    """A runner for `batch` requests of `context` positions over a directory without weights.

    Raises UserError for what the GPU does not hold.
    """
    target, loaded = Drawn(), without_weights(model)
    settings = Settings(max_batch=batch, max_model_len=context)
    shape, limits = plan_capacity(loaded, settings, target)
    runner = StepRunner(loaded, shape, limits, widths(limits, target), None, target)
    return Built(runner, loaded.tokenizer, loaded.name, loaded.config.vocab)


def drawn_engine(directory: Path, family: str, size: str, batch: int, context: int) -> Engine:
    """An engine on the GPU in a process of its own, `batch` requests of `context` positions side by
    side; `directory` is made and holds its config. Raises UserError as `drawn`, and for an unknown
    family or size."""
    vocab = config_of(family, size)["vocab_size"]
    write_config(directory, family, size)
    write_tokenizer(directory, vocab)
    options = {"model": directory, "batch": batch, "context": context}
    return Engine.apart(drawn, options, Tokenizer.load(directory), vocab)
