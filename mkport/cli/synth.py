"""The verb `synth`: writes a checkpoint to test and measure with. The writing is not done here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.output import JsonFlag, emit, in_parts, progress

if TYPE_CHECKING:
    from rich.console import Console

    from mkport.engine.synth import Written


def command(
    family: Annotated[
        str, typer.Option("--family", help="The model_type of the checkpoint: cohere2_moe, say.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The directory to write; it is new.")],
    size: Annotated[
        str, typer.Option("--size", metavar="tiny|small", help="A few hundred kB, or about 1 GB.")
    ] = "tiny",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="bf16|f32", help="What the weights are stored as.")
    ] = "bf16",
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed, the same bytes.")] = 0,
    upcycle: Annotated[
        str | None,
        typer.Option(
            "--upcycle",
            metavar="smollm2|DIR",
            help="Make every expert of a mixtral out of this dense model (with its tokenizer) "
            "instead of drawing random weights; the size is the dense model's.",
        ),
    ] = None,
    noise: Annotated[
        float,
        typer.Option(
            "--noise", help="With --upcycle: what makes the experts differ, in the weights' spread."
        ),
    ] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Write a random checkpoint of a model family in the exact published format.

    Names, shards, index, config and a small tokenizer are those of a real checkpoint, so that
    every reader of such files reads it.
    """
    from mkport.engine.synth import synthesise
    from mkport.engine.upcycle import upcycle as grow
    from mkport.errors import UserError

    if upcycle is not None and family != "mixtral":
        raise UserError(f"--upcycle makes a mixtral, not a {family}: give --family mixtral.")
    if upcycle is None and noise:
        raise UserError("--noise is added to the experts of --upcycle: give that too.")
    with progress("writing the checkpoint", total=1.0) as advance:
        if upcycle is not None:
            written = grow(upcycle, out, noise, dtype, seed, in_parts(advance))
        else:
            written = synthesise(family, size, out, dtype, seed, in_parts(advance))
    emit(written, as_json, lambda console: _render(written, console))


def _render(written: "Written", console: "Console") -> None:
    console.print(
        f"{written.directory}: a {written.family} of {written.parameters / 1e6:.1f} M parameters, "
        f"{written.nbytes / 1e6:.1f} MB in {written.shards} files"
    )
