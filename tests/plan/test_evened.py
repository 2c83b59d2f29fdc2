"""Workers that had more of one node get fewer tiles of the next, where the two run side by side."""

import numpy as np
import pytest

from mkport.declare import RECORD
from mkport.kernels.attention.op import PACE
from mkport.kernels.gemm.op import CACHED
from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import Graph, Schedule, deal, waits_of
from mkport.verify import verify

NODE, COUNT = RECORD["node"].first, RECORD["run"].first + 2
SIGNAL = RECORD["signal"].first


STAGE = 65792  # bytes of a product's inputs


def full(family: str, rows: int, layers: int, stage: int = 0) -> Graph:
    """A step of the first layers of a model of full size, 8192 positions."""
    config = config_of(family, "full") | {"num_hidden_layers": layers}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    shape = StepShape(rows=rows, context=8192, sequences=rows, logits=rows, stage=stage)
    return family_of(config).build(parse_config(config), shape)


def dealt(schedule: Schedule, label: str) -> np.ndarray:
    """Tiles of the node that each worker has, int64 [workers]."""
    number = next(n for n, node in enumerate(schedule.graph.nodes) if node.label == label)
    return np.array(
        [sum(r[COUNT] for r in records if r[NODE] == number) for records in schedule.lists]
    )


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_attention_and_experts_end_with_as_many_bytes_on_all_workers(rows: int) -> None:
    schedule = deal(full("cohere2_moe", rows, 3), 132, "strided")
    verify(schedule)
    attention = dealt(schedule, "layer 2 / attention")
    experts = dealt(schedule, "layer 2 / experts_up")
    up = next(n for n in schedule.graph.nodes if n.label == "layer 2 / experts_up")
    assert experts.sum() == up.tiles
    assert np.ptp(attention) > 0
    keys = int(PACE * 2 * 512 * 128 * 2)  # bytes of a tile of attention, as they are counted
    weights = 16 * 2048 * 2  # and of the experts
    spread = np.ptp(attention * keys + experts * weights)
    assert spread <= 2 * weights
    assert spread < np.ptp(attention * keys)


def test_of_splits_that_seldom_are_there_each_worker_s_first_counts() -> None:
    """A full layer's splits of a long context are many for each worker, and few in most steps."""
    for rows, counted in ((1, 1), (8, 0)):  # 64 tiles, 512 tiles on 132 workers
        schedule = deal(full("cohere2_moe", rows, 5), 132, "strided")
        attention = dealt(schedule, "layer 4 / attention")
        experts = dealt(schedule, "layer 4 / experts_up")
        assert attention.sum() == 64 * rows
        fewer = experts[attention == 0].min() - experts[attention > 0].max() if counted else 0
        assert fewer >= 4 * counted and (counted or np.ptp(experts) <= 1)


def test_what_waits_for_attention_is_dealt_evenly() -> None:
    schedule = deal(full("qwen3_moe", 1, 2), 132, "strided")
    assert np.ptp(dealt(schedule, "layer 1 / experts_up")) <= 1


def test_a_cpus_neighbouring_tiles_stay_together() -> None:
    graph = full("cohere2_moe", 1, 3)
    assert np.ptp(dealt(deal(graph, 7, "blocks"), "layer 2 / experts_up")) <= 1


@pytest.mark.parametrize("rows", [16, 64])
def test_of_a_wide_step_half_of_the_workers_have_the_product_that_runs_beside_the_experts(
    rows: int,
) -> None:
    """It reads its weights from a cache; the others leave memory no time to rest meanwhile."""
    schedule = deal(full("cohere2_moe", rows, 2, STAGE), 132, "strided")
    verify(schedule)
    product = dealt(schedule, "layer 1 / o_proj")
    parts = [n for n in schedule.graph.nodes if n.label.startswith("layer 1 / experts_down")]
    experts = np.sum([dealt(schedule, part.label) for part in parts], axis=0)
    down = parts[0]
    assert len(parts) == (2 if rows == 16 else 1) and product.sum() == rows // 8 * 128
    assert experts.sum() == sum(part.tiles for part in parts)
    assert 56 <= np.count_nonzero(product) <= 70
    assert down.op.lots is not None
    lot = down.op.lots(down.bound)[0][2] * 16 * 768 * 2  # bytes
    spread = np.ptp(product * int(CACHED * 16 * 4096 * 2) + experts * 16 * 768 * 2)
    assert spread <= 2 * lot
    # lots of nothing are dealt too, at the end: of those that are used the others have more
    assert experts[product > 0].mean() < experts[product == 0].mean()


def test_the_parts_of_a_wide_step_s_experts_are_even_together_with_attention() -> None:
    """And no second half waits for the first half of another part's experts."""
    schedule = deal(full("cohere2_moe", 32, 3, STAGE), 132, "strided")
    verify(schedule)
    nodes = schedule.graph.nodes
    ups, downs = ([n for n, node in enumerate(nodes) if node.label.startswith(f"layer 2 / {half}")]
                  for half in ("experts_up", "experts_down"))  # fmt: skip
    assert len(ups) == len(downs) == 2
    tiles = dealt(schedule, "layer 2 / attention") * int(PACE * 2 * 512 * 128 * 2)
    lots = nodes[ups[0]].op.lots
    assert lots is not None
    lot = lots(nodes[ups[0]].bound)[0][2] * 16 * 2048 * 2  # bytes
    for up in ups:
        tiles += dealt(schedule, nodes[up].label) * 16 * 2048 * 2
        assert np.ptp(tiles) <= lot
    for up, down in zip(ups, downs, strict=True):
        mine = [r for records in schedule.lists for r in records if r[NODE] == down]
        signals = {int(r[SIGNAL]) for records in schedule.lists for r in records if r[NODE] == up}
        assert {counter for r in mine for counter, _ in waits_of(r)} == signals


def test_where_nothing_runs_beside_it_all_workers_have_some_of_a_product() -> None:
    schedule = deal(full("qwen3_moe", 64, 2, STAGE), 132, "strided")
    assert np.count_nonzero(dealt(schedule, "layer 1 / o_proj")) == 128


def test_who_groups_a_step_s_pairs_has_less_of_attention() -> None:
    schedule = deal(full("cohere2_moe", 64, 5, STAGE), 132, "strided")
    group, attention = (dealt(schedule, f"layer 4 / {name}") for name in ("group", "attention"))
    assert attention[group == 1].tolist() == [30] and attention[group == 0].min() == 31
