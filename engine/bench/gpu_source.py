"""What the GPU benchmark measures: a model's step on weights that are on the device once."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mkport.compose.fixed import compose_cuda_for
from mkport.engine.bench.gpu_inputs import random_tensor, step_inputs
from mkport.errors import UserError
from mkport.machines.cuda.gpu import gpu
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.cuda.machine import CudaMachine
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import Graph, deal, flagged_for
from mkport.verify import verify

if TYPE_CHECKING:
    from mkport.engine.load import LoadedModel


@dataclass
class Source:
    """Where the weights come from: a model, or a family and size whose weights are drawn."""

    name: str
    config: Any
    family: Any
    model: "LoadedModel | None"

    @classmethod
    def random(cls, family: str, size: str) -> "Source":
        """Random weights. Raises UserError for an unknown family or size."""
        fields = config_of(family, size)
        name = f"{family}, {size} size, random weights"
        return cls(name, parse_config(fields), family_of(fields), None)

    @classmethod
    def of(cls, model: "LoadedModel") -> "Source":
        """A loaded checkpoint. Raises UserError when it is not bfloat16."""
        if model.weights.dtype != "bf16":
            raise UserError(
                f"{model.directory} holds {model.weights.dtype}; the benchmark is of bfloat16. "
                "Load it with --dtype bf16."
            )
        return cls(model.name, model.config, model.family, model)

    def graph(self, batch: int, context: int) -> Graph:
        """A step of one token for each of `batch` sequences of `context` positions."""
        return sampled(self.family.build(self.config, _shape(batch, context)))

    def plain(self, batch: int, context: int) -> Graph:
        """The same step for `batch` sequences of `context` positions, as kernels run it that are
        launched one by one: every norm is one."""
        return sampled(self.family.build(self.config, replace(_shape(batch, context), stage=0)))

    def hold(self, graph: Graph, context: int) -> dict[str, Any]:
        """Weights and cache on the device, for a `context` of so many positions: the model's own
        weights, else random ones."""
        table = self.family.rope_table(self.config, context)
        held: dict[str, Any] = {}
        for seed, spec in enumerate(graph.tensors.values()):
            if spec.kind == "weight" and self.model is not None:
                from mkport.engine.cuda_target import weight_of

                held[spec.name] = weight_of(self.model, spec, context)
            elif spec.kind in ("weight", "state"):
                held[spec.name] = random_tensor(spec, table, seed)
        return held


def _shape(batch: int, context: int) -> StepShape:
    stage = stage_bytes(gpu().shared_bytes)
    return StepShape(rows=batch, context=context, sequences=batch, logits=batch, stage=stage)


def machine_on(
    graph: Graph, held: dict[str, Any], batch: int, context: int, vocab: int
) -> tuple[CudaMachine, int, float, float]:
    """A machine on the weights and cache that are there, with the inputs of a step at the last of
    `context` positions; how many records it has, and the seconds that planning and compiling
    took."""
    started = time.perf_counter()
    schedule = deal(flagged_for(graph, batch), gpu().multiprocessors, "strided")
    report = verify(schedule)
    planned = time.perf_counter()
    program = compose_cuda_for(schedule.graph, "bf16", "bf16", batch)
    tensors = {
        name: _front(held[name], spec.shape) for name, spec in graph.tensors.items() if name in held
    } | step_inputs(graph, _shape(batch, context), vocab)
    machine = CudaMachine(program, schedule, tensors)
    return machine, report.records, planned - started, time.perf_counter() - planned


def _front(array: Any, shape: tuple[int, ...]) -> Any:
    """The beginning of an array, as another: a smaller batch's cache is a part of the largest's."""
    return array.reshape(-1)[: int(np.prod(shape))].reshape(shape)
