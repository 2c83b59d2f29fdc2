"""What `mkport compose FILE.toml` does: a user's own chain, composed, checked, traced."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mkport.bandwidth import usable_cores
from mkport.cli.check import render
from mkport.cli.output import emit
from mkport.doctor import cpu_model
from mkport.errors import UserError
from mkport.files import make_folder, write_text
from mkport.plan.file import save_schedule

if TYPE_CHECKING:
    from rich.console import Console

MACHINES = {"cpu": "cpu", "host": "cuda", "cuda": "cuda"}  # machine: the target it runs
CHECK_WORKERS = 2


def compose_file(
    file: Path,
    out: Path,
    target: str,
    schedule_file: Path | None,
    workers: int | None,
    gpu_workers: int,
    check: str | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Composes the chain for a target, and checks and traces it on the machine `check`.

    Raises typer.Exit(1) if a check fails, and UserError for an unknown machine, a trace on another
    one than the check's, a chain that does not fit, and files that cannot be read or written.
    """
    from mkport.port.chain import read_chain
    from mkport.port.chain_check import check_chain, compose_chain, trace_chain

    if check is not None and check not in MACHINES:
        raise UserError(f"There is no machine {check!r}; the machines are {', '.join(MACHINES)}.")
    if check is not None and trace is not None and MACHINES[check] != target:
        raise UserError(
            f"--check {check} runs the target {MACHINES[check]} and --trace what is composed, "
            f"{target}: use --target {MACHINES[check]} for both."
        )
    chain = read_chain(file)
    if workers is None:
        workers = usable_cores() if target == "cpu" else gpu_workers
    composed = compose_chain(chain, target, workers)
    write_text(out, composed.program.source)
    if schedule_file is not None:
        save_schedule(composed.schedule, schedule_file)
    verdicts = check_chain(chain, check, CHECK_WORKERS) if check else []
    traced: tuple[Path, ...] = ()
    if trace is not None:
        machine = "cpu" if target == "cpu" else check or "host"
        where = f"measured on {device_name(machine)}, {CHECK_WORKERS} workers"
        traced = _trace(trace_chain(chain, CHECK_WORKERS, where, machine=machine), trace)
    failed = sum(not verdict.ok for verdict in verdicts)
    lines = composed.program.source.count("\n")
    data: dict[str, Any] = {
        "chain": file,
        "title": chain.title,
        "target": target,
        "file": out,
        "lines": lines,
        "digest": composed.program.digest,
        "ops": [op.name for op in composed.program.ops],
        "nodes": len(chain.graph.nodes),
        "records": sum(len(records) for records in composed.schedule.lists),
        "workers": workers,
        "schedule": schedule_file,
        "verdicts": [verdict.as_dict() for verdict in verdicts],
        "trace": traced,
    }

    def show(console: "Console") -> None:
        text = f"{out}: {lines:,} lines, {len(composed.program.ops)} ops"
        console.print("\n".join([text, *map(str, traced)]), markup=False, soft_wrap=True)
        if verdicts:
            render(verdicts, console)

    emit(data, as_json, show)
    if failed:
        raise typer.Exit(1)


def device_name(machine: str) -> str:
    """What a trace was taken on, in words."""
    if machine == "cuda":
        from mkport.machines.cuda.gpu import gpu

        return gpu().name
    if machine == "host":
        return f"the host build ({cpu_model()}; the order is a GPU's, the times are not)"
    return cpu_model()


def _trace(trace: Any, folder: Path) -> tuple[Path, ...]:
    from mkport import trace as tracing

    make_folder(folder)
    perfetto, own = folder / "trace.json", folder / "times.json"
    tracing.write(trace, perfetto)
    trace.save(own)
    return perfetto, own
