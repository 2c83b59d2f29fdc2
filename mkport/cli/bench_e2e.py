"""`mkport bench e2e`: prompts of mixed lengths through prefill and decode, without HTTP."""

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.options import ModelOption, RandomOption, ReportOption, drawn_model
from mkport.cli.output import JsonFlag, emit, progress
from mkport.errors import UserError
from mkport.files import check_folder_of, write_text

if TYPE_CHECKING:
    from mkport.engine.engine import Engine


def command(
    model: ModelOption = None,
    random: RandomOption = None,
    machine: Annotated[str, typer.Option("--machine", metavar="cpu|cuda")] = "cpu",
    requests: Annotated[int, typer.Option(help="Prompts, all there at once.", min=1)] = 24,
    batch: Annotated[int, typer.Option(help="Requests side by side.", min=1, max=64)] = 8,
    context: Annotated[int, typer.Option(help="Positions of a request.", min=1)] = 2048,
    rounds: Annotated[int, typer.Option(help="Samples.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Of the lengths and the prompts.")] = 0,
    out: ReportOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure prompts of mixed lengths from end to end: tokens a second, time to a first token."""
    if machine not in ("cpu", "cuda"):
        raise UserError(f"There is no machine {machine!r} here; there are cpu and cuda.")
    drawn = drawn_model(random, model)
    if out is not None:
        check_folder_of(out)
    from mkport.engine.bench.e2e import mix, run, table

    with ExitStack() as stack:
        with progress("getting ready"):
            engine, where = _engine(stack, model, drawn, machine, batch, context)
        asks = mix(requests, engine.vocab, engine.context, seed)
        with progress("answering", total=rounds + 1) as advance:
            report = run(engine, asks, where, rounds, advance)
    if out is not None:
        write_text(out, json.dumps(report.as_dict()) + "\n")
        write_text(out.with_suffix(".md"), table(report))
    emit(report.as_dict(), as_json, lambda console: print(table(report), end=""))


def _engine(
    stack: ExitStack,
    model: str | None,
    drawn: tuple[str, str] | None,
    machine: str,
    batch: int,
    context: int,
) -> "tuple[Engine, str]":
    """An engine that ends with the stack, and the name of what it runs on; `context` is in
    positions."""
    from mkport.engine.engine import Engine

    if machine == "cuda":
        from mkport.machines.cuda.gpu import gpu

        where = gpu().name
    else:
        from mkport.bandwidth import usable_cores
        from mkport.doctor import cpu_model

        where = f"{cpu_model()}, {usable_cores()} threads"
    if drawn is None:
        engine = Engine(model, machine=machine, max_batch=batch, max_model_len=context)
        return stack.enter_context(engine), where
    family, size = drawn
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) / f"{family}-{size}"
    if machine == "cpu":
        from mkport.engine.synth import synthesise

        synthesise(family, size, directory)
        engine = Engine(str(directory), max_batch=batch, max_model_len=context)
    else:
        from mkport.engine.bench.e2e_drawn import drawn_engine

        engine = drawn_engine(directory, family, size, batch, context)
    return stack.enter_context(engine), where
