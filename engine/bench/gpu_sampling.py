"""What choosing tokens costs a whole decode step on a GPU, field by field: a step that can only
choose greedily, and the step that knows every field, in turns on the same weights.

    python -m mkport.engine.bench.gpu_sampling --batch 1 --batch 8 --out FILE

Both must choose the same tokens greedily, or nothing is timed.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mkport.engine.bench.decode import commit
from mkport.engine.bench.gpu_contestants import seconds, timed
from mkport.engine.bench.gpu_decode import fetched
from mkport.engine.bench.gpu_inputs import drawn, shape_of, step_inputs
from mkport.engine.sampled import Draw, words_of
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import config_of
from mkport.plan import Graph, deal, flagged_for
from mkport.verify import verify

ONLY = "greedy, a step that knows nothing else"
GREEDY = "greedy"
FIELDS: dict[str, Any] = {"repetition": 1.1, "frequency": 0.1, "presence": 0.1}
EVERY = np.full(1, -1, np.int32)  # stands for a mask: the machine's own lets every token through
WAYS = {
    GREEDY: Draw(),
    "temperature": Draw(1.0),
    "top-k 64": Draw(1.0, top_k=64),
    "top-p 0.95": Draw(1.0, top_p=0.95),
    "min-p 0.05": Draw(1.0, min_p=0.05),
    "penalties, bias, mask": Draw(1.0, biased=True, mask=EVERY, **FIELDS),
    "20 log probabilities, greedy": Draw(told=20),
    "everything": Draw(1.0, top_k=64, top_p=0.95, min_p=0.05, biased=True, mask=EVERY, told=20,
                       **FIELDS),
}  # fmt: skip


def machines(
    config: Any, family: Any, lengths: Sequence[int], workers: int, stage: int, make: Any, hold: Any
) -> tuple[Any, Any]:
    """A machine that chooses greedily alone and one that knows every field, on the same weights
    and cache: of sequences of `lengths` [rows] positions. `make` makes a machine of a program, a
    schedule and tensors, `hold` a graph's weights and cache."""
    from mkport.compose.fixed import compose_cuda_for

    shape = shape_of(lengths, stage)
    plain = family.build(config, shape)
    whole = sampled(family.build(config, shape))
    held = hold(whole)
    made = []
    for graph in (plain, whole):
        schedule = deal(flagged_for(graph, shape.rows), workers, "strided")
        verify(schedule)
        program = compose_cuda_for(schedule.graph, "bf16", "bf16", shape.rows)
        given = {name: held[name] for name in graph.tensors if name in held}
        made.append(
            make(program, schedule, given | step_inputs(graph, shape, config.vocab, lengths))
        )
    made[1].tensors["mask"][...] = -1
    return made[0], made[1]


def check_same(plain: Any, whole: Any) -> None:
    """Raises SystemExit when the two do not choose the same tokens greedily."""
    for machine in (plain, whole):
        machine.poison()
        machine.step()
    if fetched(plain.tensors["next"]).tolist() != fetched(whole.tensors["next"]).tolist():
        raise SystemExit("the two steps choose other tokens: nothing was timed")


def set_way(machine: Any, draw: Draw) -> None:
    """Every row of the machine chooses as the draw says, each with a seed of its own."""
    words = machine.tensors["sampling"]
    found = words_of([replace(draw, seed=row) for row in range(len(words))])
    if hasattr(words, "set"):
        words.set(found)
    else:
        words[...] = found


def measure(family: str, size: str, batch: int, context: int, rounds: int) -> dict[str, Any]:
    """Seconds of a step at the end of `context` positions, every sample, by how tokens are
    chosen."""
    from mkport.machines.cuda.gpu import gpu
    from mkport.machines.cuda.layout import stage_bytes
    from mkport.machines.cuda.machine import CudaMachine

    config, module = parse_config(config_of(family, size)), family_of(config_of(family, size))
    table = module.rope_table(config, context)

    def hold(graph: Graph) -> dict[str, Any]:
        return drawn(graph, table)

    plain, whole = machines(
        config, module, [context] * batch, gpu().multiprocessors, stage_bytes(gpu().shared_bytes),
        CudaMachine, hold,
    )  # fmt: skip
    check_same(plain, whole)

    def clock(way: str) -> float:
        if way == ONLY:
            return seconds(plain.launch)
        set_way(whole, WAYS[way])
        return seconds(whole.launch)

    samples = timed({name: name for name in (ONLY, *WAYS)}, rounds, 60.0, clock)
    for machine in (plain, whole):
        machine.check()
    return {"batch": batch, "context": context, "samples_s": samples}


def table(report: dict[str, Any]) -> str:
    """The report as Markdown: what each way adds to the step that is greedy alone, in us."""
    runs = report["runs"]
    lines = [
        f"A decode step of {report['model']}, random weights, {runs[0]['context']} positions, on "
        f"one {report['gpu']} (commit {report['commit']}); medians of "
        f"{len(runs[0]['samples_s'][ONLY])} steps of each, in turns.",
        "",
        "| tokens are chosen by | " + " | ".join(f"batch {run['batch']}" for run in runs) + " |",
        "|---|" + "---|" * len(runs),
    ]
    for way in (ONLY, *WAYS):
        cells = []
        for run in runs:
            own, first = median(run["samples_s"][way]), median(run["samples_s"][ONLY])
            more = f"{1e6 * (own - first):+.0f} us, {100 * (own / first - 1):+.1f} %"
            cells.append(f"{own * 1e3:.3f} ms" if way == ONLY else more)
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures every batch, prints the table and writes every sample if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--family", default="cohere2_moe")
    parser.add_argument("--size", default="full")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print a report's table, measure nothing")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())), end="")
        return
    from mkport.machines.cuda.gpu import gpu

    runs = [
        measure(given.family, given.size, batch, given.context, given.rounds)
        for batch in given.batch or [1, 8]
    ]
    name = f"{given.family}, {given.size} size"
    report = {"gpu": gpu().name, "commit": commit(), "model": name, "runs": runs}
    print(table(report), end="")
    if given.out:
        given.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
