"""The verb `eval`: the perplexity of a text under a model."""

from pathlib import Path
from typing import Annotated

import typer

from mkport.cli.options import (
    DtypeOption,
    MachineOption,
    ModelOption,
    WorkersOption,
    open_decoder,
    open_model,
)
from mkport.cli.output import JsonFlag, emit, progress
from mkport.engine.evaluate import CORPUS, WINDOW, perplexity
from mkport.errors import UserError


def command(
    model: ModelOption = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="UTF-8 text; the bundled one if not given."),
    ] = None,
    window: Annotated[
        int, typer.Option("--window", min=2, help="Tokens in a window; each starts afresh.")
    ] = WINDOW,
    dtype: DtypeOption = None,
    machine: MachineOption = "cpu",
    workers: WorkersOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure the perplexity of a text: e to the mean negative log likelihood of its tokens.

    The text is cut into windows; in each, every token but the first is predicted from the ones
    before it in the window. The bundled text is chapter I of Alice's Adventures in Wonderland.
    """
    try:
        file = text or CORPUS
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"The text {file} cannot be read: {reason}. Give a UTF-8 file.") from error
    loaded = open_model(model, dtype, machine=machine)
    ids = loaded.tokenizer.encode(content, add_special=False)
    with open_decoder(
        loaded, context=window, workers=workers, all_logits=True, machine=machine
    ) as decoder:
        with progress("reading the text", total=len(ids)) as advance:
            result = perplexity(decoder, ids, window, advance)
    data = {
        "model": loaded.name,
        "dtype": loaded.weights.dtype,
        "machine": machine,
        "text": file.name,
        "result": result,
    }
    line = (
        f"perplexity {result.perplexity:.4f} ({loaded.name}, {loaded.weights.dtype}): "
        f"{result.predicted:,} tokens of {file.name} predicted in {result.windows} windows of "
        f"{result.window}, {result.seconds:.1f} s"
    )
    emit(data, as_json, lambda console: console.print(line, markup=False, soft_wrap=True))
