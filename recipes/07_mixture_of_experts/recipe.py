# %% [markdown]
"""
# Mixture of experts: work that the data decides

In a mixture of experts every token chooses a few of many feed-forward blocks. That keeps a large
model cheap: North Mini Code has 30 billion parameters and reads about an eighth of them for a
token. But which eighth? That is known only when the router has spoken, in the middle of a step.

A megakernel's schedule is fixed before the step begins. So how can it hold work that is not known
yet? This recipe goes through a layer of experts in the order in which it happens, and answers
that question on the way.

Why would anybody build a model in this way? Because what a token costs and what a model knows
come apart. A feed-forward block is where most weights of a model are; with 128 of them, of which
a token uses 8, the model holds sixteen times as much and costs about the same to run. At batch 1,
that is: with many tokens in a step nearly every expert is somebody's choice, and all are read.
"""

# %%
import tempfile
from pathlib import Path

import numpy as np

from mkport.declare import spread_step
from mkport.engine.synth import synthesise
from mkport.engine.upcycle import EXPERTS, TOP, upcycle
from mkport.learn.lesson import prove, show
from mkport.library import find_op
from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import deal
from mkport.testing import check_op, tiny
from mkport.trace.simulate import Costs, simulate
from mkport.verify import verify

# %% [markdown]
"""
## The router chooses

The router is a small product: one score for each expert and token. The best `k` are chosen, and
their scores, through a softmax or a sigmoid, become the weights with which the experts' outputs
are added up. Families differ in the details: one takes the softmax over all experts and then the
best, one the best and then the softmax over those, one a sigmoid for each. The ops have an
argument for it.

Two details matter. When two scores are equal the expert with the lower number wins, always, or
else a model would give another text on another machine. And a row whose scores hold a NaN chooses
nobody and says so, rather than choosing expert 0 and going on as if nothing had happened.
"""

# %%
rng = np.random.default_rng(0)
tokens, experts, top, hidden, ffn = 4, 8, 2, 16, 32
scores = rng.standard_normal((tokens, experts))
chosen = np.argsort(-scores, axis=1, kind="stable")[:, :top]
weights = 1 / (1 + np.exp(-np.take_along_axis(scores, chosen, axis=1)))
for token in range(tokens):
    print(f"token {token}: experts {chosen[token].tolist()}, weights {weights[token].round(2)}")

# %% [markdown]
"""
## Grouping by expert

Tokens that chose the same expert should share one read of it. So the (token, choice) pairs are
sorted by expert: a counting sort of a handful of integers. The result is a list of *slots*. Slot
`s` is the s-th distinct expert of this step, with its tokens. Slots that are left over are marked
as empty. There are never more used slots than experts, and never more than choices, so that the
smaller of the two is room enough.

In the printout a pair is one number: pair 5 is the second choice (5 % 2 is 1) of token 2.
"""

# %%
pairs = np.argsort(chosen.ravel(), kind="stable")  # pair p is token p // top, choice p % top
slots = [(int(e), np.flatnonzero(chosen.ravel() == e).tolist()) for e in np.unique(chosen)]
capacity = min(experts, tokens * top)
for slot in range(capacity):
    print(f"slot {slot}:", slots[slot] if slot < len(slots) else "empty")
assert [p for _, found in slots for p in found] == pairs.tolist()

# %% [markdown]
"""
## Experts, then the weighted sum

For each slot: gate and up products of its tokens, the activation between them, the down product.
Each pair's output is kept apart and added up at the end, in the order of a token's choices.
Adding into a shared sum, with atomics, would be quicker to write; then the order of additions,
and with it the last bits, would depend on who came first.
"""

# %%
gate, up = rng.standard_normal((2, experts, ffn, hidden)) / 4
down = rng.standard_normal((experts, hidden, ffn)) / 6
x = rng.standard_normal((tokens, hidden))
out = np.zeros((tokens * top, hidden))
for expert, found in slots:
    for pair in found:
        g = gate[expert] @ x[pair // top]
        out[pair] = down[expert] @ (g / (1 + np.exp(-g)) * (up[expert] @ x[pair // top]))
y = x + (out.reshape(tokens, top, hidden) * weights[:, :, None]).sum(axis=1)
print(y.shape)

# %% [markdown]
"""
## The ops

The library has these as five ops. Each is held to its oracle, and each gives the same bits as an
ordinary kernel of the same name. In a step of up to eight rows `topk` does the grouping, too, and
`moe_group` is left out: both are the work of one worker for which all the others wait, and a
hand-over between them would cost more than either of them does.
"""

# %%
program = tiny.program("bf16")
for name in ("topk", "moe_group", "moe_up", "moe_down", "moe_combine"):
    verdicts = check_op(find_op(name), form="ported", dtype="bf16", program=program)
    assert all(verdict.ok for verdict in verdicts)
    print(f"{name:12} {len(verdicts)} cases, bits equal")

# %% [markdown]
"""
## Constant arrival

Now the question from the beginning. The schedule has tiles for as many slots as a step could ever
need, dealt to workers in advance. When the step runs, a task looks up which expert its slot
holds. If the slot is empty, the task does nothing; but it *signals all the same*. So the number
of signals in a step depends on the schedule alone and never on the data, the targets stay
constants, and the verifier's proof holds for every routing at once. The bytes that a task might
read are declared as the whole stack of experts, and what it writes as its slot's own rows, so
there is nothing to assume about the router.

An empty task costs next to nothing: it reads one integer. The alternative, signalling only for
work that was done, would need targets that are computed while the step runs, and a proof that
holds for whatever comes out.
"""

# %%
fields = config_of("mixtral", "tiny")
shape = StepShape(rows=4, context=64, sequences=4, logits=4)
graph = family_of(fields).build(parse_config(fields), shape)
schedule = deal(graph, workers=8)
print(verify(schedule))
moe = next(node for node in schedule.graph.nodes if node.op.name == "moe_up")
print(f"{moe.label}: {moe.tiles} tiles for {moe.args['slot_count']} slots")

# %% [markdown]
"""
## Spreading the used slots

The used slots come first, since they are filled in order. If a worker were dealt neighbouring
tiles of neighbouring slots, the first workers would get all the work and the last ones all the
empty slots. So neighbouring tiles belong to slots that are far apart: about 0.618 of all slots,
the step of the golden section, which spreads any number of points evenly. Try it for 64 slots of
which 20 are used: each of eight workers gets two or three.
"""

# %%
step = spread_step(64)
order = [tile * step % 64 for tile in range(64)]
assert sorted(order) == list(range(64))
share = [sum(slot < 20 for slot in order[8 * w : 8 * w + 8]) for w in range(8)]
print(f"slots are {step} apart; used slots of each worker: {share}")
assert max(share) - min(share) <= 1

# %% [markdown]
"""
Whether to deal slots in advance or to let workers draw tickets was decided by a measurement:
spread slots come within a few percent of a perfect share, and tickets cost an atomic and a second
kind of record. The figures are in the documentation, under decisions.

What the choice does cost: expert weights are the only bytes in a step whose address is data. They
cannot be fetched ahead of the router, and the picture below shows it. The machine is simulated;
the ops after the router begin late, whatever the ring holds.
"""

# %%
costs = Costs(2e9, ahead=1 << 14)
trace = simulate(schedule, costs, "a tiny Mixtral, 8 workers", rows=4, context=32)
show(trace, "07_mixture_of_experts")

# %% [markdown]
"""
How much it costs depends on who fetches:
"""

# %% [markdown] tab="CPU"
"""
A CPU's caches and prefetchers find the bytes by themselves once a task has begun to walk along
them, so the delay is that of a few lines of memory. Here experts are nearly as good as any
product; what they lose is balance, when slots do not divide evenly among threads.
"""

# %% [markdown] tab="CUDA"
"""
On a GPU the loader of each worker waits until the choice is made and then reads which expert its
slot has, before it can ask for the first byte. That is a round trip to memory in front of
megabytes, at every layer. It is worth a look in a timeline, and it is why the ops between router
and experts are small and few. In a step of one token the loader does not wait for the choice: it
reads the router's scores as they are written, and chooses the experts by itself.
"""

# %% [markdown]
"""
## A checkpoint to play with

Real mixtures are large. `synth` writes small ones in the exact published format, with random
weights: wrong code shows on them just as well. `upcycle` makes a mixture out of a dense model by
copying its feed-forward block into every expert: since the weights of a token's experts sum to
one, its text must be the dense model's, word for word, and a lost expert can be *read*.

- `engine/synth.py`: random checkpoints in the published format.
- `engine/upcycle.py`: a mixture of experts grown out of a dense Llama.
"""

# %%
assert (EXPERTS, TOP) == (8, 2) and callable(upcycle)
with tempfile.TemporaryDirectory() as folder:
    written = synthesise("mixtral", "tiny", Path(folder) / "mixtral")
    print(f"{written.parameters:,} parameters in {written.shards} shards")
    said = prove(f"mkport run Hello --model {written.directory} --max-tokens 4 --context 64")
