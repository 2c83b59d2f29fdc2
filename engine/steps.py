"""A model's steps on the CPU machine, in several widths that share weights, cache and page tables.

Which tokens a step runs, and whose pages the tables name, is the caller's business: `decoder` gives
every sequence pages for good, `runner` follows the scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mkport.compose import Program, compose_cpu
from mkport.declare.case import from_bf16
from mkport.engine.load import LoadedModel
from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.cpu.memory import allocate
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph, Schedule, deal
from mkport.verify import verify


@dataclass(frozen=True)
class Planned:
    """A verified schedule of a model's step and the program that runs it."""

    shape: StepShape
    schedule: Schedule
    program: Program


def plan_step(model: LoadedModel, shape: StepShape, workers: int) -> Planned:
    """Builds, deals, verifies and composes one step of a model."""
    graph: Graph = model.family.build(model.config, shape)
    schedule = deal(graph, workers)
    verify(schedule)
    title = f"One step of a {model.config.model_type} model"  # no name: models share compiled code
    ops = schedule.graph.ops
    return Planned(shape, schedule, compose_cpu(ops, shape.weights, shape.cache, title))


class CpuSteps:
    """Machines for `shapes`, which differ in rows and logits alone, the smallest first. `close` it.

    Raises UserError for a number of workers that no schedule has.
    """

    def __init__(self, model: LoadedModel, shapes: Sequence[StepShape], workers: int) -> None:
        self.planned = [plan_step(model, shape, workers) for shape in shapes]
        graph = self.planned[0].schedule.graph
        shared = _shared(model, graph, shapes[0].context)
        self.tables = {n: shared[n] for n in (FULL_TABLE, WINDOW_TABLE) if n in shared}
        self.machines = [CpuMachine(p.program, p.schedule, shared) for p in self.planned]
        self.last = self.machines[0]  # the machine that ran the last step

    def machine_for(self, tokens: int, wanted: int) -> CpuMachine | None:
        """The smallest machine that holds a step of so many tokens and rows of logits, if any."""
        for planned, machine in zip(self.planned, self.machines, strict=True):
            if tokens <= planned.shape.rows and wanted <= planned.shape.logits:
                return machine
        return None

    def run(
        self,
        machine: CpuMachine,
        places: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        wanted: Sequence[int],
        trace: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs `tokens` at `places`, each (row of the page tables, position).

        Returns, for the rows `wanted` of `tokens`, the greedy choices int32 [wanted] (-1 where
        logits are not finite) and the logits float32 [wanted, vocabulary]; both are overwritten by
        the next step.
        """
        inputs = machine.tensors
        inputs["count"][0], inputs["logit_count"][0] = len(tokens), len(wanted)
        inputs["rows"][: len(places)] = np.reshape(places, (-1, 2))
        inputs["tokens"][: len(tokens)] = tokens
        inputs["logit_rows"][: len(wanted)] = wanted
        self.last = machine
        machine.step(trace)
        return inputs["next"][: len(wanted)], inputs["logits"][: len(wanted)]

    def close(self) -> None:
        """Ends the machines' threads."""
        for machine in self.machines:
            machine.close()


def _shared(model: LoadedModel, graph: Graph, context: int) -> dict[str, np.ndarray]:
    """Weights, rotary table, page tables and cache: one copy for every machine."""
    arrays: dict[str, np.ndarray] = {}
    model.weights.hold()
    for name, spec in graph.tensors.items():
        if name == "rope":
            arrays[name] = model.family.rope_table(model.config, context)
        elif spec.kind == "weight":
            array = model.weights[name]
            wide = spec.dtype == "f32" and array.dtype == np.uint16  # norm weights
            arrays[name] = from_bf16(array) if wide else array
        elif spec.kind == "state" or name in (FULL_TABLE, WINDOW_TABLE):
            arrays[name] = allocate(spec.dtype, spec.shape)
    return arrays
