"""`mkport bench serve`: what a server adds to the decode loop, and how it fares beside others."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mkport.cli.output import JsonFlag, emit, progress
from mkport.errors import UserError
from mkport.files import check_folder_of, write_text

AGAINST = ("llama.cpp", "transformers", "transformers batching")
EXPERIMENTS = ("overhead", "crowd", "prefill", "follow-up", "beside-long", "load")
CONTEXT = 4096  # positions of a request on every server


def command(
    model: Annotated[
        str | None, typer.Option(help="A model directory; llama.cpp takes part on the demo only.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help=f"Other servers: {', '.join(AGAINST)} (only if asked for); or none."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Some of the parts: {', '.join(EXPERIMENTS)}.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each part but load.", min=1)] = 5,
    requests: Annotated[int, typer.Option(help="Requests of each load.", min=2)] = 24,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write every sample to this JSON file; tables and plots "
        "go beside it."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:  # fmt: skip
    """Measure serving: time to first token, gaps between tokens, throughput, overhead.

    Every server runs on this machine, in turns with the others, on the same weights.
    """
    if out is not None:
        check_folder_of(out)
    parts = only or list(EXPERIMENTS)
    others = list(AGAINST[:2]) if against is None else [name for name in against if name != "none"]
    for given, known in ((parts, EXPERIMENTS), (others, AGAINST)):
        if strange := set(given) - set(known):
            raise UserError(
                f"There is no {sorted(strange)[0]!r} here; there are {', '.join(known)}."
            )
    from mkport.bandwidth import usable_cores
    from mkport.engine.bench.gguf_bf16 import bf16_gguf
    from mkport.engine.bench.serving import servers
    from mkport.engine.bench.serving.mixes import WORDS
    from mkport.engine.bench.serving.race import BATCHES, PROMPT, race
    from mkport.engine.bench.serving.report import plots, table
    from mkport.engine.load import load
    from mkport.engine.source import demo_file

    count = usable_cores()
    demo = model in (None, "smollm2")
    with progress("loading the model"):
        loaded = load(model)
        prompt = loaded.tokenizer.encode(" ".join(WORDS * 2))
        if len(prompt) < PROMPT:
            prompt *= PROMPT
        plans = [servers.mkport(loaded.directory, max(BATCHES), CONTEXT)]
        if "llama.cpp" in others and demo:
            plans.append(servers.llama_cpp(bf16_gguf(demo_file()), count, CONTEXT))
        if "transformers" in others:
            plans.append(servers.transformers(loaded.directory, batching=False))
        if "transformers batching" in others:
            plans.append(servers.transformers(loaded.directory, batching=True))
    with progress("serving", total=2 * rounds + 1) as advance:
        report = race(
            plans,
            loaded.directory,
            prompt,
            only=parts,
            threads=count,
            rounds=rounds,
            requests=requests,
            advance=advance,
        )
    if out is not None:
        write_text(out, json.dumps(report.as_dict(), indent=1) + "\n")
        write_text(out.with_suffix(".md"), table(report))
        plots(report, out.with_suffix(""))
    emit(report.as_dict(), as_json, lambda console: print(table(report)))
