"""The verb `check`: holds ops to their oracles, unit by unit. The checks are `mkport.testing`'s."""

from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.output import JsonFlag, emit, progress
from mkport.errors import UserError
from mkport.library import all_ops, find_op
from mkport.testing import FORMS, Verdict
from mkport.testing.suite import DTYPES, run_unit, units

if TYPE_CHECKING:
    from rich.console import Console


def command(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="Which ops; all when left out.")
    ] = None,
    machine: Annotated[
        str, typer.Option("--machine", metavar="cpu|cuda", help="Where the kernels run.")
    ] = "cpu",
    form: Annotated[
        list[str] | None,
        typer.Option(
            "--form",
            metavar="|".join(FORMS),
            help="Which form, may be given again; all when left out.",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option("--dtype", metavar="bf16|f32|all", help="Storage of weights and cache."),
    ] = "all",
    workers: Annotated[
        int, typer.Option("--workers", help="Worker threads of the solo and step forms.")
    ] = 2,
    as_json: JsonFlag = False,
) -> None:
    """Hold ops to their oracles by the tolerance law, and compare the bits of their forms.

    Exits with 1 if a check fails. The oracles need PyTorch (pip install 'mkport[oracle]').
    """
    if machine != "cpu":
        raise UserError(
            f"There is no machine {machine!r} in this version: --machine takes cpu. "
            "`mkport doctor` says what this computer has."
        )
    library = list(all_ops().values())
    chosen = [find_op(name) for name in ops] if ops else library
    wanted = units(chosen, form or FORMS, DTYPES if dtype == "all" else (dtype,))
    if not wanted:
        names = ", ".join(op.name for op in chosen)
        raise UserError(
            f"Nothing to check: {names} has no such form. `mkport list` shows the forms there are."
        )
    verdicts: list[Verdict] = []
    with progress("checking", total=len(wanted)) as advance:
        for unit in wanted:
            verdicts += run_unit(unit, library, workers)
            advance(1)
    failed = sum(not verdict.ok for verdict in verdicts)
    data = {"ok": not failed, "failed": failed, "verdicts": [v.as_dict() for v in verdicts]}
    emit(data, as_json, lambda console: render(verdicts, console))
    if failed:
        raise typer.Exit(1)


def render(verdicts: list[Verdict], console: "Console") -> None:
    """A table with one row for an op, form and dtype; each failed shape in words below it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("op", "form", "dtype", "verdict", "shapes", "worst error", "allowed", "bits"):
        table.add_column(column, justify="right" if column in ("shapes", "worst error") else "left")
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.op, verdict.form, verdict.dtype), []).append(verdict)
    for (op, form, dtype), group in groups.items():
        worst = max(group, key=lambda v: (not v.ok, v.error / v.allowed if v.allowed else v.error))
        ok = all(v.ok for v in group)
        same = {None: "", True: "same", False: "DIFFER"}[worst.same_bits]
        table.add_row(
            op,
            form,
            dtype,
            Text("ok" if ok else "FAILED", style="green" if ok else "red"),
            str(len(group)),
            f"{worst.error:.1e}",
            f"{worst.allowed:.1e}",
            same,
        )
    console.print(table)
    failed = [verdict for verdict in verdicts if not verdict.ok]
    for v in failed:
        console.print(
            f"FAILED {v.op}, {v.form}, {v.dtype}, shape {v.shape!r}: error {v.error:.3e}, allowed "
            f"{v.allowed:.3e}, {v.detail}",
            markup=False,
        )
    seconds = sum(verdict.seconds for verdict in verdicts)
    console.print(
        f"{len(verdicts) - len(failed)} of {len(verdicts)} checks passed in {seconds:.1f} s"
    )
