"""Runs chunks of prompts: a step graph as calls of PyTorch, over the machines' own tensors."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.engine.prefill.functions import fused
from mkport.engine.prefill.inputs import Inputs, Table
from mkport.engine.prefill.lanes import MAIN, SIDE, turns
from mkport.engine.prefill.nodes import NODES, Chunk
from mkport.engine.prefill.views import view
from mkport.errors import UserError
from mkport.plan import Graph
from mkport.plan.graph import Node

LEAST = 64  # tokens of the smallest chunk that is recorded
LOOKED_AT, OFF = (
    4,
    0.02,
)  # parts of the cache, the first layers'; by so much, as products' orders go

_log = logging.getLogger(__name__)


class Prefill:
    """Chunks of one sequence a call, over weights and cache in `tensors` (NumPy or CuPy); of each
    part of the cache, the page behind the last that the graph knows is scratch.

    Work is queued on the current stream of a GPU, where decode steps are; nothing waits for it.
    `compiled` has PyTorch fuse what stands between products, by default on a GPU. Where `sizes`
    [sizes] are given, ascending, a chunk is computed as the next larger one of these, so that its
    bits do not depend on its length alone, and `record` can have the GPU repeat a run of it.
    A chunk goes through the layers in `legs` legs, no more than there are layers; one at a time.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Any],
        compiled: bool | None = None,
        sizes: Sequence[int] = (),
        legs: int = 1,
    ) -> None:
        specs = graph.tensors.values()
        self._fixed = {
            spec.name: view(tensors[spec.name])
            for spec in specs
            if spec.kind in ("weight", "state")
        }
        cache = {spec.name for spec in specs if spec.kind == "state" and spec.dtype != "i32"}
        nodes = needed(graph.nodes, cache)
        self._calls = [(NODES[node.op.name], SimpleNamespace(**node.args)) for node in nodes]
        self._legs = legs_of(nodes, legs)
        self._turns = turns(nodes)
        self._tables = tables_of(graph)
        self._columns = {name: graph.tensors[name].shape[1] for name in self._tables}
        self._page = next(node.args["page"] for node in nodes if "page" in node.args)
        embedding = next(self._fixed[node.args["table"]] for node in nodes if "table" in node.args)
        self.device, self.dtype = embedding.device, embedding.dtype
        self._fused = fused(self.device.type == "cuda" if compiled is None else compiled)
        reach = max(self._columns.values()) * self._page
        self._sized = [self._room(tokens, reach) for tokens in sizes]
        self._recorded: dict[int, list[Any]] = {}  # a graph a leg, by tokens
        self._side = self._side_stream()
        self._under_way: tuple[Chunk, int, tuple[int, int]] | None = None  # of which legs are left:
        # with the next of them, and its start and length

    def run(
        self,
        ids: Sequence[int],
        start: int,
        tables: Mapping[str, np.ndarray],
        legs: tuple[int, int] | None = None,
    ) -> None:
        """Writes the keys and values of `ids` [tokens], which stand at position `start` on, into
        their pages; every position before has been run.

        `tables` holds the sequence's row of each page table, int32 [blocks]. Of the `legs`, from
        the first to before the second, those before were run by the calls before, or the first
        starts a chunk, whatever was under way; None: all.
        """
        first, end = legs or (0, len(self._legs))
        if first:
            assert self._under_way is not None, "legs of a chunk that was not begun"
            chunk, *been = self._under_way
            assert been == [first, (start, len(ids))], "legs of another chunk, or others of it"
        else:
            chunk = self._begun(ids, start, tables)
        recorded = self._recorded.get(chunk.room.tokens)
        for leg in range(first, end):
            if recorded:
                recorded[leg].replay()
            else:
                self._walk(chunk, self._legs[leg])
        left = end < len(self._legs)
        self._under_way = (chunk, end, (start, len(ids))) if left else None

    def _begun(self, ids: Sequence[int], start: int, tables: Mapping[str, np.ndarray]) -> Chunk:
        room = next((room for room in self._sized if room.tokens >= len(ids)), None)
        if room is None:
            room = self._room(len(ids), start + len(ids))
        room.fill(ids, start, tables)
        return self._chunk(room)

    @contextmanager
    def watched(self) -> Iterator[Callable[[], float | None]]:
        """Times what is run inside; the seconds are there when it has been run, or None."""
        if self.device.type != "cuda":
            began, took = time.perf_counter(), [0.0]
            yield lambda: took[0]
            took[0] = time.perf_counter() - began
            return
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        yield lambda: float(first.elapsed_time(last)) / 1e3 if last.query() else None
        last.record()

    @property
    def recorded(self) -> list[int]:
        """Tokens of the chunks that a GPU repeats, [sizes]."""
        return sorted(self._recorded)

    def record(self) -> None:
        """Compiles, and has the GPU record a run of each of the sizes, so that the host has to
        queue one thing a leg instead of hundreds. Into pages that nobody holds; waits for it.

        What was recorded must give what was seen before, or it is not used. Raises UserError when
        the GPU has no room for the largest.
        """
        import torch

        rows = {
            name: np.arange(self._columns[name], dtype=np.int32) % table.spare
            for name, table in self._tables.items()
        }
        try:
            for room in reversed(self._sized):
                room.fill([1 + i % 200 for i in range(room.tokens)], 0, rows)
                for _ in range(2):
                    self._walk_all(room)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"The GPU has no room for a chunk of {self._sized[-1].tokens} prompt tokens: lower "
                "prefill_chunk (--prefill-chunk), or kv_memory (--kv-memory)."
            ) from error
        if self.device.type != "cuda" or self.dtype != torch.bfloat16:
            return  # elsewhere some of it waits for the host
        torch.cuda.synchronize()
        try:
            self._recorded = self._record()
        except RuntimeError as error:
            _log.warning("chunks of prompts are queued kernel by kernel: %s", error)
            self._recorded = {}
        torch.cuda.synchronize()

    def _record(self) -> dict[int, list[Any]]:
        import torch

        recorded: dict[int, list[Any]] = {}
        pool = torch.cuda.graph_pool_handle()
        for room in reversed(self._sized):  # the largest first: the others fit in its scratch
            seen = self._written()
            chunk = self._chunk(room)  # holds what one leg leaves to the next
            graphs = [torch.cuda.CUDAGraph() for _ in self._legs]
            for leg, graph in zip(self._legs, graphs, strict=True):
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    self._walk(chunk, leg)
            for cache in seen:
                self._fixed[cache][:1] = 0
            for graph in graphs:
                graph.replay()
            torch.cuda.synchronize()
            for cache, wanted in seen.items():
                off = (self._fixed[cache][:1].float() - wanted.float()).square().mean().sqrt()
                if not float(off) <= OFF * float(wanted.float().square().mean().sqrt()):
                    raise RuntimeError(f"a recorded run of {room.tokens} tokens gives other keys")
            recorded[room.tokens] = graphs
        return recorded

    def _written(self) -> dict[str, Any]:
        """The first page of the first layers' parts of the cache: a copy."""
        caches = [name for name, tensor in self._fixed.items() if tensor.ndim == 4]
        return {name: self._fixed[name][:1].clone() for name in caches[:LOOKED_AT]}

    def _room(self, tokens: int, reach: int) -> Inputs:
        return Inputs(tokens, reach, self._page, self._tables, self.device)

    def _chunk(self, room: Inputs) -> Chunk:
        return Chunk(room, self._fixed, self._fused, self.dtype)

    def _walk_all(self, room: Inputs) -> None:
        chunk = self._chunk(room)
        for leg in self._legs:
            self._walk(chunk, leg)

    def _walk(self, chunk: Chunk, leg: slice) -> None:
        """Runs a leg of a chunk."""
        import torch

        with torch.no_grad():
            if self._side is None:
                for call, args in self._calls[leg]:
                    call(chunk, args)
                return
            lanes = {MAIN: torch.cuda.current_stream(), SIDE: self._side}
            lanes[SIDE].wait_stream(lanes[MAIN])
            for (call, args), turn in zip(self._calls[leg], self._turns[leg], strict=True):
                if turn.waits:
                    lanes[turn.lane].wait_stream(lanes[1 - turn.lane])
                with torch.cuda.stream(lanes[turn.lane]):
                    call(chunk, args)
            lanes[MAIN].wait_stream(self._side)

    def _side_stream(self) -> Any:
        """The stream of the side lane, where there are both. What one lane allocates and the other
        reads is let go when a later node writes it anew, which waits for the reader."""
        import torch

        beside = any(turn.lane == SIDE for turn in self._turns)
        return torch.cuda.Stream(self.device) if beside and self.device.type == "cuda" else None


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


def legs_of(nodes: Sequence[Node], legs: int) -> list[slice]:
    """The nodes [nodes] of each of so many legs, which begin where a layer does and hold about as
    many layers each; no more than there are layers."""
    layers = [node.label.split(" / ")[0] for node in nodes]
    begins = [at for at, layer in enumerate(layers) if " " in layer and layer != layers[at - 1]]
    legs = min(legs, len(begins))
    cuts = [0, *(begins[leg * len(begins) // legs] for leg in range(1, legs)), len(nodes)]
    return [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]


def tables_of(graph: Graph) -> dict[str, Table]:
    """The page tables: of several windows the widest, and the page behind the last."""
    found: dict[str, Table] = {}
    for node in graph.nodes:
        if node.op.name == "attention":
            name = node.args["page_table"]
            pool = graph.tensors[node.args["k_pages"]].shape[0]
            known = found[name].window if name in found else 0
            found[name] = Table(max(known, node.args["window"]), pool)
    return found
