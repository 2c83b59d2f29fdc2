"""Options that several verbs share, and how a verb opens the model they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.output import in_parts, progress

if TYPE_CHECKING:
    from mkport.engine.decoder import Decoder
    from mkport.engine.load import LoadedModel

MAX_BATCH = 64  # sequences; a step's scratch and records grow with them

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR|FILE.gguf|NAME",
        help="A Hugging Face directory, a .gguf file, or ORG/NAME on the hub; the demo model "
        "SmolLM2-135M-Instruct when left out.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="bf16|f32",
        help="Storage of weights and cache; what the files hold when left out.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Worker threads, one a usable core when left out; on a GPU blocks, one a "
        "multiprocessor.",
    ),
]
MachineOption = Annotated[
    str,
    typer.Option(
        "--machine",
        metavar="cpu|cuda|host",
        help="Where to run; host runs the CUDA source on the CPU, for a look at small models.",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        help="Positions a sequence can reach; the model's own limit when left out.",
    ),
]
OpsOption = Annotated[
    Path | None,
    typer.Option(
        "--ops",
        metavar="DIR",
        help="A folder of your own ops, which `mkport new` and `mkport port` make.",
    ),
]
BatchOption = Annotated[
    int,
    typer.Option("--batch", min=1, max=MAX_BATCH, help="Sequences that are decoded side by side."),
]


ScanOption = Annotated[
    bool,
    typer.Option(
        "--scan", help="Look for NaN and infinity in every weight first, which reads them all."
    ),
]


def open_model(
    model: str | None, dtype: str | None, scan: bool = False, machine: str = "cpu"
) -> "LoadedModel":
    """Load a model under a progress bar: the first use of a GGUF file converts it, and experts are
    stacked, on a GPU while they are copied there. `scan` looks for NaN and infinity in every
    weight. Raises UserError for a machine that is not there, before anything is loaded."""
    from mkport.engine.load import load
    from mkport.engine.target import target_of

    target_of(machine)

    with progress("loading the model", total=1.0) as advance:
        return load(model, dtype, in_parts(advance), scan, stack=machine != "cuda")


def open_decoder(
    model: "LoadedModel",
    *,
    batch: int = 1,
    context: int | None = None,
    workers: int | None = None,
    all_logits: bool = False,
    machine: str = "cpu",
) -> "Decoder":
    """Compose a model's steps under a progress bar: the first use compiles them.

    `batch` is sequences side by side, `context` their positions. Raises UserError as `Decoder`.
    """
    from mkport.engine.decoder import Decoder

    with progress("composing the megakernel (compiled on first use)"):
        return Decoder(
            model,
            on=machine,
            batch=batch,
            context=context,
            workers=workers,
            all_logits=all_logits,
        )
