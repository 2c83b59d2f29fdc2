"""The verb `inspect`: prints what a model is and what bounds its speed. The looking is not here."""

from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.output import JsonFlag, emit

if TYPE_CHECKING:
    from rich.console import Console

    from mkport.engine.inspect_model import Inspection


def command(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR|FILE.gguf|NAME",
            help="A directory that holds a config.json at least, a .gguf file, or ORG/NAME on the "
            "hub; the demo model when left out.",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Positions that the bytes of a step are given for."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="bf16|f32", help="Count weights and cache as this; bf16 if left out."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what a model is, what a decode step of it reads, and how fast that lets it be.

    Exits with 1 if the model cannot run here, and says why.
    """
    from mkport.engine.inspect_model import inspect

    found = inspect(model, context, dtype)
    emit(found, as_json, lambda console: _render(found, console))
    if found.unsupported:
        raise typer.Exit(1)


def _render(found: "Inspection", console: "Console") -> None:
    from rich.table import Table

    console.print(f"{found.directory}: {found.model_type}\n")
    if found.steps:
        table = Table(box=None, pad_edge=False, show_header=False)
        facts = dict(found.facts) | {
            "parameters": f"{found.parameters / 1e6:,.1f} M, a token uses "
            f"{found.active_parameters / 1e6:,.1f} M",
            "weights": f"{found.weight_bytes / 1e9:.3f} GB in {found.dtype}"
            + ("" if found.weights_present else " (not in this directory)"),
            "cache": f"{found.cache_bytes_per_token:,} B a token",
        }
        for name, fact in facts.items():
            table.add_row(name, str(fact))
        console.print(table)
        _render_reads(found, console)
        _render_bounds(found, console)
    if found.unsupported:
        console.print("\n[red]unsupported[/red]")
        for reason in found.unsupported:
            console.print(f"  {reason}", markup=False)
    else:
        console.print("\nAll of it is supported.")


def _render_reads(found: "Inspection", console: "Console") -> None:
    rows = {
        part: [f"{step.parts[part] / 1e6:,.1f}" for step in found.steps]
        for part in found.steps[-1].parts
    }
    rows["all"] = [f"{step.nbytes / 1e6:,.1f}" for step in found.steps]
    if found.steps[0].experts_a_layer:
        rows["distinct experts a layer, uniform routing"] = [
            f"{step.experts_a_layer:.1f}" for step in found.steps
        ]
    title = f"MB that a decode step reads, every sequence at {found.context} positions"
    _render_batches(title, found, rows, console)


def _render_bounds(found: "Inspection", console: "Console") -> None:
    rows = {}
    for device in found.steps[0].tokens_per_second:
        bounds = [step.tokens_per_second[device] for step in found.steps]
        rows[device] = [f"{bound:,.1f}" if bound < 100 else f"{bound:,.0f}" for bound in bounds]
    _render_batches("Tokens a second at most, by memory bandwidth", found, rows, console)


def _render_batches(
    title: str, found: "Inspection", rows: dict[str, list[str]], console: "Console"
) -> None:
    """A table with a column for each batch."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("batch")
    for step in found.steps:
        table.add_column(str(step.batch), justify="right")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console.print(f"\n{title}")
    console.print(table)
