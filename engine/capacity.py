"""How much an engine can hold: its pools by the memory they may take, and what limits follow. One
context is decided here, and everything else is held to it."""

import math
from dataclasses import dataclass, replace

from mkport.engine.decoder import decode_shape
from mkport.engine.holdings import window_pages
from mkport.engine.load import LoadedModel
from mkport.engine.pace import PAUSE_S
from mkport.engine.runner import pool_windows
from mkport.engine.scheduler import Limits
from mkport.engine.target import CPU, Target
from mkport.errors import UserError
from mkport.machines.cpu.memory import NUMPY
from mkport.models.step import FULL_TABLE, StepShape

PAGE = 64  # keys in a page: a block of the prefix cache
CONTEXT = 32768  # positions unless told otherwise: a step's plan grows with what it may reach
PROMPT_LOGITS = 16  # prompt rows whose logits a step can give
LEGS = 16  # in which a chunk goes through the layers: each is recorded on its own
SHORT = 16  # tokens of a prompt that PyTorch runs sooner than steps do, at least
ATTENTION_SPEED = 0.5  # operations a second in attention, over those in products with weights
SHARE = 0.25  # of the free memory, for the cache, unless told otherwise


@dataclass(frozen=True)
class Settings:
    """What a user may ask for; None leaves it to the model and the machine."""

    max_batch: int = 8  # sequences that run side by side
    max_model_len: int | None = None  # positions, prompt and output together
    kv_memory: int | None = None  # bytes of keys and values
    prefill_chunk: int | None = None  # prompt tokens of a step while nobody decodes
    mixed_chunk: int | None = None  # and while somebody does; None: by how long steps take
    page: int = PAGE
    prefix_cache: bool = True
    pause_ms: float = 1e3 * PAUSE_S  # that a chunk's legs may take between two steps of others


def plan_capacity(
    model: LoadedModel, settings: Settings, target: Target = CPU
) -> tuple[StepShape, Limits]:
    """The shape of a decode step, its pools sized, and the scheduler's limits.

    Without `kv_memory`, the cache holds every sequence's full context, or takes a quarter of the
    free memory if that is less. Raises UserError for sizes that hold nothing, for more sequences
    than the target's steps have rows, and for a context that was asked for and does not fit
    `kv_memory`.
    """
    alone = target.prompt_chunk if settings.prefill_chunk is None else settings.prefill_chunk
    mixed = target.mixed_chunk if settings.mixed_chunk is None else settings.mixed_chunk
    if settings.max_batch < 1 or alone < 1 or mixed < 1:
        raise UserError(
            f"A batch of {settings.max_batch} and chunks of {alone} and {mixed} prompt tokens run "
            "nothing: give at least 1 of each."
        )
    if not settings.pause_ms > 0:
        raise UserError(
            f"In a pause of {settings.pause_ms} ms nothing of a prompt fits: raise pause_ms "
            "(--pause)."
        )
    most = target.most_rows
    if most is not None and settings.max_batch > most:
        raise UserError(
            f"A step on the machine {target.name!r} has at most {most} tokens, so {most} requests "
            f"can run side by side, not {settings.max_batch}: lower max_batch (--max-batch)."
        )
    chunk = max(alone, mixed)
    if chunk > max(limit := model.config.context, target.prompt_chunk, target.mixed_chunk):
        raise UserError(
            f"The model has {limit} positions, so no step reads {chunk} tokens of a prompt: lower "
            "prefill_chunk and mixed_chunk (--prefill-chunk, --mixed-chunk)."
        )
    rows = settings.max_batch + chunk
    if most is not None and not target.prefills:
        rows = min(rows, most, max(target.chunk, settings.max_batch))
    asked = settings.max_model_len
    if asked is not None and asked > limit:
        raise UserError(
            f"The model has {limit} positions, not {asked}: lower max_model_len (--max-model-len)."
        )
    reach = min(limit, CONTEXT) if asked is None else asked
    shape = decode_shape(model, settings.max_batch, reach, settings.page)
    windows = pool_windows(model, shape)
    sizes = [_page_bytes(model, shape, bool(window)) for window in windows]
    each = [_pages_of_one(shape, window, chunk) for window in windows]
    one = sum(pages * size for pages, size in zip(each, sizes, strict=True))
    memory = settings.kv_memory or max(
        one, min(one * settings.max_batch, int(SHARE * target.free_memory(model)))
    )
    pools = [
        max(
            int(memory / one * pages), min(pages, window_pages(window, shape.page)) if window else 1
        )
        for pages, window in zip(each, windows, strict=True)
    ]
    held = min((p * shape.page for p, w in zip(pools, windows, strict=True) if not w), default=None)
    context = shape.context if held is None else min(shape.context, held)
    taken = sum(pages * size for pages, size in zip(pools, sizes, strict=True))
    if taken > memory or (asked is not None and context < shape.context):
        raise UserError(
            f"{memory} bytes of keys and values hold {context} positions of this model, but "
            f"{shape.context} are asked for, which take {one} bytes: raise kv_memory "
            "(--kv-memory), or lower max_model_len (--max-model-len)."
        )
    full = dict(zip((bool(w) for w in windows), pools, strict=True))
    shape = replace(
        shape, context=context, pages=full.get(False, 0), window_pages=full.get(True, 0)
    )
    limits = Limits(
        context=context,
        page=shape.page,
        pools=tuple(zip(pools, windows, strict=True)),
        sequences=settings.max_batch,
        rows=rows,
        chunk=alone,
        mixed_chunk=mixed,
        paced=settings.mixed_chunk is None and not (target.prefills or target.ahead),
        prompt_logits=PROMPT_LOGITS,
        prefix_cache=settings.prefix_cache,
        legs=min(LEGS, model.config.layers) if target.prefills else 0,
        short=SHORT,
        pause_s=settings.pause_ms / 1e3,
        doubles=_doubling(model, shape),
    )
    return shape, limits


def widths(limits: Limits, target: Target = CPU) -> list[int]:
    """The rows of the machines [1 or more], ascending: one sequence, all of them, a chunk beside
    them, all that there may be; where chunks go another way, powers of two up to all sequences."""
    most = limits.sequences
    if target.prefills:
        return sorted({1 << i for i in range(most.bit_length()) if 1 << i < most} | {most})
    mixed = limits.mixed_chunk * (2 if limits.paced else 1)
    return sorted({1, most, min(most + mixed, limits.rows), limits.rows})


def _pages_of_one(shape: StepShape, window: int, chunk: int) -> int:
    """Pages that a sequence of the full context holds at most."""
    whole = shape.pages_per_sequence
    return min(whole, window_pages(window + chunk, shape.page)) if window else whole


def _doubling(model: LoadedModel, shape: StepShape) -> int:
    """The position at which a prompt's token takes twice what its first takes, since attention to
    the keys before it takes as much as the products with the weights; a CPU's arithmetic."""
    graph = model.family.build(model.config, replace(shape, pages=1, window_pages=1))
    mixture = getattr(model.config, "experts", None)
    products = a_key = 0
    for node in graph.nodes:
        if node.op.name == "attention" and not node.args["window"]:
            a_key += 2 * node.args["heads"] * node.args["head_dim"]
        elif node.op.name != "embed" and node.label != "lm_head":
            for arg in node.op.tensors:
                spec = graph.tensors.get(node.args[arg.name] or "")
                if spec is not None and arg.dtype == "weight":
                    share = mixture.top / mixture.experts if len(spec.shape) == 3 and mixture else 1
                    products += int(math.prod(spec.shape) * share)
    return int(ATTENTION_SPEED * products / a_key) if a_key else 0


def _page_bytes(model: LoadedModel, shape: StepShape, windowed: bool) -> int:
    """Bytes of a page in all layers of a pool."""
    graph = model.family.build(model.config, replace(shape, pages=1, window_pages=1))
    total = 0
    for node in graph.nodes:
        if node.op.name == "attention" and (node.args["page_table"] != FULL_TABLE) == windowed:
            for name in ("k_pages", "v_pages"):
                spec = graph.tensors[node.args[name]]
                size = NUMPY[spec.dtype].itemsize
                for extent in spec.shape:
                    size *= extent
                total += size
    return total
