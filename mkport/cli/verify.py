"""The verb `verify`: proves a schedule safe, or says why it is not."""

from pathlib import Path
from typing import Annotated

import typer

from mkport.bandwidth import usable_cores
from mkport.cli.options import (
    BatchOption,
    ContextOption,
    DtypeOption,
    ModelOption,
    OpsOption,
    WorkersOption,
    open_model,
)
from mkport.cli.output import JsonFlag, emit
from mkport.engine.decoder import decode_shape
from mkport.errors import UserError
from mkport.library import all_ops, ops_in
from mkport.models.sampled import sampled
from mkport.plan import deal
from mkport.plan.file import load_schedule
from mkport.verify import verify


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.json]", help="What `mkport compose --schedule` wrote."),
    ] = None,
    model: ModelOption = None,
    dtype: DtypeOption = None,
    workers: WorkersOption = None,
    batch: BatchOption = 1,
    context: ContextOption = None,
    folder: OpsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Prove a schedule safe: no wait can hang, no two tasks can race, whatever the timing.

    Verifies the schedule file, or the schedule of a model's decode step. Exits with 2 and names the
    records, the tensor tile and the missing edge when the schedule is refused.
    """
    if file is not None:
        if model is not None:
            raise UserError("Give a schedule file or --model, not both.")
        schedule = load_schedule(file, all_ops() | ({} if folder is None else ops_in(folder)))
    else:
        loaded = open_model(model, dtype)
        shape = decode_shape(loaded, batch, context)
        graph = sampled(loaded.family.build(loaded.config, shape))
        schedule = deal(graph, usable_cores() if workers is None else workers)
    report = verify(schedule)
    emit(report, as_json, lambda console: console.print(str(report), soft_wrap=True))
