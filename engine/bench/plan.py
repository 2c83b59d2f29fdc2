"""How long it takes to plan, deal and verify a full-size step, and in how much memory.

No weights are read and no step is run. Each size is measured in a process of its own, because a
process's peak memory never falls:

    python -m mkport.engine.bench.plan cohere2_moe 132 8
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

from mkport.errors import UserError
from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import deal, flagged_for
from mkport.verify import verify

CONTEXT = 8192  # positions
WORKERS = 132  # multiprocessors of an H100 or H200
BATCHES = (1, 8)


@dataclass(frozen=True)
class PlanCost:
    """What one schedule cost. Seconds are of the wall clock."""

    family: str
    batch: int
    workers: int
    records: int
    checks: int  # comparisons that the verifier made
    build_seconds: float  # config to graph
    deal_seconds: float  # dependencies, counters, records
    verify_seconds: float
    peak_bytes: int  # of the process, Python and its packages included


def plan_cost(family: str, workers: int, batch: int) -> PlanCost:
    """Measures one schedule in this process; `peak_bytes` counts whatever else it did before.

    Raises UserError for a family without a full size, and for workers or a batch nobody plans for.
    """
    if batch < 1:
        raise UserError(f"A batch of {batch} holds nothing: give a batch of at least 1.")
    fields = config_of(family, "full")
    model, config = family_of(fields), parse_config(fields)
    tiny = StepShape(rows=1, context=64)
    verify(deal(model.build(config, tiny), 1))  # compiles, or loads what is compiled
    shape = StepShape(rows=batch, context=CONTEXT, sequences=batch, logits=batch)
    began = time.perf_counter()
    graph = flagged_for(model.build(config, shape), batch)
    built = time.perf_counter()
    schedule = deal(graph, workers, "strided")
    dealt = time.perf_counter()
    report = verify(schedule, resident=workers)
    ended = time.perf_counter()
    return PlanCost(
        family=family,
        batch=batch,
        workers=workers,
        records=report.records,
        checks=report.checks,
        build_seconds=built - began,
        deal_seconds=dealt - built,
        verify_seconds=ended - dealt,
        # ru_maxrss is in KiB on Linux
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def plan_costs(family: str = "cohere2_moe", workers: int = WORKERS) -> list[PlanCost]:
    """The costs at every batch of BATCHES, each of a process of its own. Errors as `plan_cost`."""
    found = []
    for batch in BATCHES:
        command = [sys.executable, "-m", "mkport.engine.bench.plan", family, str(workers)]
        done = subprocess.run([*command, str(batch)], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or "its process ended").splitlines()[-1]
            raise UserError(f"The plan of {family} at batch {batch} was not measured: {last}")
        found.append(PlanCost(**json.loads(done.stdout)))
    return found


def table(costs: list[PlanCost]) -> str:
    """The costs as a Markdown table."""
    lines = [
        f"The step of a full {costs[0].family} for {costs[0].workers} workers:",
        "",
        "| batch | records | graph | plan and deal | verify | peak memory |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.batch} | {c.records:,} | {c.build_seconds:.2f} s | {c.deal_seconds:.2f} s "
        f"| {c.verify_seconds:.2f} s | {c.peak_bytes / 1e6:.0f} MB |"
        for c in costs
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints one cost as JSON; arguments: family, workers, batch."""
    family, workers, batch = sys.argv[1:]
    print(json.dumps(vars(plan_cost(family, int(workers), int(batch)))))


if __name__ == "__main__":
    main()
