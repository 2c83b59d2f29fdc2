"""`mkport bench`: decode speed against transformers and llama.cpp, in turns, same weights; or what
it costs to plan and verify a full-size step. `mkport bench decode`, on a GPU, is in `bench_decode`,
`mkport bench serve` in `bench_serve`, `mkport bench e2e` in `bench_e2e`."""

import json
import random
from pathlib import Path
from typing import Annotated

import typer

from mkport.cli import bench_decode, bench_e2e, bench_serve
from mkport.cli.output import JsonFlag, emit, plain, progress
from mkport.files import check_folder_of, write_text

CONTESTANTS = ("mkport", "transformers", "llama.cpp")
PROMPT = (
    "The history of reading machines is longer than the history of computers. Write three short "
    "paragraphs about it, for people who have never thought about the question."
)


def command(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="A model directory; llama.cpp takes part on the demo only.")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help=f"Contestants: {', '.join(CONTESTANTS[1:])}.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences side by side.", min=1, max=64)] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each; 0: all usable cores.", min=0)] = 0,
    tokens: Annotated[int, typer.Option(help="Decode steps in a sample.", min=2)] = 64,
    rounds: Annotated[int, typer.Option(help="Samples of each contestant.", min=1)] = 7,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write every sample to this JSON file.")
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Measure instead what planning and verifying North Mini Code's step for a large "
            "GPU takes; needs no model and no GPU.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure decode: tokens a second, share of the memory bound, peak memory."""
    if ctx.invoked_subcommand is not None:
        return
    if out is not None:
        check_folder_of(out)
    if plan:
        _plan(out, as_json)
        return
    from mkport.bandwidth import usable_cores
    from mkport.engine.bench.decode import run, table
    from mkport.engine.bench.gguf_bf16 import bf16_gguf
    from mkport.engine.inspect_model import inspect
    from mkport.engine.load import load
    from mkport.engine.source import demo_file

    demo = model in (None, "smollm2") and batch == 1
    names = ["mkport", *(against if against is not None else CONTESTANTS[1 : 3 if demo else 2])]
    with progress("loading the model"):
        loaded = load(model)
        gguf = bf16_gguf(demo_file()) if demo and "llama.cpp" in names else None
    prompt = loaded.tokenizer.encode(PROMPT)
    draw = random.Random(0)  # each sequence its own order of the prompt's tokens
    prompts = [prompt, *(draw.sample(prompt, len(prompt)) for _ in range(batch - 1))]
    reads = inspect(str(loaded.directory), len(prompt) + tokens, loaded.weights.dtype, [batch])
    with progress("decoding in turns", total=rounds * len(names)) as advance:
        report = run(
            names,
            loaded.directory,
            gguf,
            prompts,
            reads.steps[0].nbytes,
            reads.weight_bytes,
            reads.cache_bytes_per_token,
            threads=threads or usable_cores(),
            tokens=tokens,
            rounds=rounds,
            advance=advance,
        )
    if out is not None:
        write_text(out, json.dumps(report.as_dict(), indent=1) + "\n")
        write_text(out.with_suffix(".md"), table(report))
    emit(report.as_dict(), as_json, lambda console: print(table(report)))


def _plan(out: Path | None, as_json: bool) -> None:
    from mkport.engine.bench.plan import BATCHES, plan_costs, table

    with progress(f"planning and verifying at batch {' and '.join(map(str, BATCHES))}"):
        costs = plan_costs()
    if out is not None:
        write_text(out, json.dumps(plain(costs), indent=1) + "\n")
        write_text(out.with_suffix(".md"), table(costs))
    emit(costs, as_json, lambda console: print(table(costs), end=""))


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.callback(invoke_without_command=True)(command)
app.command("decode", help="Measure decode steps on a GPU, beside kernels one by one and PyTorch.")(
    bench_decode.command
)
app.command(
    "e2e", help="Measure prompts of mixed lengths through prefill and decode, without HTTP."
)(bench_e2e.command)
app.command("serve", help="Measure serving: latency, throughput, what a server adds.")(
    bench_serve.command
)
