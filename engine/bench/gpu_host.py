"""What a step costs the host until it is queued, by batch and context, on a GPU.

    python -m mkport.engine.bench.gpu_host --out FILE

The model is a tiny one whose contexts are long: what the host does for a step, to fill its inputs,
to send them and page tables that changed, to launch kernels and to ask for the results, depends
on rows, page tables and the number of inputs, not on the size of the weights. Each step is waited
for before the next, so that no time is spent on a full queue. A line is printed as soon as its
shape is measured; what takes long is compiling a kernel for each batch, all side by side.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mkport.engine.bench.decode import commit
from mkport.engine.decoder import decode_shape
from mkport.engine.load import LoadedModel
from mkport.engine.sampled import GREEDY
from mkport.engine.steps import Steps, plan_step
from mkport.engine.target import Target
from mkport.models.sizes import config_of

FAMILY = "cohere2_moe"
LONGEST = 262144  # positions
SHAPES = [(1, 1024), (1, 8192), (1, 131072), (1, 261120), (8, 8192), (8, 261120), (64, 8192),
          (64, 261120)]  # fmt: skip
PAGE = 64  # keys
POOL = 4096  # pages of each pool: tables name them over and over
STEPS = 200
LIMIT_US = 100.0  # that is asked for


def model_in(directory: Path) -> LoadedModel:
    """A tiny model that can reach `LONGEST` positions, without weights, in a new directory."""
    from mkport.engine.bench.gpu_serving.model import without_weights, write_tokenizer

    directory.mkdir(parents=True)
    config = config_of(FAMILY, "tiny") | {"max_position_embeddings": LONGEST}
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory, config["vocab_size"])
    return without_weights(directory)


def cost(
    model: LoadedModel, target: Target, workers: int, batch: int, context: int, steps: int = STEPS
) -> dict[str, Any]:
    """Microseconds until a step of `batch` rows at the end of `context` positions is queued, each
    sample: without a change of the page tables, and with a new page for every row."""
    shape = replace(decode_shape(model, batch, context), pages=POOL, window_pages=POOL)
    found: dict[str, Any] = {"batch": batch, "context": context}
    running = Steps(model, [shape], workers, target)
    try:
        rng = np.random.default_rng(0)
        for table, pages in running.tables.items():
            for row, own in enumerate(rng.integers(0, POOL, pages.shape)):
                running.turn(table, row, 0, own)
        machine, rows = running.machines[0], list(range(batch))
        for name, turned in (("same_pages_us", False), ("new_pages_us", True)):
            times = []
            for step in range(steps + 5):
                if turned:
                    for table, pages in running.tables.items():
                        for row, page in enumerate(rng.integers(0, POOL, batch)):
                            running.turn(table, row, pages.shape[1] - 1, [page])
                places = [(row, context - 1 - step % 60) for row in rows]
                started = time.perf_counter()
                ran = running.launch(machine, places, [-1] * batch, rows, [GREEDY] * batch)
                times.append((time.perf_counter() - started) * 1e6)
                ran.arrive()
            found[name] = times[5:]
    finally:
        running.close()
    return found


def compile_all(model: LoadedModel, target: Any, shapes: Sequence[tuple[int, int]]) -> None:
    """Compiles what steps of `shapes`, each (batch, context in positions), need, side by side."""
    from mkport.engine.cuda_ahead import SOURCE
    from mkport.machines.cuda.gpu import compiled

    sources = {SOURCE.read_text(encoding="utf-8")}
    for batch in {batch for batch, _ in shapes}:  # the context is no part of the kernel
        shape = decode_shape(model, batch, PAGE)
        sources.add(plan_step(model, shape, target.workers(), target).program.source)
    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(compiled, sources))


def head(report: dict[str, Any]) -> str:
    """The report's first lines as Markdown."""
    return (
        f"Host time until a step is queued, on {report['gpu']}'s host ({report['cpu']}, commit "
        f"{report['commit']}), medians of {STEPS}, tiny model with long page tables.\n\n"
        "| batch | context | us | with a new page for every row, us |\n|---|---|---|---|"
    )


def line(run: dict[str, Any]) -> str:
    """A shape's line."""
    same, new = median(run["same_pages_us"]), median(run["new_pages_us"])
    return f"| {run['batch']} | {run['context']} | {same:.0f} | {new:.0f} |"


def table(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    return "\n".join([head(report), *map(line, report["runs"])]) + "\n"


def main() -> None:
    """Measures every shape, prints the table and writes every sample if asked."""
    from mkport.doctor import cpu_model
    from mkport.engine.bench.gpu_serving.model import Drawn
    from mkport.machines.cuda.gpu import gpu

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, action="append", help="only these of 1, 8 and 64")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print a report's table, measure nothing")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())), end="")
        return
    began = time.perf_counter()
    shapes = [shape for shape in SHAPES if not given.batch or shape[0] in given.batch]
    report: dict[str, Any] = {"gpu": gpu().name, "cpu": cpu_model(), "commit": commit()}
    print(head(report), flush=True)
    report["runs"] = []
    with tempfile.TemporaryDirectory() as folder:
        model, target = model_in(Path(folder) / "tiny"), Drawn()
        compile_all(model, target, shapes)
        print(f"compiled after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        for shape in shapes:
            report["runs"].append(cost(model, target, target.workers(), *shape))
            print(line(report["runs"][-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
