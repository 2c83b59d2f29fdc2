"""Every family layer by layer: the residual stream after each layer against transformers' own.

A step's graph is cut after a layer's last node, so a wrong layer is named, not just a wrong token.
"""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from mkport.engine.decoder import Decoder
from mkport.machines.cpu.machine import CpuMachine
from mkport.models.sizes import TINY
from mkport.plan import Graph, deal
from mkport.testing import tiny
from mkport.testing.law import EPS, measure
from mkport.verify import verify
from tests.engine.checkpoints import fields_of, opened, prompts_of, save

LENGTHS = (7, 25, 40)  # the window of the tiny models is 24, a page is 16
ROWS = [(s, p) for p in range(max(LENGTHS)) for s, length in enumerate(LENGTHS) if p < length]


def ends(graph: Graph, layers: int) -> list[int]:
    """How many nodes a step has up to its embedding, and up to the end of each layer."""
    labels = [node.label for node in graph.nodes]
    last = [
        max(n for n, text in enumerate(labels) if text.startswith(f"layer {i} /"))
        for i in range(layers)
    ]
    return [labels.index("embed") + 1, *(n + 1 for n in last)]


def ours(decoder: Decoder, prompts: list[list[int]]) -> list[np.ndarray]:
    """x after the embedding and after each layer, float32 [tokens, hidden], rows as in ROWS."""
    whole = decoder.machines[-1]
    tensors = whole.tensors
    tensors["rows"][: len(ROWS)] = ROWS
    tensors["tokens"][: len(ROWS)] = [prompts[s][p] for s, p in ROWS]
    tensors["count"][0] = len(ROWS)
    found = []
    for nodes in ends(whole.schedule.graph, decoder.model.config.layers):
        schedule = deal(whole.schedule.graph.first(nodes), 2)
        verify(schedule)
        with CpuMachine(tiny.program("f32"), schedule, tensors) as machine:
            machine.poison()
            machine.step()
        found.append(tensors["x"][: len(ROWS)].copy())
    return found


def theirs(directory: Path, prompts: list[list[int]], dtype: torch.dtype) -> list[np.ndarray]:
    """The same of transformers' class, float64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )
    last: list[torch.Tensor] = []  # the last of `hidden_states` is normed already
    model.model.norm.register_forward_pre_hook(lambda norm, given: last.append(given[0]))
    with torch.no_grad():
        states = [
            model(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in prompts
        ]
    of_prompt = [[*s[:-1], end] for s, end in zip(states, last, strict=True)]
    return [
        np.stack([of_prompt[s][place][0, p].double().numpy() for s, p in ROWS])
        for place in range(len(of_prompt[0]))
    ]


@pytest.mark.parametrize("family", TINY)
def test_the_residual_stream_after_every_layer(tmp_path: Path, family: str) -> None:
    directory = save(tmp_path / "model", fields_of(family))
    prompts = prompts_of(LENGTHS, TINY[family]["vocab_size"])
    with opened(directory, batch=len(prompts), context=64, chunk=len(ROWS), page=16) as decoder:
        got = ours(decoder, prompts)
    truth, plain = (theirs(directory, prompts, kind) for kind in (torch.float64, torch.float32))
    assert len(got) == len(truth) == TINY[family]["num_hidden_layers"] + 1
    for place, (x, exact, rough) in enumerate(zip(got, truth, plain, strict=True)):
        found = measure(x, exact, rough, EPS["float32"])
        assert found.ok, (f"after layer {place - 1}" if place else "after the embedding", found)
