# %% [markdown]
"""
# Where decode time goes: bytes, bounds and gaps

A language model writes one token at a time. For each token it reads every weight that the token
needs, once, and does two operations with each. (A multiplication and an addition: every weight
meets one number of that token.) A modern chip can do hundreds of operations in the time in which
it reads one number from memory. So the arithmetic is free, nearly, and the question "how fast can
this model go?" has a short answer: count the bytes, divide by the bandwidth.

This recipe counts them for two models, measures the bandwidth of the computer you sit at, and
then looks at what comes on top of the bytes: the gaps between one kernel and the next. The gaps
are why this project exists.
"""

# %%
from mkport.bandwidth import read_bandwidth, usable_cores
from mkport.engine.bench.decode import run as race_decoders
from mkport.engine.inspect_model import GPUS, inspect
from mkport.engine.load import load
from mkport.learn.lesson import prove, show
from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import deal
from mkport.plan.bytes import distinct, node_bytes, step_bytes
from mkport.trace import summarise
from mkport.trace.simulate import Costs, simulate

# %% [markdown]
"""
## A small model, counted

The course uses SmolLM2-135M, a small model of the Llama family that comes as a Python package.
Loading it finds the file, reads its header and maps its weights into memory; nothing is copied
until somebody needs it.

A step of the model is a graph, as in the first recipe, only longer. Each node knows which bytes
its tiles read and that nothing in the step writes them, so the sum is a matter of adding up what
has been declared. Nobody had to type a formula for it, and it cannot be out of date.
"""

# %%
model = load()
graph = model.family.build(model.config, StepShape(rows=1, context=1024))
per_node = node_bytes(graph, rows=1, context=512)
by_op: dict[str, float] = {}
for node, nbytes in zip(graph.nodes, per_node, strict=True):
    by_op[node.op.name] = by_op.get(node.op.name, 0.0) + nbytes
for op, nbytes in sorted(by_op.items(), key=lambda item: -item[1]):
    print(f"{op:18} {nbytes / 1e6:8.2f} MB")
total = step_bytes(graph, rows=1, context=512)
print(f"{'a step':18} {total / 1e6:8.2f} MB in {len(graph.nodes)} nodes")
assert abs(total - sum(by_op.values())) < 1
assert by_op["attention"] < 0.1 * total, "at 512 positions the cache hardly counts"

# %% [markdown]
"""
The names are those of ops. `gemm` is a plain matrix product; `gemm_silu` and `gemm_rope` are
products with a little arithmetic behind them, done while the result is at hand. Fusing saves no
weight's byte; it saves a node, and with it a wait.

Almost everything is matrices. The cache of keys and values, which attention reads, is small here
and grows with the length of the text; at some length it overtakes the weights. And the number of
tokens in the step does not appear at all: eight sequences side by side read the same matrices
once. That is why servers batch.

Why are only *read* bytes counted? What a step writes is a few rows of a few thousand numbers,
thousands of times less than the weights, and rows that were just written are read from a cache.

## The bound

Now the other half: how fast can this computer read? We let every core sum up a large array, which
is limited by memory and nothing else. The quotient is the *bound*: no program that reads its
weights from memory can decode faster on this machine, however clever it is. A result near the
bound needs no excuse, and one far above it is a bug in the measurement. (One thing can lift a
model above it honestly: weights so few that they stay in a cache from step to step.)

Keep two numbers apart. *Latency* is how long one token takes, and it is what one reader feels.
*Throughput* is how many tokens all readers get together. Batching gives throughput for nearly no
latency, up to the point where arithmetic or the cache of keys and values becomes the limit.
"""

# %%
cores = usable_cores()
bandwidth = read_bandwidth(cores, megabytes=128, rounds=3)
print(f"{cores} threads read {bandwidth / 1e9:.1f} GB/s")
print(f"so at most {bandwidth / total:.0f} tokens a second here")
for gpu in ("RTX 4090", "H200"):
    print(f"and at most {GPUS[gpu] * 1e12 / total:,.0f} on an {gpu}, if there were no gaps")

# %% [markdown]
"""
## A large model with experts

North Mini Code has 61 GB of weights. It is a mixture of experts: in every layer each token picks
8 of 128 small feed-forward blocks, so a single token reads only a few of those bytes. With more
tokens in the step more experts are picked, and the bytes grow, until nearly all of them are read.
`inspect` says that for any model; here we ask the graph again, which needs the config alone.
"""

# %%
fields = config_of("cohere2_moe", "full")
family, config = family_of(fields), parse_config(fields)
bounds = {}
for batch in (1, 2, 4, 8):
    shape = StepShape(rows=batch, context=8192, sequences=batch, logits=batch)
    used = distinct(128, 8, batch) / min(128, 8 * batch)  # of the experts that a step has room for
    nbytes = step_bytes(family.build(config, shape), batch, 8192, lambda node, u=used: u)
    bounds[batch] = GPUS["H200"] * 1e12 / nbytes
    print(
        f"batch {batch}: {nbytes / 1e9:6.2f} GB a step, "
        f"at most {bounds[batch] * batch:6.0f} tokens/s on an H200"
    )
assert bounds[1] > bounds[8], "a step of eight reads more than a step of one"
small = inspect(None, context=512)
assert abs(small.steps[0].nbytes - total) < 0.01 * total, "`mkport inspect` counts the same way"

# %% [markdown]
"""
## The gaps

Launched kernel by kernel, each node of the graph costs a gap: the last blocks of one kernel
finish while most of the chip has nothing to do, the launch itself takes a few microseconds, and
the next kernel begins with empty pipelines. We do not have your GPU here, so we *simulate*: a
made-up machine, on which every worker reads so many bytes a second and a signal takes so long.
What it says depends on what we put in, and it says so under the picture.

We deal one layer's worth of the small model to eight workers of a made-up chip. In the first run
every wait costs 5 microseconds, about what a launch costs; in the second one, about what a
counter costs. The work is the same to the byte.

In the output, "not busy" adds up two kinds of idle time: a worker that has picked up a task and
waits for its inputs, and a worker that has come to the end of its list. Only the first can be
mended by better waits.
"""

# %%
layer = graph.first(14)
dealt = deal(layer, workers=8)
GB_A_WORKER = 25e9  # bytes a second: eight of them make 200 GB/s
spans = {}
for name, signal_ns in (("kernel by kernel", 5000), ("a counter", 1000)):
    costs = Costs(GB_A_WORKER, task_ns=300, signal_ns=signal_ns)
    trace = simulate(dealt, costs, f"one layer on 8 workers, {signal_ns / 1000:.0f} us a wait")
    found = summarise(trace)
    spans[name] = trace.span_ns
    print(f"{name:18} {trace.span_ns / 1000:7.1f} us, {found.waiting + found.idle:4.0%} not busy")
assert spans["a counter"] < spans["kernel by kernel"]
show(trace, "02_where_time_goes", title="The same layer with counters in place of launches")

# %% [markdown]
"""
How large gaps are depends on where you run:
"""

# %% [markdown] tab="CPU"
"""
A CPU calls a function in nanoseconds, so a decode loop on one thread has no launches to lose time
with. With several threads the gap is the *barrier* at the end of each op: all threads meet, and
the slowest decides. Counters let the fast ones go on. The more threads there are, the more is
lost at such a barrier, and the more a late one costs: a thread that the system has put aside for
a moment holds up all the others.
"""

# %% [markdown] tab="CUDA"
"""
A launch costs the host two to five microseconds. CUDA graphs hide most of that, as the host no
longer takes part; what remains is the drain and the fill between one kernel and the next, and a
chip that reads five gigabytes in a millisecond loses five megabytes in each microsecond. The
larger the chip and the smaller the model, the larger the share of gaps.
"""

# %% [markdown]
"""
## What follows from it

Decode is a race against the memory bus. There are two ways to lose: to read bytes that need not
be read, and to let the bus stand still. Batching, smaller weights and mixtures of experts are
about the first. Everything from here on is about the second: a worker that waits should at least
have its next weights on the way.

The commands below do this for any checkpoint: `mkport inspect` prints bytes and bounds, and
`mkport bench` races decoders on the same weights, in turns, beside the bandwidth measured in that
very minute.

## New in the engine

- `engine/load.py`: finds a model and opens it, in one call.
- `engine/source.py`: a directory, a GGUF file, a name on the hub, or the demo package.
- `engine/safetensors_file.py`: one safetensors file, its header checked byte by byte.
- `engine/weights.py`: all tensors of a directory, mapped, and held to the shapes they must have.
- `engine/assemble.py`: tensors as the step reads them, experts stacked.
- `engine/jsonfile.py`: JSON files with errors that name the file.
- `engine/gguf_file.py`: reads a GGUF file and makes a directory of it.
- `engine/gguf_llama.py`: names and layouts of Llama tensors in GGUF files.
- `engine/gguf_tokenizer.py`: the tokenizer that a GGUF file carries.
- `engine/inspect_model.py`: what a model reads and how fast that lets it be.
- `engine/bench/`: races of decoders, of kernels and of servers, with every sample kept.
"""

# %%
assert callable(race_decoders)
said = prove("mkport inspect smollm2 --context 512")
assert "All of it is supported" in said
