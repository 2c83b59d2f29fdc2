"""What the benchmark's reports say, without measuring a model: memory in words, a plan's cost."""

import pytest

from mkport.engine.bench.decode import BESIDE, Report, Result, table
from mkport.engine.bench.plan import plan_cost
from mkport.engine.bench.plan import table as plan_table
from mkport.errors import UserError


@pytest.mark.parametrize(("over", "word"), [(-1e6, "within"), (1e6, "ABOVE")])
def test_peak_memory_stands_beside_what_a_run_must_hold(over: float, word: str) -> None:
    held = 300e6
    result = Result("mkport", {}, [100.0], peak_bytes=int(held + BESIDE + over))
    report = Report("a machine", "3", "abc", 2, 1, 8, 8, 250e6, held, [20e9], 0.0, [result])
    assert f", {word} 650 MB: 300 MB of weights and cache" in table(report)


def test_a_full_step_is_planned_and_its_cost_told() -> None:
    cost = plan_cost("cohere2_moe", workers=4, batch=1)
    assert cost.records > 1000 and cost.checks > 0
    assert min(cost.build_seconds, cost.deal_seconds, cost.verify_seconds) > 0
    assert 50e6 < cost.peak_bytes < 4e9
    assert f"| 1 | {cost.records:,} |" in plan_table([cost])


def test_what_has_no_plan_is_refused() -> None:
    with pytest.raises(UserError, match="no full model of the family 'mixtral'"):
        plan_cost("mixtral", 4, 1)
    with pytest.raises(UserError, match="batch of 0"):
        plan_cost("cohere2_moe", 4, 0)
