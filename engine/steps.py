"""A model's steps on a machine, in several widths that share weights, cache and page tables.

Which tokens a step runs, and whose pages the tables name, is the caller's business: `decoder` gives
every sequence pages for good, `runner` follows the scheduler.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import numpy as np

from mkport.compose import Program
from mkport.compose.cuda import CudaProgram
from mkport.declare import TensorSpec
from mkport.engine.load import LoadedModel
from mkport.engine.ran import Ran
from mkport.engine.sampled import GREEDY, Draw, words_of
from mkport.engine.sampling_tables import SamplingTables
from mkport.engine.target import CPU, Machine, Target
from mkport.models.sampled import sampled
from mkport.models.step import StepShape
from mkport.plan import Graph, Schedule, deal, flagged_for
from mkport.verify import verify


@dataclass(frozen=True)
class Planned:
    """A verified schedule of a model's step and the program that runs it."""

    graph: Graph  # as the model's family builds it; the schedule's may have flagged scratch
    shape: StepShape
    schedule: Schedule
    program: Program | CudaProgram


def plan_step(model: LoadedModel, shape: StepShape, workers: int, target: Target = CPU) -> Planned:
    """Builds, deals, verifies and composes one step of a model. Raises UserError for a number of
    workers that no schedule has."""
    shape = replace(shape, stage=target.stage)
    graph: Graph = sampled(model.family.build(model.config, shape))
    run = flagged_for(graph, shape.rows) if target.flagged else graph
    schedule = deal(run, workers, target.share)
    verify(schedule)
    title = f"One step of a {model.config.model_type} model"  # no name: models share compiled code
    return Planned(graph, shape, schedule, target.compose(schedule.graph, shape, title))


class Steps:
    """Machines for `shapes`, which differ in rows and logits alone, the smallest first. `close` it.

    Raises UserError for a number of workers that no schedule has, and for a target that has no
    room.
    """

    def __init__(
        self, model: LoadedModel, shapes: Sequence[StepShape], workers: int, target: Target = CPU
    ) -> None:
        self.planned = [plan_step(model, shape, workers, target) for shape in shapes]
        tables = [
            # flagged scratch is a machine's own
            {n: s for n, s in planned.schedule.graph.tensors.items() if s.kind != "flagged"}
            for planned in self.planned
        ]
        largest: dict[str, TensorSpec] = {}
        for spec in (spec for table in tables for spec in table.values()):
            if spec.name not in largest or spec.nbytes > largest[spec.name].nbytes:
                largest[spec.name] = spec
        self._arrays = target.place(model, largest, shapes[0].context)
        self.tables = self._arrays.tables
        self._sampling = SamplingTables(self._arrays.write, largest)
        self.machines = [
            target.machine(planned.program, planned.schedule, self._views(table))
            for planned, table in zip(self.planned, tables, strict=True)
        ]
        self.last = self.machines[0]  # the machine that ran the last step
        self._filled = 0, list[int]()  # tokens and wanted rows that the inputs tell of
        self._drawn: list[Draw] = []  # and how those are chosen
        self._told = self._tabled = False  # whether any is told of others, or has tables or a mask

    @property
    def tensors(self) -> Mapping[str, Any]:
        """All tensors, each as large as the largest machine's."""
        return self._arrays.tensors

    def turn(self, table: str, row: int, first: int, pages: Sequence[int]) -> None:
        """Enters `pages` [n] in a row of a page table, from its place `first` on. Raises IndexError
        where the table has no such row, or not so many places."""
        self._arrays.turn(table, row, first, pages)

    def machine_for(self, tokens: int, wanted: int) -> Machine | None:
        """The smallest machine that holds a step of so many tokens and rows of logits, if any."""
        for planned, machine in zip(self.planned, self.machines, strict=True):
            if tokens <= planned.shape.rows and wanted <= planned.shape.logits:
                return machine
        return None

    def run(
        self,
        machine: Machine,
        places: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        wanted: Sequence[int],
        trace: bool = False,
        draws: Sequence[Draw] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs `tokens` [tokens] at `places`, each (row of the page tables, position).

        `draws` says how each wanted row's token is chosen, greedily if it is left out. Returns, for
        the rows `wanted` [wanted] of `tokens`, the choices int32 [wanted] (-1 where logits are not
        finite) and the logits float32 [wanted, vocabulary]; both are overwritten by the next step.
        """
        self.step(machine, places, tokens, wanted, trace, draws)
        return self.choices(len(wanted)), self.logits(len(wanted))

    def step(
        self,
        machine: Machine,
        places: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        wanted: Sequence[int],
        trace: bool = False,
        draws: Sequence[Draw] = (),
    ) -> None:
        """As `run`, but reads nothing back."""
        self._fill(places, tokens, wanted, draws)
        self._arrays.push()
        self.last = machine
        machine.step(trace)

    def launch(
        self,
        machine: Machine,
        places: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        wanted: Sequence[int],
        draws: Sequence[Draw],
        trace: bool = False,
        kept: bool = True,
    ) -> Ran:
        """As `step`, of `tokens` [rows] at `places` and the rows `wanted` [wanted] of them, but the
        results arrive later, so that the next step can be under way before.

        A token below 0 is the one that its row of the page tables chose last. The results are gone
        when the step behind the next is launched, or the next if they are not `kept`.
        """
        self._fill(places, tokens, wanted, draws)
        self.last = machine
        return self._arrays.launch(machine, len(wanted), self._told, trace, kept)

    def choices(self, rows: int) -> np.ndarray:
        """The last step's choices of its first wanted rows, int32 [rows]."""
        return self._arrays.read(self.last.tensors["next"][:rows])

    def logits(self, rows: int) -> np.ndarray:
        """The last step's logits of its first wanted rows, float32 [rows, vocabulary]."""
        return self._arrays.read(self.last.tensors["logits"][:rows])

    def follow(
        self,
        machine: Machine,
        places: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        steps: int,
        draws: Sequence[Draw] = (),
    ) -> Iterator[np.ndarray]:
        """Up to `steps` steps of `tokens` [rows], the first as `run` does; each row's choice is its
        next token.

        Yields each step's choices, int32 [rows], -1 where logits are not finite. A device runs
        ahead of the host: the step behind the one whose choices are yielded is under way already.
        The positions of all steps must be within the context.
        """
        self._fill(places, tokens, range(len(tokens)), draws)
        self._arrays.push()
        self.last = machine
        yield from self._arrays.follow(machine, len(tokens), self.planned[0].shape.context, steps)

    def save(self, name: str, places: list[int]) -> np.ndarray:
        """A copy, on the host, of `places` [n] of a tensor's first axis: [n, ...]."""
        return self._arrays.read(self._arrays.tensors[name][places])

    def restore(self, name: str, places: list[int], contents: np.ndarray) -> None:
        """Fills `places` [n] with `contents` [n, ...], which `save` returned."""
        self._arrays.write(name, places, contents)

    def copy(self, name: str, source: int, target: int) -> None:
        """Copies one place of a tensor's first axis to another."""
        tensor = self._arrays.tensors[name]
        tensor[target] = tensor[source]

    def close(self) -> None:
        """Ends the machines' threads."""
        for machine in self.machines:
            machine.close()

    def _fill(
        self,
        places: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        wanted: Sequence[int],
        draws: Sequence[Draw],
    ) -> None:
        inputs = self._arrays.inputs
        inputs["rows"][: len(places)] = places
        inputs["tokens"][: len(tokens)] = tokens
        # while the same sequences decode, the rest stays as it is
        filled, before = (len(tokens), list(wanted)), self._drawn
        if filled != self._filled or len(draws) != len(before) or not all(map(is_, draws, before)):
            self._filled, self._drawn = filled, list(draws)
            inputs["count"][0], inputs["logit_count"][0] = len(tokens), len(wanted)
            inputs["logit_rows"][: len(wanted)] = wanted
            inputs["sampling"][: len(wanted)] = words_of(draws or [GREEDY] * len(wanted))
            self._told = any(draw.told is not None for draw in draws)
            self._tabled = any(_has_tables(draw) for draw in draws)
        if self._tabled:
            for row, draw in zip(wanted, draws, strict=True):
                if _has_tables(draw):
                    self._sampling.fill(places[row][0], draw)

    def _views(self, specs: dict[str, TensorSpec]) -> dict[str, Any]:
        """A machine's tensors: each the beginning of the largest machine's."""
        return {
            name: self._arrays.tensors[name]
            .reshape(-1)[: math.prod(spec.shape)]
            .reshape(spec.shape)
            for name, spec in specs.items()
        }


def _has_tables(draw: Draw) -> bool:
    return draw.tables is not None or draw.mask is not None
