# %% [markdown]
"""
# Paged attention: softmax in pieces

Attention is the one place where a token looks back. Its query is compared with the keys of all
earlier tokens, the scores become weights, and the values are added up with those weights. The
keys and values are kept from step to step; that is the *cache*.

Two things make attention harder than a product. The cache of a sequence is not one block of
memory but many small *pages* that lie anywhere. And the text may be long, so that one worker
alone would take too long: its work has to be *split* and joined again, without changing a bit of
the result when something else in the batch changes.
"""

# %%
import numpy as np

from mkport.kernels.attention.op import OP as ATTENTION
from mkport.kernels.attention.op import SPLIT
from mkport.kernels.attention_combine.op import OP as COMBINE
from mkport.learn.lesson import prove, show
from mkport.models.step import Heads, Input, Step, StepShape
from mkport.plan import deal
from mkport.testing import check_op, tiny
from mkport.testing.rung import check_rung
from mkport.trace import summarise
from mkport.trace.simulate import Costs, simulate
from mkport.verify import verify

# %% [markdown]
"""
## Softmax in one go

For one query: scores are dot products with the keys, scaled. The largest is taken off first, as
exponentials overflow otherwise: `exp(89)` no longer fits a float32, and scores of a hundred are
common. Taking the same number off every score changes nothing else, since it cancels between the
sum above and the sum below. Here it is in five lines, for 40 keys of 32 numbers. This is what
everything below has to reproduce.
"""

# %%
rng = np.random.default_rng(0)
keys, values = rng.standard_normal((2, 40, 32))
query = rng.standard_normal(32)
scores = keys @ query / np.sqrt(32)
weights = np.exp(scores - scores.max())
whole = (weights @ values) / weights.sum()

# %% [markdown]
"""
## The same, a block at a time

To find the largest score one would have to see all keys before adding anything. The way out is to
keep three things while walking: `m`, the largest score so far; `l`, the sum of weights so far;
and the sums of weighted values. When a larger score turns up, what was summed so far was measured
against a smaller maximum; one factor `exp(m_old - m_new)` repairs both sums. That is the *online*
softmax. At the beginning `m` is minus infinity, and the factor `exp(-inf)` is zero, which is
right: nothing has been summed yet. The cache is read once, in order, and nothing but one row of
sums is kept.
"""


# %%
def block_by_block(keys, values, block=16):
    """(weighted sums, m, l) of a run of keys."""
    sums, m, total = np.zeros(values.shape[1]), -np.inf, 0.0
    for first in range(0, len(keys), block):
        scores = keys[first : first + block] @ query / np.sqrt(32)
        larger = max(m, scores.max())
        weights = np.exp(scores - larger)
        repair = np.exp(m - larger)
        sums = sums * repair + weights @ values[first : first + block]
        total = total * repair + weights.sum()
        m = larger
    return sums, m, total


sums, m, total = block_by_block(keys, values)
print("difference", np.abs(sums / total - whole).max())
assert np.allclose(sums / total, whole)

# %% [markdown]
"""
## Splits that can be joined

The triple (sums, m, l) has a pleasant property: two of them, of two runs of keys, can be joined
into the triple of both, by the same repair. So the keys are cut into *splits*, each a task of its
own that may run anywhere, and a small op, `attention_combine`, joins them. (Where a context is one
split, attention divides `sums` by `l` itself.)

Where to cut is a question of trust. It is tempting to cut a text into as many parts as there are
idle workers. Then the same token has other bits on another machine, or when the batch changes.
Here a split is a fixed range of positions, counted from the beginning of the text, and splits are
joined in order. What else runs beside a sequence cannot change its bits.
"""


# %%
def join(one, two):
    """The triple of both runs of keys."""
    larger = max(one[1], two[1])
    a, b = np.exp(one[1] - larger), np.exp(two[1] - larger)
    return one[0] * a + two[0] * b, larger, one[2] * a + two[2] * b


sums, m, total = join(
    block_by_block(keys[:24], values[:24]), block_by_block(keys[24:], values[24:])
)
assert np.allclose(sums / total, whole)
print(f"a split is {SPLIT} keys;", ATTENTION.order.split("GPU")[0])

# %% [markdown]
"""
## Pages

A sequence that grows cannot be given one block of memory: nobody knows how long it will get. So
memory is cut into pages of, say, 64 keys, and a *page table* says where each logical page lies.
Position `p` of a sequence is key `p % page` of the page `table[p // page]`. Pages of different
sequences may lie in any order, and two sequences that begin with the same text can share pages.

A page that belongs to nobody holds whatever it held before. The checks fill such places with NaN,
so a kernel that reads one key too far cannot get away with it.
"""

# %%
page = 8
table = rng.permutation(20)[:5]  # five pages of eight hold our 40 keys
memory = np.full((20, page, 32), np.nan)
memory[table] = keys.reshape(5, page, 32)
for position in (0, 7, 8, 39):
    assert np.array_equal(memory[table[position // page], position % page], keys[position])

# %% [markdown]
"""
## The ladder and the op

The ladder in `kernels/attention/ladder` has the two steps above as whole kernels: first all
scores, then online. The op's body adds what a model needs: several query heads share one key
head, so a key is read once for all of them; a window may hide old keys; and a step may hold
several tokens of one sequence, each of which sees the others before it.
"""

# %%
verdicts = check_rung(ATTENTION.folder / "ladder/2_online.py", dtypes=("bf16",))
assert all(verdict.ok for verdict in verdicts)
print(f"the online rung: {len(verdicts)} cases within the law")
program = tiny.program("bf16")
for op in (ATTENTION, COMBINE):
    verdicts = check_op(op, form="solo", dtype="bf16", program=program)
    assert all(verdict.ok for verdict in verdicts)
    print(f"{op.name} as a megakernel: {len(verdicts)} cases, bits equal")

# %% [markdown] tab="CPU"
"""
A tile on a CPU is one split for one token and one key head. It walks along sixteen keys at a
time, and of each block takes the products, the new maximum, the exponentials and the weighted
sums while the keys are in the cache. The exponential is a polynomial of our own, the same on
every machine, as a mathematical library's differs from the next one's in the last bit.
"""

# %% [markdown] tab="CUDA"
"""
On a GPU the blocks of keys of a split go to the eight warps of a worker in turn, and the warps'
triples are joined in the end, in a fixed order: the same repair once more, inside a tile. With a
bfloat16 cache and heads of 64 or 128 numbers, the scores of all query heads of a key head come
out of the tensor cores together. Other shapes take a plain path, which is slower and as exact.
"""

# %% [markdown]
"""
## What a tile waits for

Now the part that pays off in a megakernel. Keys of *earlier* steps cannot change any more: they
are immutable, like weights, and may be on their way long before the query is ready. Only the keys
of this very step have a writer. The op declares both, apart: logically the cache is [token, past
or now, column]. So attention over the past needs to wait for the query alone.

Below, eight simulated workers with and without reading ahead, over attention at 8,192 positions:
every split of either key head is a tile. The gain is small here because attention has nothing but
bytes to wait for; it is the time from the start to the first key.
"""

# %%
step = Step(StepShape(rows=1, context=8192), hidden=256)
heads = Heads(heads=8, kv_heads=2, head_dim=64)
step.tensor("h", "f32", (1, 256), "input")
step.attention(0, Input("h"), "layer", heads)
schedule = deal(step.graph, workers=8)
print(verify(schedule))
spans = []
for ahead in (0, 1 << 17):
    trace = simulate(
        schedule, Costs(25e9, ahead=ahead), f"attention, {ahead >> 10} KiB ahead", context=8192
    )
    spans.append(trace.span_ns)
    busy = summarise(trace).busy
    print(f"{ahead >> 10:4} KiB ahead: {trace.span_ns / 1000:.1f} us, {busy:.0%} busy")
assert spans[1] < spans[0]
show(trace, "06_paged_attention")

# %% [markdown]
"""
## Try it

Take the repair away: leave out the factor in `block_by_block` and feed keys whose scores ascend.
Then feed them descending. One of the two is right by accident; a test that only has the other
order would never tell.

Give `join` a split that saw no key, with `m` at minus infinity and NaN in its sums. What comes
out, and where does the NaN begin? The op skips such splits by their `l`, and the checks contain
some, since a sequence of 300 positions in a batch with one of 3,000 has several of them.

Last, choose other places to cut, say 24 and 31 of the 40 keys, and compare the sums bit for bit
with those of the first cut. They are equal to many digits and not to the last one. So a rule that
cuts by the number of idle workers makes a text depend on the machine.
"""

# %% [markdown]
"""
## What to take along

Attention is a walk over pages with three numbers in hand that can be repaired and joined. Cut at
fixed positions and joined in order, it gives a sequence the same bits alone and in any company.
And its past is as immutable as a weight, which the schedule uses.
"""

# %%
said = prove("mkport check attention attention_combine --form ported --dtype bf16")
assert "attention" in said
