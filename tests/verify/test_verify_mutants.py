"""More than ten thousand planted faults: the verifier and the slow reference agree on every one."""

import random
from collections import Counter
from typing import get_args

import pytest

from mkport.plan import Schedule, deal, flag, is_flagged
from mkport.verify import Footprint, Refused, verify
from mkport.verify.report import ProblemKind
from tests.verify.mutants import GRAPH_MUTATIONS, SCHEDULE_MUTATIONS, copy_lists
from tests.verify.reference import Facts, is_safe
from tests.verify.toys import random_graph

GRAPHS = 130
REFUSED = 10_000  # at least so many of the mutants are faulty
HARMLESS = {"shuffled_workers", "swapped_runs"}  # must be accepted, every time


def _verdict(schedule: Schedule, footprint: Footprint, resident: int | None = None) -> set[str]:
    """The kinds of problems found, none for a schedule that is accepted."""
    try:
        verify(schedule, resident, footprint)
    except Refused as refused:
        return {problem.kind for problem in refused.problems}
    return set()


def test_ten_thousand_mutants(capsys: pytest.CaptureFixture) -> None:
    refused: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    kinds: Counter[str] = Counter()

    def compare(name: str, mutant: Schedule, resident: int | None = None) -> None:
        same = mutant.graph is schedule.graph
        safe = is_safe(mutant, facts if same else Facts(mutant.graph), resident)
        found = _verdict(mutant, footprint if same else Footprint.of(mutant.graph), resident)
        assert bool(found) != safe, (seed, name, safe, found)
        (accepted if safe else refused)[name] += 1
        kinds.update(found)

    flagged = 0
    for seed in range(GRAPHS):
        dice = random.Random(seed)
        share = dice.choice(["blocks", "strided"])
        graph = flag(random_graph(seed)) if seed % 3 == 0 else random_graph(seed)
        flagged += is_flagged(graph)
        schedule = deal(graph, dice.randint(2, 6), share)  # type: ignore[arg-type]
        facts, footprint = Facts(schedule.graph), Footprint.of(schedule.graph)
        assert is_safe(schedule, facts) and not _verdict(schedule, footprint), seed
        for resident in range(1, 7):
            compare("too_many_workers", schedule, resident)
        for mutation in SCHEDULE_MUTATIONS * 5 + GRAPH_MUTATIONS * 3:
            if mutant := mutation(dice, copy_lists(schedule), schedule):
                compare(mutation.__name__, mutant)
    with capsys.disabled():
        print(f"\n{refused.total()} mutants refused, {accepted.total()} harmless ones accepted")
        for name in sorted(refused | accepted):
            print(f"  {name:28} refused {refused[name]:4}  accepted {accepted[name]:4}")
        print("  problems:", ", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    planted = {m.__name__ for m in SCHEDULE_MUTATIONS + GRAPH_MUTATIONS} | {"too_many_workers"}
    assert set(refused) == planted - HARMLESS
    assert HARMLESS <= set(accepted)
    assert refused.total() >= REFUSED
    assert flagged > GRAPHS / 5
    # no mutation renames a tensor, and toys have no arguments that do not fit
    assert set(kinds) == set(get_args(ProblemKind)) - {"table", "argument"}
