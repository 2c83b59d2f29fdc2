"""Runs chunks of prompts: a step graph as calls of PyTorch, over the machines' own tensors."""

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.engine.prefill.functions import fused
from mkport.engine.prefill.nodes import NODES, Chunk, Pages
from mkport.engine.prefill.views import view
from mkport.plan import Graph
from mkport.plan.graph import Node

WARM = (64, 1024, 96)  # tokens of the chunks that make PyTorch compile


class Prefill:
    """Chunks of one sequence a call, over weights and cache in `tensors` (NumPy or CuPy).

    Work is queued on the current stream of a GPU, where decode steps are; nothing waits for it.
    `compiled` has PyTorch fuse what stands between products, by default on a GPU.
    """

    def __init__(
        self, graph: Graph, tensors: Mapping[str, Any], compiled: bool | None = None
    ) -> None:
        specs = graph.tensors.values()
        self._fixed = {
            spec.name: view(tensors[spec.name])
            for spec in specs
            if spec.kind in ("weight", "state")
        }
        cache = {spec.name for spec in specs if spec.kind == "state"}
        nodes = needed(graph.nodes, cache)
        self._calls = [(NODES[node.op.name], SimpleNamespace(**node.args)) for node in nodes]
        self._windows = windows(graph.nodes)
        self._page = next(node.args["page"] for node in nodes if "page" in node.args)
        embedding = next(self._fixed[node.args["table"]] for node in nodes if "table" in node.args)
        self.device, self.dtype = embedding.device, embedding.dtype
        self._fused = fused(self.device.type == "cuda" if compiled is None else compiled)

    def run(self, ids: Sequence[int], start: int, tables: Mapping[str, np.ndarray]) -> None:
        """Writes the keys and values of `ids` [tokens], which stand at position `start` on, into
        their pages; every position before has been run.

        `tables` holds the sequence's row of each page table, int32 [blocks].
        """
        import torch

        end = start + len(ids)
        with torch.no_grad():
            chunk = Chunk(
                ids=self._sent(ids),
                start=start,
                pages={name: self._pages(name, row, start, end) for name, row in tables.items()},
                fixed=self._fixed,
                fused=self._fused,
                dtype=self.dtype,
                scratch={},
            )
            for call, args in self._calls:
                call(chunk, args)

    def warm(self, tables: Mapping[str, np.ndarray], context: int) -> None:
        """Runs chunks of a few lengths, none above `context` positions, into pages that nobody
        holds, so that what has to be compiled is compiled, and waits for it."""
        import torch

        for tokens in WARM:
            self.run([0] * min(tokens, context), 0, tables)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _pages(self, name: str, row: np.ndarray, start: int, end: int) -> Pages:
        window, page = self._windows[name], self._page
        block = max(start - window + 1, 0) // page if window else 0
        position = np.arange(start, end)
        return Pages(
            self._sent(row[block : -(-end // page)]),
            block * page,
            self._sent(row[position // page]),
            self._sent(position % page),
        )

    def _sent(self, numbers: Any) -> Any:
        import torch

        host = torch.from_numpy(np.array(numbers, np.int64))
        return host.to(self.device, non_blocking=True)


def needed(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """The nodes that what is written to the tensors `outputs` depends on, in order."""
    kept: list[Node] = []
    wanted, live = set(outputs), set[str]()
    for node in reversed(nodes):
        written = {node.args[x.arg] for x in node.accesses if x.mode in ("write", "update")}
        read = {node.args[x.arg] for x in node.accesses if x.mode != "write"}
        if written & (live | wanted):
            kept.append(node)
            live = (live - written) | read
    return kept[::-1]


def windows(nodes: Sequence[Node]) -> dict[str, int]:
    """Keys that a token sees through each page table, its own included; 0: all."""
    found: dict[str, int] = {}
    for node in nodes:
        if node.op.name == "attention":
            name = node.args["page_table"]
            found[name] = max(found.get(name, 0), node.args["window"])
    return found
