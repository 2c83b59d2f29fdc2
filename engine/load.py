"""One call from a model's name to everything a run needs: config, family, weights, tokenizer."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mkport.engine.assemble import ModelWeights, assemble
from mkport.engine.gguf_file import Progress
from mkport.engine.jsonfile import read_json
from mkport.engine.source import DEFAULT_DTYPE, resolve
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from mkport.models import family_of, parse_config
from mkport.models.base import DecoderConfig


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint, ready for its step graph."""

    config: DecoderConfig
    family: ModuleType  # the module of mkport.models that knows this model_type
    weights: ModelWeights  # as the step reads them, all matrices of one dtype
    tokenizer: Tokenizer
    directory: Path

    @property
    def name(self) -> str:
        """The directory's name, less what marks it as a conversion of a GGUF file."""
        return re.sub(r"-(bf16|f32)-[0-9a-f]{12}$", "", self.directory.name)


def load(
    model: str | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    scan: bool = False,
    stack: bool = True,
) -> LoadedModel:
    """Find and open a model; see `resolve` for what `model` may be.

    `dtype` is "bf16" or "f32"; None keeps what a directory's files hold, and makes bf16 of a GGUF.
    With `stack` False experts that the files hold one by one are left so, to be copied to a device.
    `scan` looks for NaN and infinity in every weight, which reads them all; without it only those
    are looked at that are copied anyway (stacked experts).
    Raises UserError when anything is missing, damaged or not implemented.
    """
    directory = resolve(model, dtype or DEFAULT_DTYPE, progress)
    raw = read_json(directory / "config.json")
    try:
        family, config = family_of(raw), parse_config(raw)
    except UserError as error:
        raise UserError(f"{directory}: {error}") from error
    weights = assemble(directory, family, config, dtype, progress, scan, stack)
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab:
        raise UserError(
            f"{directory / 'tokenizer.json'} has {tokenizer.vocab_size} tokens, but config.json "
            f"has vocab_size = {config.vocab}. One of the two belongs to another checkpoint."
        )
    return LoadedModel(config, family, weights, tokenizer, directory)
