"""The verb `doctor`: prints what `mkport.doctor` finds. The looking itself is not here."""

from typing import TYPE_CHECKING

import typer

from mkport.cli.output import JsonFlag, emit
from mkport.doctor import Row, examine

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = {"ok": "green", "missing": "red", "optional": "yellow"}


def command(as_json: JsonFlag = False) -> None:
    """Say what this machine has, what will work here, and the fix for what won't.

    Exits with 1 if something that `mkport run` needs is missing.
    """
    rows = examine()
    ready = all(row.status != "missing" for row in rows)
    emit({"ready": ready, "rows": rows}, as_json, lambda console: _render(rows, ready, console))
    if not ready:
        raise typer.Exit(1)


def _render(rows: list[Row], ready: bool, console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        found = Text(row.value)
        if row.why:
            found.append(f"\n{row.why}", style="dim")
        if row.fix:
            found.append(f"\nfix: {row.fix}")
        table.add_row(row.name, Text(row.status, style=_COLOURS[row.status]), found)
    console.print(table)
    if ready:
        console.print("\n`mkport run` will work here; each optional row says what else it needs.")
    else:
        console.print("\n`mkport run` will not work here until each missing row is fixed.")
