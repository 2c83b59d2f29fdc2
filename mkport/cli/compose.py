"""The verb `compose`: writes a model's megakernel, or one's own chain's, as one readable file."""

from pathlib import Path
from typing import Annotated

import typer

from mkport.bandwidth import usable_cores
from mkport.cli.compose_chain import compose_file
from mkport.cli.options import (
    BatchOption,
    ContextOption,
    DtypeOption,
    ModelOption,
    open_model,
)
from mkport.cli.output import JsonFlag, emit
from mkport.engine.decoder import decode_shape
from mkport.engine.steps import plan_step
from mkport.engine.target import CPU, HostTarget
from mkport.errors import UserError
from mkport.files import write_text
from mkport.plan.file import save_schedule

GPU_WORKERS = 132  # multiprocessors of an H100 or H200
SUFFIXES = {"cpu": ".py", "cuda": ".cu"}


def command(
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="The megakernel: a Python file, or a CUDA file (.cu).",
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.toml]", help="A chain of your own ops instead of a model."),
    ] = None,
    model: ModelOption = None,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="cpu|cuda",
            help="What to compose for; neither needs a GPU or a compiler.",
        ),
    ] = "cpu",
    schedule_file: Annotated[
        Path | None,
        typer.Option("--schedule", metavar="FILE.json", help="Write the verified schedule too."),
    ] = None,
    dtype: DtypeOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Workers of the schedule, one a core or one a multiprocessor: when left out, the "
            f"usable cores, or for cuda {GPU_WORKERS}, which an H100 has.",
        ),
    ] = None,
    batch: BatchOption = 1,
    context: ContextOption = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="cpu|host|cuda",
            help="Run the chain on random inputs and hold each node to its oracle.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="DIR", help="Run the chain and write its step's times."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compose a model's decode step, or a chain of your own ops, into one megakernel file.

    The file holds every primitive, every op's body, the dispatch and the worker. The schedule,
    which says what each worker runs, is verified; `mkport verify` reads the file of --schedule.
    A FILE.toml names tensors, ops and what each node's arguments are; --check and --trace run it.
    """
    if target not in SUFFIXES:
        raise UserError(
            f"There is no target {target!r}: --target takes cpu, which writes one Python file, or "
            "cuda, which writes one CUDA C++ file."
        )
    for other, suffix in SUFFIXES.items():
        if other != target and out.suffix == suffix:
            raise UserError(
                f"{out} is named as what --target {other} writes, but the target is {target}: give "
                f"--target {other}, or a file that ends in {SUFFIXES[target]}."
            )
    if file is not None:
        if model is not None or dtype is not None or context is not None or batch != 1:
            raise UserError(f"{file} says all about its chain: leave out the options of a model.")
        compose_file(file, out, target, schedule_file, workers, GPU_WORKERS, check, trace, as_json)
        return
    if check is not None or trace is not None:
        raise UserError(
            "--check and --trace are for a FILE.toml; a model has verbs of these names."
        )
    loaded = open_model(model, dtype)
    shape = decode_shape(loaded, batch, context)
    if workers is None:
        workers = GPU_WORKERS if target == "cuda" else usable_cores()
    on = HostTarget(fixed=True) if target == "cuda" else CPU
    planned = plan_step(loaded, shape, workers, on)
    schedule, program = planned.schedule, planned.program
    write_text(out, program.source)
    if schedule_file is not None:
        save_schedule(schedule, schedule_file)
    lines = program.source.count("\n")
    records = sum(len(records) for records in schedule.lists)
    data = {
        "model": loaded.name,
        "target": target,
        "file": out,
        "lines": lines,
        "digest": program.digest,
        "ops": [op.name for op in program.ops],
        "nodes": len(schedule.graph.nodes),
        "records": records,
        "workers": schedule.workers,
        "schedule": schedule_file,
    }
    text = f"{out}: {lines:,} lines, {len(program.ops)} ops"
    if schedule_file is not None:
        text += f"\n{schedule_file}: {records:,} records on {schedule.workers} workers"
    emit(data, as_json, lambda console: console.print(text, markup=False, soft_wrap=True))
