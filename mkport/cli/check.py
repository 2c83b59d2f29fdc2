"""The verb `check`: holds ops to their oracles, unit by unit. The checks are `mkport.testing`'s."""

from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.options import OpsOption
from mkport.cli.output import JsonFlag, emit, progress
from mkport.declare import Op
from mkport.errors import UserError
from mkport.library import all_ops, find_op, ops_in
from mkport.testing import FORMS, Verdict
from mkport.testing.parts import is_port
from mkport.testing.suite import DTYPES, left_out, run_unit, units

if TYPE_CHECKING:
    from rich.console import Console


def command(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="Which ops; all when left out.")
    ] = None,
    machine: Annotated[
        str,
        typer.Option(
            "--machine",
            metavar="cpu|host|cuda",
            help="Where the kernels run: Numba's on the CPU, or the CUDA source, built by a C++ "
            "compiler for the CPU (host) or on a GPU.",
        ),
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
        int | None,
        typer.Option(
            "--workers",
            help="Workers of the solo and step forms: 2, on a GPU one a multiprocessor, when left "
            "out.",
        ),
    ] = None,
    folder: OpsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Hold ops to their oracles by the tolerance law, and compare the bits of their forms.

    Forms that an op lacks on the machine are left out by name. Exits with 1 if a check fails. The
    oracles need PyTorch, which the extra `oracle` installs.
    """
    given = None if folder is None else ops_in(folder)
    library = list((all_ops() if given is None else given).values())
    chosen = [find_op(name, given) for name in ops] if ops else library
    forms = form or FORMS
    wanted = units(chosen, forms, DTYPES if dtype == "all" else (dtype,), machine)
    lacking = left_out(chosen, forms, machine)
    if not wanted:
        raise UserError(
            f"Nothing to check: the {machine} machine lacks {_words(lacking, len(chosen))}. "
            + _what_helps(chosen, machine)
        )
    if workers is None:
        workers = multiprocessors() if machine == "cuda" else 2
    verdicts: list[Verdict] = []
    with progress("checking", total=len(wanted)) as advance:
        for unit in wanted:
            verdicts += run_unit(unit, library, workers)
            advance(1)
    failed = sum(not verdict.ok for verdict in verdicts)
    data = {
        "ok": not failed,
        "failed": failed,
        "machine": machine,
        "left_out": lacking,
        "verdicts": [v.as_dict() for v in verdicts],
    }

    def show(console: "Console") -> None:
        render(verdicts, console)
        if lacking:
            text = f"left out, not on the {machine} machine: {_words(lacking, len(chosen))}"
            console.print(text, markup=False)

    emit(data, as_json, show)
    if failed:
        raise typer.Exit(1)


def _what_helps(ops: list[Op], machine: str) -> str:
    """What to do where no op has a form to check."""
    if machine == "cpu" and any(is_port(op) for op in ops):
        return "Ported CUDA kernels are checked with --machine host, or on a GPU with cuda."
    if bare := [op.name for op in ops if not (op.folder / "oracle.py").is_file()]:
        return (
            f"{', '.join(bare)} has no oracle.py, which says what is right; `mkport new NAME` "
            "writes one to start from."
        )
    return "`mkport list` shows the forms there are."


def multiprocessors() -> int:
    """Of the GPU that is here. Raises UserError when there is none."""
    from mkport.machines.cuda.gpu import gpu

    return gpu().multiprocessors


def _words(lacking: dict[str, list[str]], ops: int) -> str:
    """Forms with the ops that lack them: "ported of embed, topk; step of every op"."""
    return "; ".join(
        f"{form} of {'every op' if 1 < ops == len(names) else ', '.join(names)}"
        for form, names in lacking.items()
    )


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
