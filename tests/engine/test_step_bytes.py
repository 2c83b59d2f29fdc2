"""The bytes that a step's tasks declare, counted over what really ran, against what it touched.

Routing decides which experts a step reads, so the count takes the experts that a real step chose.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from mkport.engine.decoder import Decoder
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, Node, deal
from mkport.plan.bytes import distinct, step_bytes
from mkport.testing import tiny
from tests.engine.checkpoints import fields_of, opened, prompts_of, save

EXPERTS, TOP, DEPTH = 32, 3, 40  # DEPTH: position of every token of the step
F32 = 4  # bytes


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cohere2_moe with enough experts that most steps leave some out."""
    fields = fields_of("cohere2_moe", num_experts=EXPERTS, num_experts_per_tok=TOP)
    return save(tmp_path_factory.mktemp("wide") / "model", fields)


def chosen_experts(decoder: Decoder, batch: int) -> dict[str, int]:
    """Runs a decode step up to each layer's choice: distinct experts, by "layer 1" and so on."""
    decoder.step([(s, DEPTH, 7 + 31 * s) for s in range(batch)], range(batch))
    machine = decoder.machine  # its inputs are those of the step; scratch is shared by layers
    graph, found = machine.schedule.graph, {}
    for place, node in enumerate(graph.nodes):
        if node.op.name == "topk":
            schedule = deal(graph.first(place + 1), 2)
            with CpuMachine(tiny.program("f32"), schedule, machine.tensors) as cut:
                cut.step()
                ids = cut.tensors["chosen"][:batch]
            found[_layer(node)] = len(np.unique(ids))
    return found


def touched(config: Any, graph: Graph, batch: int, experts: dict[str, int]) -> float:
    """Bytes of the weights and keys that the step cannot do without, from the config alone."""
    hidden, ffn = config.hidden, config.ffn
    expert = 3 * hidden * ffn  # gate, up, down
    attention = 2 * hidden * (config.q_width + config.kv_width)
    total = config.vocab * hidden + hidden  # the LM head, the last norm
    total += batch * hidden  # a row of the embedding a token
    for layer, dense in enumerate(config.dense):
        total += attention + hidden
        if dense:
            total += 3 * hidden * dense
        else:
            total += EXPERTS * hidden + experts[f"layer {layer}"] * expert
        keys = min(DEPTH + 1, config.windows[layer] or DEPTH + 1)
        total += batch * keys * 2 * config.kv_width
    return float(total * F32)


def _layer(node: Node) -> str:
    return node.label.split(" / ")[0]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_declared_reads_are_within_a_tenth_of_the_experts_chosen(
    directory: Path, batch: int
) -> None:
    prompts = prompts_of([DEPTH] * batch, 288)
    with opened(directory, batch=batch, context=64, chunk=64, page=16) as decoder:
        for sequence, ids in enumerate(prompts):
            decoder.prefill(sequence, ids)
        experts = chosen_experts(decoder, batch)
        graph, config = decoder.machine.schedule.graph, decoder.model.config
    assert len(experts) == 4 and all(
        TOP <= n <= min(EXPERTS, TOP * batch) for n in experts.values()
    )

    def used(node: Node) -> float:
        """The share of a node's slots that held an expert in that step."""
        slots = node.args.get("slot_count")
        return experts[_layer(node)] / slots if slots else 1.0

    bound = touched(config, graph, batch, experts)
    assert step_bytes(graph, batch, DEPTH + 1, used) == pytest.approx(bound, rel=0.1)
    # and without the step at hand, the expectation under uniform routing is near
    mean = distinct(EXPERTS, TOP, batch)
    uniform = step_bytes(
        graph,
        batch,
        DEPTH + 1,
        lambda n: mean / n.args["slot_count"] if "slot_count" in n.args else 1.0,
    )
    assert uniform == pytest.approx(bound, rel=0.2)
