"""Executes the scheduler's plans: moves pages, fills page tables, runs the step, hands out logits.

`Runner` is all that the core knows of a machine; `StepRunner` is one over any target's machines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mkport.doctor import cpu_model
from mkport.engine.load import LoadedModel
from mkport.engine.prefill.prefill import LEAST, Prefill
from mkport.engine.ran import Ran, unknown
from mkport.engine.sampled import Draw
from mkport.engine.scheduler import Limits
from mkport.engine.sequence import Copy, Part, Plan, Restore, Save
from mkport.engine.steps import Steps
from mkport.engine.target import CPU, Target
from mkport.machines.cpu.machine import Stuck
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.trace import Trace
from mkport.trace.collect import collect


class StepFailed(RuntimeError):
    """A step did not end: what its sequences have in the cache is unknown, later steps may run."""


class Runner(Protocol):
    """A machine that runs planned steps."""

    limits: Limits
    workers: int
    ahead: int  # steps that may be run before the results of the one before have arrived

    def run(self, plan: Plan, draws: Sequence[Draw], trace: bool = False) -> Ran:
        """Does a plan's moves in order, enters its entries, runs its parts; `draws` says how each
        wanted row's token is chosen.

        A `Save` leaves the contents in its sequence's `saved`, a `Restore` takes them from there.
        A runner that runs ahead returns before the step has ended; a token that is PENDING is then
        the one that its sequence's last wanted row chose. Raises StepFailed.
        """
        ...

    def trace(self) -> Trace:
        """What happened in the last step, which was run with `trace`."""
        ...

    def close(self) -> None:
        """Ends the machine's threads or processes."""
        ...


@dataclass(slots=True)
class _Row:
    """A token of a step: (row of the page tables, position), its id, and how the next one is
    chosen, if it is wanted."""

    place: tuple[int, int]
    token: int
    draw: Draw | None = None


class StepRunner:
    """Machines of a target. `shape` is a step of one token for each sequence; `widths` [machines]
    are the rows of each, ascending, the last the most that the limits allow.

    Where the target prefills, the tokens of a prompt's chunk go to PyTorch, all legs of them that
    the plan says, less those whose logits are wanted: what follows a prompt comes out of a step, as
    what follows any other token does. Rows that no machine holds together are run by several steps.
    """

    def __init__(
        self,
        model: LoadedModel,
        shape: StepShape,
        limits: Limits,
        widths: Sequence[int],
        workers: int | None = None,
        target: Target = CPU,
    ) -> None:
        self.limits, self.ahead = limits, target.ahead
        self.workers = target.workers() if workers is None else workers
        most = limits.sequences + limits.prompt_logits
        shapes = [replace(shape, rows=w, logits=min(w, most)) for w in widths]
        self.steps = Steps(model, shapes, self.workers, target)
        graph = self.steps.planned[0].graph
        self._tables = self.steps.tables
        self._pools = list(self._tables)  # each pool's page table
        self._caches = [sorted(_caches_of(graph.nodes, table)) for table in self._tables]
        self._place = f"{self.workers} {'threads' if target.name == 'cpu' else 'workers'}"
        self._model = model.name
        self._traced: tuple[int, int] = (0, 0)  # tokens and sequences of the last step
        self.prefill: Prefill | None = None
        if target.prefills:
            sizes = chunk_sizes(max(limits.chunk, limits.mixed_chunk), limits.context)
            self.prefill = Prefill(graph, self.steps.tensors, sizes=sizes, legs=limits.legs)
            self.prefill.record()

    def run(self, plan: Plan, draws: Sequence[Draw], trace: bool = False) -> Ran:
        """See `Runner`."""
        for move in plan.moves:
            self._move(move)
        for pool, row, block, page in plan.entries:
            self.steps.turn(self._pools[pool], row, block, [page])
        self._traced = plan.tokens, len(plan.parts)
        reading = self._read(plan.parts)
        rows = _rows(plan.parts, draws)
        try:
            ran = self._step(rows, trace)
        except Stuck as error:
            raise StepFailed(str(error)) from error
        if self.ahead:
            ran = replace(ran, arrive=lambda ran=ran: _arrived(ran))  # type: ignore[misc]
        ran.reading = reading
        return ran

    def _read(self, parts: Sequence[Part]) -> Callable[[], float | None]:
        """Has PyTorch run its share of the parts; how long it takes is known when they are run."""
        if self.prefill is None:
            return unknown
        walked = [(part, part.legs) for part in parts if part.legs is not None]
        if not walked:
            return unknown
        with self.prefill.watched() as reading:
            for part, legs in walked:
                tables = {name: table[part.sequence.row] for name, table in self._tables.items()}
                end = part.start + part.count - part.wanted
                ids = part.sequence.tokens[part.start : end]
                self.prefill.run(ids, part.start, tables, legs)
        return reading

    def _step(self, rows: Sequence[_Row], trace: bool) -> Ran:
        """Runs rows, in as few steps as hold them; what the wanted ones gave, in order."""
        shape = self.steps.planned[-1].shape
        cuts = list(range(0, len(rows), shape.rows))
        if len(cuts) > 1:
            return self._steps_of([rows[at : at + shape.rows] for at in cuts], trace)
        return self._one(rows, trace) if rows else _joined([])

    def _steps_of(self, batches: Sequence[Sequence[_Row]], trace: bool) -> Ran:
        """Several steps; each one's results are fetched before the next."""
        found: list[Ran] = []
        for rows in batches[:-1]:
            ran = self._one(rows, trace, kept=False)
            if any(row.draw is not None for row in rows):
                ran.arrive()
                found.append(Ran(ran.choices.copy(), ran.ids.copy(), ran.logprobs.copy()))
        return _joined([*found, self._one(batches[-1], trace)])

    def _one(self, rows: Sequence[_Row], trace: bool, kept: bool = True) -> Ran:
        """One step; `kept`: its results may be looked at after the next one's launch."""
        wanted = [n for n, row in enumerate(rows) if row.draw is not None]
        draws = [row.draw for row in rows if row.draw is not None]
        machine = self.steps.machine_for(len(rows), len(wanted))
        assert machine is not None, "the scheduler plans steps that fit"
        places, tokens = [row.place for row in rows], [row.token for row in rows]
        return self.steps.launch(machine, places, tokens, wanted, draws, trace, kept)

    def trace(self) -> Trace:
        """See `Runner`."""
        tokens, sequences = self._traced
        return collect(
            self.steps.last,
            f"measured on {cpu_model()}, {self._place}: a step of {self._model}; tokens: {tokens}, "
            f"sequences: {sequences}",
        )

    def close(self) -> None:
        """See `Runner`."""
        self.steps.close()

    def _move(self, move: Save | Restore | Copy) -> None:
        steps = self.steps
        if isinstance(move, Copy):
            for name in self._caches[move.pool]:
                steps.copy(name, move.source, move.target)
        elif isinstance(move, Save):
            move.sequence.saved = {
                name: steps.save(name, pages)
                for names, pages in zip(self._caches, move.pages, strict=True)
                for name in names
                if pages
            }
        else:
            for names, pages in zip(self._caches, move.pages, strict=True):
                for name in names if pages else ():
                    steps.restore(name, pages, move.sequence.saved[name])
            move.sequence.saved = None


def chunk_sizes(most: int, context: int) -> list[int]:
    """Tokens of the chunks that are computed, ascending [sizes]: powers of two, then what holds
    `most`, of no more than `context` positions."""
    most = min(most, context)
    sizes, size = [], LEAST
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, most]


def _rows(parts: Sequence[Part], draws: Sequence[Draw]) -> list[_Row]:
    """What of the parts is for the machines."""
    rows: list[_Row] = []
    left = iter(draws)
    for part in parts:
        sequence, end = part.sequence, part.start + part.count
        first = part.start if part.legs is None else end - part.wanted
        for position in range(first, end):
            draw = next(left) if position >= end - part.wanted else None
            rows.append(_Row((sequence.row, position), sequence.tokens[position], draw))
    return rows


def _arrived(ran: Ran) -> None:
    """Waits for a step's results. Raises StepFailed."""
    try:
        ran.arrive()
    except Stuck as error:
        raise StepFailed(str(error)) from error


def _joined(parts: Sequence[Ran]) -> Ran:
    """The results of several steps as those of one; only the last may not have arrived."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Ran.none(0)
    names = ("choices", "ids", "logprobs")
    arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in names]

    def arrive() -> None:
        parts[-1].arrive()
        for name, array in zip(names, arrays, strict=True):
            np.concatenate([getattr(part, name) for part in parts], out=array)

    return Ran(arrays[0], arrays[1], arrays[2], arrive)


def _caches_of(nodes: Sequence, table: str) -> set[str]:
    """The tensors that hold the keys and values which a page table leads to."""
    return {
        node.args[name]
        for node in nodes
        if node.op.name == "attention" and node.args["page_table"] == table
        for name in ("k_pages", "v_pages")
    }


def pool_windows(model: LoadedModel, shape: StepShape) -> list[int]:
    """The window of each pool [pools] of a model's step, in keys, 0 for the pool of layers that see
    everything, in the order of their page tables: of several windows the widest."""
    graph = model.family.build(model.config, replace(shape, pages=1, window_pages=1))
    windows: dict[str, int] = {}
    for node in graph.nodes:
        if node.op.name == "attention":
            table = node.args["page_table"]
            windows[table] = max(windows.get(table, 0), node.args["window"])
    return [windows[name] for name in (FULL_TABLE, WINDOW_TABLE) if name in windows]
