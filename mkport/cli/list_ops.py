"""The verb `list`: the ops of the library and which of their forms are written."""

from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.options import OpsOption
from mkport.cli.output import JsonFlag, emit
from mkport.inventory import Entry, inventory
from mkport.library import all_ops, find_op, ops_in

if TYPE_CHECKING:
    from rich.console import Console


def command(
    ops: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OP]...", help="Ops to tell in full, tiles and order too; all when left out."
        ),
    ] = None,
    folder: OpsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the ops: what each computes, and its forms.

    Standalone is the ordinary kernel, ladder the simpler kernels before it, cpu and cuda the
    machines it is ported to, oracle the PyTorch function it is held to.
    """
    given = all_ops() if folder is None else ops_in(folder)
    entries = inventory([find_op(name, given) for name in ops] if ops else given.values())
    emit(entries, as_json, lambda console: _render(entries, bool(ops), console))


def _render(entries: list[Entry], in_full: bool, console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("op", "what it computes", "forms"):
        table.add_column(column)
    for entry in entries:
        what = Text(entry.doc)
        if in_full:
            tiles = f"\ntiles: {entry.tiles}" if entry.tiles else ""
            what.append(f"{tiles}\norder: {entry.order}\n", style="dim")
        table.add_row(Text(entry.op, style="bold"), what, _forms(entry))
    console.print(table)
    if not in_full:
        console.print("\n`mkport list OP` tells how it is cut into tiles and adds up.")


def _forms(entry: Entry) -> str:
    """The forms that are written, in a few words."""
    forms = {
        "oracle": entry.oracle,
        f"ladder of {len(entry.ladder)}": bool(entry.ladder),
        "standalone": entry.standalone,
        "cpu": entry.cpu,
        "cuda": entry.cuda,
    }
    return ", ".join(name for name, there in forms.items() if there)
