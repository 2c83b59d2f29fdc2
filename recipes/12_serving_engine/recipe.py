# %% [markdown]
"""
# The serving engine

A server has many requests that come and go. Each wants its text as soon as possible; together
they share one machine, one set of weights, and a limited memory for keys and values. The engine
decides, step after step, who runs: that is *scheduling*, and none of it is arithmetic. It is
bookkeeping about pages and tokens, in plain Python, and it can be tested without a model.

The numbers that decide: keys and values of one token take 23 KB in the small model of this course
and 200 KB or more in large ones. A dozen conversations of a thousand tokens each take as much
memory as the small model's weights. Memory for them is what runs out first.

This recipe takes the engine apart from the bottom: pages, the prefix cache, the scheduler, the
loop. Then it puts a model in and serves. The last cell starts a server, which is the extra
`serve` (in a clone: `pip install -e '.[serve]'`).
"""

# %%
import json
from urllib.request import Request, urlopen

from mkport.engine import Engine
from mkport.engine.capacity import Settings, plan_capacity
from mkport.engine.core import Core
from mkport.engine.holdings import Holdings
from mkport.engine.load import load
from mkport.engine.pool import Pool
from mkport.engine.prefix import PrefixCache
from mkport.engine.runner import Runner
from mkport.engine.scheduler import Limits, Scheduler
from mkport.engine.sequence import Save, Sequence
from mkport.engine.stream import EventStream
from mkport.learn.lesson import served, show
from mkport.trace import summarise

# %% [markdown]
"""
## Pages

A pool hands out pages of the cache. A page is free, or held by one or more sequences, or *kept*:
nobody holds it, but what it holds may be useful again. When there is no free page left, the page
that was kept longest is given away. In every moment free + held + kept is all there is, and the
pool can check that.
"""

# %%
forgotten: list[str] = []
pool = Pool(pages=3, window=0, forget=forgotten.append)
one, two = pool.take(), pool.take()
pool.enter(one, "the first page")  # it enters the cache under a name
pool.release(one)
pool.release(two)
print("available", pool.available, "kept", pool.is_kept(one), pool.is_kept(two))
pool.check()
for _ in range(3):
    pool.take()  # the third take has to give the kept page away
print("forgotten:", forgotten)
assert forgotten == ["the first page"]

# %% [markdown]
"""
## The prefix cache

Two requests that begin with the same text have the same keys and values for it; why compute them
twice? A *block* is a full page of tokens behind one particular prefix. The cache is a tree of
blocks: from the root, the tokens of the next page lead to a child. A look-up hashes a page of
tokens and then compares them all, since two texts with one hash must not be mixed up.

Blocks enter when the step that computed them has completed, and only full ones do: a page that is
still being written belongs to one sequence.
"""

# %%
cache = PrefixCache([(8, 0)], page=4)
text = list(range(10))
page_a, page_b = cache.pools[0].take(), cache.pools[0].take()
first = cache.enter(cache.root, text[0:4], [page_a])
cache.enter(first, text[4:8], [page_b])
found = cache.match([*text[:8], 99, 98], limit=2)
print("pages of the common prefix:", [block.pages[0] for block in found])
assert [block.pages[0] for block in found] == [page_a, page_b]
assert len(cache.match([0, 1, 2, 3, 7, 7, 7, 7], limit=2)) == 1, "only the first page is common"

# %% [markdown]
"""
## The scheduler

Each step holds a limited number of tokens. Sequences that are writing get one each, first of all.
What is left goes to prompts, in *chunks*: a long prompt is read over several steps, so that it
does not stop everybody else's text for a second. While somebody is writing, chunks are small.

The rule for who comes first is age. Who arrived first is served first. When pages run out, the
youngest is *preempted*: its pages go to host memory, and come back later, bit for bit. Nothing is
computed again. So the oldest can always go on, everybody becomes the oldest in time, and nobody
starves.

Below are two requests and a pool that is too small for both. There is no model: a step is `plan`,
then whatever a machine does, then `commit`.
"""

# %%
limits = Limits(context=32, page=4, pools=((9, 0),), sequences=2, rows=8, chunk=8, mixed_chunk=4)
scheduler = Scheduler(limits)
for order, length in ((0, 11), (1, 6)):
    tokens = [100 * order + i for i in range(length)]
    scheduler.add(Sequence(order, tokens, prompt=length))
saved = 0
for step in range(40):
    plan = scheduler.plan()
    told = [f"{part.sequence.order}: {part.start}+{part.count}" for part in plan.parts]
    moves = [type(move).__name__ for move in plan.moves]
    saved += sum(isinstance(move, Save) for move in plan.moves)
    if step < 8 or moves:
        print(f"step {step:2}: {', '.join(told)} {moves or ''}")
    scheduler.commit(plan)
    scheduler.check()
    for part in plan.parts:
        if part.wanted:
            part.sequence.tokens.append(0)  # a model would have chosen something
            if len(part.sequence.tokens) == 28:
                scheduler.end(part.sequence)
    if not scheduler.busy:
        break
print(f"done after {step + 1} steps, {saved} preemptions")
assert saved == scheduler.preemptions > 0
scheduler.check_idle()
assert isinstance(scheduler.holdings, Holdings)

# %% [markdown]
"""
## The loop

`Core` is one round: plan, run, commit, sample, and tell the clients. A `Runner` is all that it
knows of a machine. The rounds happen in a thread of the `Engine`, with an inbox through which
everybody else reaches it; events travel back through an `EventStream`, which a thread or an event
loop can wait for. How large the pools are follows from the memory there is:
"""

# %% [markdown] tab="CPU"
"""
On a CPU the cache takes a quarter of the memory that is free, or what all sequences could need,
if that is less. A step has room for the sequences and a chunk of a prompt beside them.
"""

# %% [markdown] tab="CUDA"
"""
On a GPU what counts is the memory that the weights have left. A step of the decode kernel holds
up to 64 tokens, so the engine takes up to 64 sequences at a time. For fewer that run it has
smaller steps, of 1, 2, 4, 8, ... tokens: a row's numbers are the same in all of them. Prompts go
through PyTorch's operators, which read many tokens at once and round in another order than the
decode kernels.
"""

# %%
model = load()
shape, found_limits = plan_capacity(model, Settings(max_batch=4, max_model_len=256))
print(f"{found_limits.pools[0][0]} pages of {shape.page} keys, {found_limits.rows} tokens a step")
assert all(isinstance(kind, type) for kind in (Core, Runner, EventStream))

# %% [markdown]
"""
## Serving

Now with a model. Three prompts at once, with a beginning in common. Their texts are compared with
those of an engine that has no prefix cache and takes one prompt after the other: they must be
equal, token by token. That sentence is the whole point of fixed splits, fixed chunks and noise
without a state.
"""

# %%
COMMON = (
    "You are a helpful assistant who answers in a few plain words, without any decoration. " * 4
)
prompts = [COMMON + end for end in ("The sky is", "Water is", "Grass is")]
with Engine(model, max_batch=4, max_model_len=256, workers=2) as engine:
    engine.generate(prompts[0], 1, temperature=0.0)  # leaves the common beginning in the cache
    outputs = engine.generate(prompts, 8, temperature=0.7, seed=5)
    stats = engine.stats()
    engine.timeline()  # asks for the next step's
    says = [(engine.generate("One more", 3), engine.timeline()) for _ in range(5)]
trace = min((one for _, one in says), key=lambda one: one.span_ns)
for output in outputs:
    print(repr(output.text))
print(f"{stats.prefix_hits} of {stats.prefix_queries} prompt tokens were in the cache")
assert stats.prefix_hits > 0.4 * stats.prefix_queries

# %%
with Engine(model, max_batch=1, max_model_len=256, workers=2, prefix_cache=False) as engine:
    alone = [engine.generate(prompt, 8, temperature=0.7, seed=5) for prompt in prompts]
assert [one.ids for one in alone] == [one.ids for one in outputs]
print("the same texts, alone and together, with the cache and without")

# %% [markdown]
"""
## What a request can do to others

Nothing, should be the answer, and it takes care to keep it so. A request that is cancelled in the
middle gives its pages back between two steps, never during one. A row whose logits are not finite
ends its own request with an error; the other rows of that step are fine and go on. A prompt of
ten thousand tokens is read in small chunks while others write. A client that reads its stream
slowly holds up nobody else. And if a step itself fails, because a wait ran past its limit, the
requests in it end with an error, rather than hanging for ever.

Each of these has been the cause of an outage somewhere. Here each is a test, most of them over a
runner that has no model at all: it fills every slot of its cache with a hash of the text before
it and compares at every read, so that a page that was mixed up cannot go unseen.

## A step of the server

The engine can trace a step while it serves; the page that `mkport serve` shows in a browser does
that. The picture is of a step that ran a moment ago, measured.
"""

# %%
assert trace.caption.startswith("measured")
print(f"{summarise(trace).tasks} tasks in {trace.span_ns / 1e6:.1f} ms")
show(trace, "12_serving_engine")

# %% [markdown]
"""
## New in the engine

- `engine/__init__.py`: what a program imports: `Engine` and `Output`.
- `engine/pool.py`: pages that are free, held or kept.
- `engine/prefix.py`: which pages hold which tokens.
- `engine/holdings.py`: the pages of each sequence, shared, saved and brought back.
- `engine/sequence.py`: a sequence and a plan, as plain data.
- `engine/scheduler.py`: who runs in the next step.
- `engine/pace.py`: how much of a prompt fits beside them.
- `engine/runner.py`: carries a plan out on a machine.
- `engine/job.py`: requests, their choices, steps under way, as plain data.
- `engine/core.py`: one round of the loop.
- `engine/stream.py`: events from the engine's thread to whoever waits.
- `engine/prefill/`: prompts by PyTorch operators, where a step holds few tokens: on a GPU.
- `engine/capacity.py`: how much fits into the memory there is.
- `engine/loop.py`: the thread in which rounds happen, and its inbox.
- `engine/build.py`: a model, sizes and a machine become a runner.
- `engine/apart/`: the loop in a process of its own, as on a GPU.
- `engine/engine.py`: the library's front door.
"""

# %%
with served("mkport serve --max-batch 2 --max-model-len 256") as url:
    body = {"prompt": "The sky is", "max_tokens": 6, "temperature": 0}
    request = Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        print(json.loads(answer.read())["choices"][0])
