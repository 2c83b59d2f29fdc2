"""Options that several verbs share, and how a verb opens the model they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.output import in_parts, progress
from mkport.errors import UserError

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
RandomOption = Annotated[
    str | None,
    typer.Option(
        "--random",
        metavar="FAMILY/SIZE",
        help="Random weights instead of a model's: cohere2_moe/full is North Mini Code, llama/full "
        "Llama 3.2 1B, qwen3_moe/full Qwen3 30B A3B; full sizes on a GPU alone, where they are "
        "drawn.",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Write JSON here, and table and pictures beside it."),
]


def drawn_model(random: str | None, model: str | None) -> tuple[str, str] | None:
    """The family and size of `--random`, None without it. Raises UserError beside a model."""
    if random is None:
        return None
    if model is not None:
        raise UserError("Give --model or --random, not both.")
    family, _, size = random.partition("/")
    return family, size or "full"


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
    chunk: int | None = None,
) -> "Decoder":
    """Compose a model's steps under a progress bar: the first use compiles them.

    `batch` is sequences side by side, `context` their positions, `chunk` a prompt's tokens in one
    step. Raises UserError as `Decoder`.
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
            chunk=chunk,
        )
