"""The verb `compose`: writes a model's megakernel as one readable file, and its schedule."""

from pathlib import Path
from typing import Annotated

import typer

from mkport.bandwidth import usable_cores
from mkport.cli.options import (
    BatchOption,
    ContextOption,
    DtypeOption,
    ModelOption,
    WorkersOption,
    open_model,
)
from mkport.cli.output import JsonFlag, emit
from mkport.engine.decoder import decode_shape, plan_step
from mkport.errors import UserError
from mkport.files import write_text
from mkport.plan.file import save_schedule


def command(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The megakernel, a Python file.")
    ],
    model: ModelOption = None,
    target: Annotated[
        str, typer.Option("--target", metavar="cpu|cuda", help="The machine to compose for.")
    ] = "cpu",
    schedule_file: Annotated[
        Path | None,
        typer.Option("--schedule", metavar="FILE.json", help="Write the verified schedule too."),
    ] = None,
    dtype: DtypeOption = None,
    workers: WorkersOption = None,
    batch: BatchOption = 1,
    context: ContextOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compose a model's decode step into one megakernel file.

    The file holds every primitive, every op's body, the dispatch and the worker. The schedule,
    which says what each worker runs, is verified; `mkport verify` reads the file of --schedule.
    """
    if target != "cpu":
        raise UserError(
            f"The target {target!r} is not in this version: --target takes cpu, which writes one "
            "Python file."
        )
    loaded = open_model(model, dtype)
    shape = decode_shape(loaded, batch, context)
    planned = plan_step(loaded, shape, usable_cores() if workers is None else workers)
    write_text(out, planned.program.source)
    if schedule_file is not None:
        save_schedule(planned.schedule, schedule_file)
    lines = planned.program.source.count("\n")
    records = sum(len(records) for records in planned.schedule.lists)
    data = {
        "model": loaded.name,
        "file": out,
        "lines": lines,
        "digest": planned.program.digest,
        "ops": [op.name for op in planned.program.ops],
        "nodes": len(planned.schedule.graph.nodes),
        "records": records,
        "workers": planned.schedule.workers,
        "schedule": schedule_file,
    }
    text = f"{out}: {lines:,} lines, {len(planned.program.ops)} ops"
    if schedule_file is not None:
        text += f"\n{schedule_file}: {records:,} records on {planned.schedule.workers} workers"
    emit(data, as_json, lambda console: console.print(text, markup=False, soft_wrap=True))
