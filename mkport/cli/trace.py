"""The verb `trace`: records one decode step, draws it, and says where its time went."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mkport import trace as tracing
from mkport.cli.options import (
    BatchOption,
    ContextOption,
    DtypeOption,
    ModelOption,
    WorkersOption,
    open_decoder,
    open_model,
)
from mkport.cli.output import JsonFlag, emit
from mkport.doctor import cpu_model
from mkport.engine.decoder import Decoder, decode_shape
from mkport.errors import UserError
from mkport.extras import install
from mkport.files import make_folder
from mkport.trace.collect import collect

PICTURES = ("timeline.png", "timeline.svg")
NO_PICTURE = (
    "no timeline.png and timeline.svg: drawing needs matplotlib, which is not installed; "
    f"{install('plot')}"
)


def command(
    model: ModelOption = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where the files go.")
    ] = Path("out"),
    batch: BatchOption = 1,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Decode steps to run; the last one is traced.")
    ] = 16,
    dtype: DtypeOption = None,
    workers: WorkersOption = None,
    context: ContextOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Trace a decode step: a timeline as PNG and SVG, a file for ui.perfetto.dev, a summary.

    Writes timeline.png, timeline.svg, trace.json (Perfetto) and times.json (mkport's own); without
    matplotlib the last two alone.
    """
    make_folder(out)
    loaded = open_model(model, dtype)
    limit = decode_shape(loaded, batch, context).context
    if steps > limit:
        raise UserError(
            f"{steps} steps do not fit the context of {limit} positions: "
            "lower --steps or raise --context."
        )
    with open_decoder(loaded, batch=batch, context=context, workers=workers) as decoder:
        result = trace_step(decoder, steps, out)
    data = {"summary": result.summary.as_dict(), "files": result.files, "note": result.note}
    text = tracing.render(result.summary) + "\n\n" + "\n".join(map(str, result.files))
    text += f"\n{result.note}" if result.note else ""
    emit(data, as_json, lambda console: console.print(text, markup=False, soft_wrap=True))


@dataclass(frozen=True)
class Traced:
    """A step's summary, the files that were written, and what to do about those that were not."""

    summary: tracing.Summary
    files: tuple[Path, ...]
    note: str


def trace_step(decoder: Decoder, steps: int, out: Path) -> Traced:
    """Decodes `steps` tokens of every sequence from position 0, the last step traced, and writes
    its files into `out`, pictures where there is matplotlib. Every token is the greedy choice
    after the one before it."""
    tokens = [0] * decoder.batch
    rows = list(range(decoder.batch))
    for position in range(steps):
        batch = [(sequence, position, token) for sequence, token in zip(rows, tokens, strict=True)]
        choices, _ = decoder.step(batch, rows, trace=position == steps - 1)
        tokens = [max(int(choice), 0) for choice in choices]
    model = decoder.model.name
    caption = (
        f"measured on {cpu_model()}, {decoder.workers} threads: a decode step of {model}, "
        f"batch {decoder.batch}, position {steps - 1}"
    )
    trace = collect(decoder.machine, caption)
    perfetto, own = out / "trace.json", out / "times.json"
    tracing.write(trace, perfetto)
    trace.save(own)
    drawn = PICTURES if importlib.util.find_spec("matplotlib") else ()
    for name in drawn:
        tracing.draw(trace, out / name)
    files = (*(out / name for name in drawn), perfetto, own)
    return Traced(tracing.summarise(trace), files, "" if drawn else NO_PICTURE)
