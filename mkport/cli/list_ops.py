"""The verb `list`: the ops of the library and which of their forms are written."""

from typing import TYPE_CHECKING

from mkport.cli.options import OpsOption
from mkport.cli.output import JsonFlag, emit
from mkport.inventory import Entry, inventory
from mkport.library import all_ops, ops_in

if TYPE_CHECKING:
    from rich.console import Console


def command(folder: OpsOption = None, as_json: JsonFlag = False) -> None:
    """List the ops: what each computes, how it is cut into tiles, its arithmetic order, its forms.

    Standalone is the ordinary kernel, ladder the simpler kernels before it, cpu and cuda the
    machines it is ported to, oracle the PyTorch function it is held to.
    """
    entries = inventory((all_ops() if folder is None else ops_in(folder)).values())
    emit(entries, as_json, lambda console: _render(entries, console))


def _render(entries: list[Entry], console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("op", "forms", "what it computes"):
        table.add_column(column)
    for entry in entries:
        forms = [
            name
            for name, there in (
                ("oracle", entry.oracle),
                (f"ladder of {len(entry.ladder)}", bool(entry.ladder)),
                ("standalone", entry.standalone),
                ("cpu", entry.cpu),
                ("cuda", entry.cuda),
            )
            if there
        ]
        what = Text(entry.doc)
        tiles = f"\ntiles: {entry.tiles}" if entry.tiles else ""
        what.append(f"{tiles}\norder: {entry.order}\n", style="dim")
        table.add_row(Text(entry.op, style="bold"), Text("\n".join(forms)), what)
    console.print(table)
