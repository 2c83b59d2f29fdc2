"""`mkport bench decode`: decode steps on a GPU, beside the same kernels one by one and PyTorch, on
the same weights, in turns."""

import importlib.util
import json
import sys
import time
from typing import Annotated, Any

import typer

from mkport.cli.options import ModelOption, RandomOption, ReportOption, drawn_model, open_model
from mkport.cli.output import JsonFlag, emit
from mkport.errors import UserError
from mkport.files import check_folder_of, write_text

BASELINES = ("separate kernels", "PyTorch")


def command(
    model: ModelOption = None,
    random: RandomOption = None,
    machine: Annotated[str, typer.Option("--machine", metavar="cuda")] = "cuda",
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", min=1, max=64, help="May be given several times."),
    ] = None,
    context: Annotated[int, typer.Option("--context", min=1, help="Positions read so far.")] = 8192,
    against: Annotated[
        list[str] | None, typer.Option("--against", help=f"Of: {', '.join(BASELINES)}.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Against nothing.")] = False,
    rounds: Annotated[int, typer.Option(help="Samples of each contestant.", min=1)] = 20,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Let PyTorch's compiler try settings: minutes a batch.")
    ] = False,
    out: ReportOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure decode steps on a GPU: tokens a second and share of the memory bandwidth.

    Nothing is timed before it was compared: bits of repeated runs, bits of the separate kernels,
    logits of all against a step in float32.
    """
    if machine != "cuda":
        raise UserError(
            f"This measures the GPU, not {machine!r}: leave --machine out. The CPU's benchmark is "
            "`mkport bench`."
        )
    if unknown := sorted(set(against or ()) - set(BASELINES)):
        raise UserError(f"There is no {unknown[0]!r}; --against takes {', '.join(BASELINES)}.")
    drawn = drawn_model(random, model)
    if out is not None:
        check_folder_of(out)
    from mkport.machines.cuda.gpu import gpu

    gpu()  # before anything is loaded
    from mkport.engine.bench.gpu_compare import compare
    from mkport.engine.bench.gpu_report import draw, table
    from mkport.engine.bench.gpu_source import Source

    if drawn is not None:
        source = Source.random(*drawn)
    else:
        source = Source.of(open_model(model, None, machine="cuda"))
    names = [] if alone else against or list(BASELINES)
    started = time.perf_counter()

    def say(line: str) -> None:
        print(f"{time.perf_counter() - started:6.1f} s: {line} ...", file=sys.stderr, flush=True)

    def save(report: dict[str, Any]) -> None:
        if out is not None:
            write_text(out, json.dumps(report, indent=1) + "\n")
            write_text(out.with_suffix(".md"), table(report))

    report, trace = compare(source, batch or [1], context, names, rounds, say, save, tuned)
    if out is not None:
        say("pictures")
        if importlib.util.find_spec("matplotlib"):
            from mkport import trace as tracing

            draw(report, out.with_suffix(".svg"))
            tracing.draw(trace, out.with_name(f"{out.stem}_step.png"))
    emit(report, as_json, lambda console: print(table(report), end=""))
