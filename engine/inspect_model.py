"""What a model is, what a decode step of it reads, and how fast that lets it be: from its config
alone, or with the weights beside it. Only this machine's memory is measured; no step is run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mkport.bandwidth import read_bandwidth, usable_cores
from mkport.engine.jsonfile import read_json
from mkport.engine.source import resolve
from mkport.engine.weights import DTYPES, INDEX, SINGLE
from mkport.errors import UserError
from mkport.models import family_of, parse_config
from mkport.models.step import StepShape
from mkport.plan import Graph, Node
from mkport.plan.bytes import distinct, node_bytes

BATCHES = (1, 2, 4, 8)
CONTEXT = 8192

# Memory bandwidth of the datasheets, in TB/s.
GPUS = {
    "A100 80GB SXM": 2.039,
    "H100 SXM": 3.35,
    "H200": 4.8,
    "B200": 8.0,
    "L40S": 0.864,
    "RTX 4090": 1.008,
    "RTX 5090": 1.792,
}

# What a node's bytes are of, by the end of its label; other nodes read norms.
_PARTS = {
    "embed": "embedding",
    "q_proj": "attention",
    "k_proj": "attention",
    "v_proj": "attention",
    "q_rope": "attention",
    "k_rope": "attention",
    "o_proj": "attention",
    "attention": "cache",
    "gate_up": "feed-forward",
    "down_proj": "feed-forward",
    "router": "routers",
    "experts_up": "experts",
    "experts_down": "experts",
    "lm_head": "LM head",
}


@dataclass(frozen=True)
class StepReads:
    """What one decode step reads. Experts are those expected of uniform routing; the bounds are
    those of `step_bytes`."""

    batch: int  # tokens of the step
    nbytes: float
    parts: dict[str, float]  # bytes of each part of the model, and of the cache
    experts_a_layer: float  # distinct ones; 0 without experts
    tokens_per_second: dict[str, float]  # by device: the bound that its bandwidth sets


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found. `unsupported` is empty for a model that can run."""

    directory: Path
    model_type: str
    unsupported: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0
    active_parameters: int = 0  # that one token multiplies with
    weight_bytes: int = 0
    cache_bytes_per_token: int = 0  # while no window is full
    dtype: str = ""
    context: int = 0  # positions that the steps are given for
    weights_present: bool = False
    steps: list[StepReads] = field(default_factory=list)


def inspect(
    model: str | None,
    context: int | None = None,
    dtype: str | None = None,
    batches: Sequence[int] = BATCHES,
) -> Inspection:
    """Look at a model: a directory that holds a config.json at least, or what `resolve` takes.

    `batches` [steps] are the tokens of the steps to count. `context` is in positions, 8192 or the
    model's own limit when None; `dtype` is what weights and cache are counted as, "bf16" when None.
    Raises UserError when there is no model; a model that is not supported is no error, but says why
    in `unsupported`.
    """
    directory = resolve(model)
    raw = read_json(directory / "config.json")
    kind = str(raw.get("model_type"))
    try:
        family, config = family_of(raw), parse_config(raw)
    except UserError as error:
        return Inspection(directory, kind, [str(error)])
    limit = min(context or CONTEXT, config.context)
    stored = dtype or "bf16"
    if stored not in DTYPES:
        raise UserError(f"The dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}.")
    shapes: dict[str, tuple[int, ...]] = family.tensor_shapes(config)
    present = (directory / SINGLE).exists() or (directory / INDEX).exists()
    unsupported = _weight_problems(directory) if present else []
    devices = {name: tb * 1e12 for name, tb in GPUS.items()}
    devices["this machine"] = read_bandwidth(usable_cores())
    steps, graph = [], None
    for batch in batches:
        shape = StepShape(batch, limit, batch, batch, weights=stored, cache=stored)
        graph = family.build(config, shape)
        steps.append(_reads(graph, batch, limit, devices))
    assert graph is not None
    return Inspection(
        directory=directory,
        model_type=kind,
        unsupported=unsupported,
        facts=_facts(config),
        parameters=_count(shapes.values()),
        active_parameters=_active(shapes, config),
        weight_bytes=sum(t.nbytes for t in graph.tensors.values() if t.name in shapes),
        cache_bytes_per_token=_cache_bytes(graph),
        dtype=stored,
        context=limit,
        weights_present=present,
        steps=steps,
    )


def _weight_problems(directory: Path) -> list[str]:
    """What loading the weights would refuse, without reading them."""
    from mkport.engine.assemble import check

    try:
        check(directory)
    except UserError as error:
        return [str(error)]
    return []


def _reads(graph: Graph, batch: int, context: int, devices: dict[str, float]) -> StepReads:
    """One step's bytes, by part, and the bounds they set."""

    def expected(node: Node) -> float:
        """Of the experts that a step has room for, the share that uniform routing reads."""
        slots = node.args.get("slot_count")
        return 1.0 if slots is None else _distinct(graph, batch) / slots

    parts: dict[str, float] = {}
    for node, nbytes in zip(graph.nodes, node_bytes(graph, batch, context, expected), strict=True):
        if nbytes:
            part = _PARTS.get(node.label.split(" / ")[-1], "norms")
            parts[part] = parts.get(part, 0.0) + nbytes
    total = sum(parts.values())
    bounds = {name: batch * bandwidth / total for name, bandwidth in devices.items()}
    return StepReads(batch, total, parts, _distinct(graph, batch), bounds)


def _distinct(graph: Graph, batch: int) -> float:
    """Distinct experts a layer that uniform routing reads; 0 without experts."""
    for node in graph.nodes:
        if node.op.name == "topk":
            return distinct(node.args["experts"], node.args["k"], batch)
    return 0.0


def _count(shapes: Any) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


def _active(shapes: dict[str, tuple[int, ...]], config: Any) -> int:
    """Parameters that a token multiplies with: of the experts its own, of the embedding a row."""
    mixture = getattr(config, "experts", None)
    total = 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        if mixture is not None and ".experts." in name:
            count = count // mixture.experts * mixture.top
        elif name == "model.embed_tokens.weight" and not config.tied:
            count = shape[1]
        total += count
    return total


def _cache_bytes(graph: Graph) -> int:
    """Keys and values of one token in all layers."""
    return sum(
        tensor.nbytes // (tensor.shape[0] * tensor.shape[2])  # [pages, heads, page, head_dim]
        for tensor in graph.tensors.values()
        if tensor.kind == "state"
    )


def _facts(config: Any) -> dict[str, Any]:
    """What there is to say of a config, in a person's words."""
    facts: dict[str, Any] = {
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": f"{config.heads} query, {config.kv_heads} key-value, {config.head_dim} wide",
        "feed-forward": config.ffn,
        "vocabulary": config.vocab,
        "context": config.context,
        "rope": f"theta {config.rope_theta:g}"
        + (f", {config.rope_scaling.kind} scaling" if config.rope_scaling else ""),
        "LM head": "the embedding" if config.tied else "of its own",
    }
    mixture = getattr(config, "experts", None)
    if mixture is not None:
        scores = "softmax" if mixture.softmax else "sigmoid"
        facts["experts"] = f"{mixture.top} of {mixture.experts}, {mixture.ffn} wide, {scores}" + (
            ", renormalised" if mixture.renormalise else ""
        )
    windows = [w for w in getattr(config, "windows", (getattr(config, "window", 0),)) if w]
    if windows:
        facts["sliding window"] = f"{windows[0]} keys in {len(windows)} layers"
    return facts
