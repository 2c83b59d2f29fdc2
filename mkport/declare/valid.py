"""What an op's arguments must satisfy, in helpers that ops' `valid` functions yield from.

Each helper yields a sentence for each condition that the arguments of one node violate, and
`Shared` quantities for conditions on nodes that have a tensor in common. Helpers hold for any
arguments whatever: none of them raises.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mkport.declare.table import TensorSpec


@dataclass(frozen=True)
class Shared:
    """A quantity that all nodes that have a tensor must be able to agree on.

    This node allows it to be from `low` to `high`. `fresh`: the node writes the tensor anew, so
    what earlier nodes said of it counts no longer.
    """

    tensor: str
    what: str
    low: int
    high: int
    fresh: bool = False


Said = str | Shared
Dim = int | str | None  # a number, an argument or a product of arguments by name, or any number


def multiple_of(a: Any, factor: int, *names: str) -> Iterator[str]:
    """The integers are positive multiples of `factor`."""
    for name in names:
        value = getattr(a, name)
        if value < 1:
            yield f"{name} is {value}, not positive"
        elif value % factor:
            yield f"{name} is {value}, not a multiple of {factor}"


def within(a: Any, name: str, low: int, high: int | None = None) -> Iterator[str]:
    """The integer is at least `low` and, where `high` is given, at most that."""
    value = getattr(a, name)
    if value < low or (high is not None and value > high):
        yield f"{name} is {value}, not {low} " + ("or more" if high is None else f"to {high}")


def shape_is(
    a: Any, name: str, *dims: Dim, logical: tuple[Dim, ...] | None = None
) -> Iterator[str]:
    """The tensor has this storage and these logical coordinates: by default, the same as storage.

    A tensor that is absent has any shape.
    """
    spec = getattr(a, name)
    if spec is None:
        return
    if not _fits(a, spec.shape, dims):
        yield f"{name} is {list(spec.shape)}, not {_text(a, dims)}"
    elif not _fits(a, spec.logical, dims if logical is None else logical):
        wanted = _text(a, dims if logical is None else logical)
        yield f"{name} has the logical shape {list(spec.logical)}, not {wanted}"


def counted(a: Any, rows: int) -> Iterator[Said]:
    """`count` is one number that the host gives, of rows of which the node has `rows`."""
    yield from shape_is(a, "count", 1)
    if a.count.kind != "input":
        yield f"count is of kind {a.count.kind}, not input"
    yield same(a.count, "rows", rows)


def cache_is(a: Any, name: str, tokens: int, heads: str) -> Iterator[Said]:
    """The tensor, unless absent, is a paged cache: [pages, heads, page, head_dim] in storage,
    [token, past or now, head column] in coordinates."""
    spec = getattr(a, name)
    if spec is None:
        return
    logical = (tokens, 2, f"{heads} * head_dim")
    yield from shape_is(a, name, None, heads, "page", "head_dim", logical=logical)
    if spec.kind in ("scratch", "flagged", "output"):
        yield f"{name} is of kind {spec.kind}, but a cache outlives the step: make it state"


def placed(a: Any, tokens: int) -> Iterator[Said]:
    """`rows` gives each token's place; the pages of a sequence hold the positions there are."""
    yield from shape_is(a, "rows", tokens, 2)
    yield from multiple_of(a, 1, "page", "pages_per_sequence")
    yield from shape_is(a, "page_table", None, "pages_per_sequence")
    reach = a.page * a.pages_per_sequence
    yield Shared(a.rows.name, "positions", reach - a.page + 1, reach)


def rotates(a: Any, tokens: int) -> Iterator[Said]:
    """Heads go to scratch or to their tokens' places in the cache, rotated if there is a table."""
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "heads")
    yield from multiple_of(a, 16, "head_dim")
    yield from within(a, "half_split", 0, 1)
    yield from placed(a, tokens)
    if a.rope is not None:
        yield from shape_is(a, "rope", None, "head_dim")
        yield same(a.rows, "positions", a.rope.shape[0])
    yield from shape_is(a, "y", tokens, "heads * head_dim")
    yield from cache_is(a, "pages", tokens, "heads")
    if (a.y is None) == (a.pages is None):
        yield f"y and pages are {'absent' if a.y is None else 'given'}, not one of the two"
    if a.pages is not None and a.page_table is None:
        yield "page_table is absent, but pages is given"


def grouped(a: Any, pairs: int, experts: int) -> Iterator[Said]:
    """`slots` and `pairs` are lists of so many pairs, and `slot_step` leads to every slot that is
    the node's."""
    yield from multiple_of(a, 1, "slot_count")
    yield from within(a, "first_slot", 0)
    slots, end = a.slots.shape[0] - 1, a.first_slot + a.slot_count
    if end > slots:
        yield f"slots is {list(a.slots.shape)}, of {slots} slots, but the node's end at {end}"
    if slots > pairs:
        yield f"slots is {list(a.slots.shape)}, of {slots} slots, more than the {pairs} pairs"
    yield from within(a, "slot_step", 1, max(a.slot_count - 1, 1))
    if math.gcd(a.slot_step, a.slot_count) != 1:
        yield f"slot_step is {a.slot_step}, which has a divisor of slot_count = {a.slot_count}"
    yield from shape_is(a, "slots", None, 2)
    yield from shape_is(a, "pairs", pairs)
    yield same(a.slots, "experts", experts)
    yield same(a.slots, "pairs", pairs)
    yield same(a.slots, "most", a.most)
    yield from within(a, "most", 0)


def computes_slots(a: Any, spec: TensorSpec) -> Iterator[Shared]:
    """The node's slots of the tensor follow those of the node before it, or are the first."""
    if a.first_slot:
        yield same(spec, "computed slots", a.first_slot)
    yield sets(spec, "computed slots", a.first_slot + a.slot_count)


def needs_slots(spec: TensorSpec, end: int) -> Shared:
    """Earlier nodes computed the tensor's slots up to this one."""
    return Shared(spec.name, "computed slots", end, max(end, spec.logical[0]))


def same(spec: TensorSpec, what: str, value: int) -> Shared:
    """All nodes that have the tensor say the same."""
    return Shared(spec.name, what, value, value)


def sets(spec: TensorSpec, what: str, value: int) -> Shared:
    """The node writes the tensor, and those that have it afterwards say the same."""
    return Shared(spec.name, what, value, value, fresh=True)


def _value(a: Any, dim: Dim) -> int | None:
    if not isinstance(dim, str):
        return dim
    return math.prod(int(getattr(a, name)) for name in dim.split(" * "))


def _fits(a: Any, shape: tuple[int, ...], dims: tuple[Dim, ...]) -> bool:
    values = [_value(a, dim) for dim in dims]
    return len(shape) == len(values) and all(
        value is None or size == value for size, value in zip(shape, values, strict=True)
    )


def _text(a: Any, dims: tuple[Dim, ...]) -> str:
    """Dimensions in words: "[6, k = 32]"."""
    parts = (
        "any" if dim is None else f"{dim} = {_value(a, dim)}" if isinstance(dim, str) else str(dim)
        for dim in dims
    )
    return f"[{', '.join(parts)}]"
