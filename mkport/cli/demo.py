"""The verb `demo`, which `make run` calls: the whole way from kernels to text, stage by stage.

The stages themselves are in `stages.py`; here they are put in order, timed and told.
"""

import itertools
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mkport.cli import stages
from mkport.cli.options import ModelOption, WorkersOption, open_decoder, open_model
from mkport.cli.output import JsonFlag, emit
from mkport.cli.run import DEFAULT_PROMPT
from mkport.cli.stages import Outcome
from mkport.files import make_folder
from mkport.plan.deal import check_workers

CONTEXT = 1024  # positions: a prompt and an answer


@dataclass(frozen=True)
class Stage:
    """A stage that has ended."""

    name: str
    outcome: Outcome
    seconds: float


def command(
    prompt: Annotated[
        str, typer.Argument(envvar="PROMPT", help="What to say to the model.")
    ] = DEFAULT_PROMPT,
    model: ModelOption = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where the files go.")
    ] = Path("out"),
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Tokens to generate at most.")
    ] = 96,
    workers: WorkersOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Go the whole way: check the kernels, port, compose, verify, check the step, speak, trace.

    Each stage prints its verdict, its time and the files it wrote. Exits with 1 if one fails.
    """
    make_folder(out)
    loaded = open_model(model, None)  # wrong use is told before minutes of checks
    if workers is not None:
        check_workers(workers)
    done: list[Stage] = []
    titles = itertools.count(1)

    def stage(name: str, work: Callable[[], Outcome]) -> None:
        if not as_json:
            print(f"{next(titles)}. {name}", flush=True)
        started = time.perf_counter()
        outcome = work()
        done.append(Stage(name, outcome, time.perf_counter() - started))
        if not as_json:
            _tell(done[-1])

    stage("Standalone kernels against their oracles", stages.standalone)
    stage("Each ported task beside its standalone kernel", lambda: stages.ported(out / "diffs"))
    stage(
        "A file of ordinary CUDA kernels, ported and made one", lambda: stages.brought(out / "cuda")
    )
    with ExitStack() as stack:
        decoders = []

        def compose() -> Outcome:
            decoder = open_decoder(loaded, context=CONTEXT, workers=workers)
            decoders.append(stack.enter_context(decoder))
            return stages.composed(decoder, out / "megakernel.py")

        stage("The megakernel, composed", compose)
        (decoder,) = decoders
        stage("Its schedule, verified", lambda: stages.verified(decoder, out / "schedule.json"))
        stage("Its step against a plain reference", lambda: stages.step_checked(decoder))
        quiet = as_json
        stage("Text", lambda: stages.spoken(decoder, prompt or DEFAULT_PROMPT, max_tokens, quiet))
        stage("A step, traced", lambda: stages.traced(decoder, out))
    failed = [one for one in done if one.outcome.verdict == "FAILED"]
    data = {"ok": not failed, "seconds": sum(one.seconds for one in done), "stages": done}
    emit(data, as_json, lambda console: print(_ending(done, out)))
    if failed:
        raise typer.Exit(1)


def _tell(stage: Stage) -> None:
    outcome = stage.outcome
    colours = {"ok": typer.colors.GREEN, "FAILED": typer.colors.RED}
    verdict = typer.style(outcome.verdict, fg=colours.get(outcome.verdict, typer.colors.YELLOW))
    typer.echo(f"   {verdict} in {stage.seconds:.1f} s: {outcome.text}")
    for file in outcome.files:
        typer.echo(f"   wrote {file}")
    sys.stdout.flush()


def _ending(done: list[Stage], out: Path) -> str:
    seconds = sum(stage.seconds for stage in done)
    counts = [
        f"{count} {word}"
        for word in ("ok", "skipped", "FAILED")
        if (count := sum(stage.outcome.verdict == word for stage in done))
    ]
    return f"\n{len(done)} stages in {seconds:.1f} s: {', '.join(counts)}. The files are in {out}/."
