# %% [markdown]
"""
# One layer in one file

We have ops, a convention, counters, and a verifier. Now they come together: a whole layer of a
model becomes one file that a person can read from top to bottom, and that file is what runs. No
build system stands between you and it, no generated header that includes another one, no template
that expands into something nobody has seen.

The layer is that of a small Llama with random weights. Random weights are good for this: nothing
is zero, nothing is nearly one, and a wrong number has nowhere to hide.
"""

# %%
from collections import Counter
from dataclasses import replace

import numpy as np

from mkport.compose import compose_cpu
from mkport.compose.cuda import compose_cuda
from mkport.doctor import cpu_model
from mkport.learn.lesson import prove, show
from mkport.machines.cpu.machine import CpuMachine
from mkport.models import llama
from mkport.models.sampled import sampled
from mkport.plan import deal
from mkport.testing import tiny
from mkport.testing.reference.families import BLOCKS
from mkport.trace import render, summarise
from mkport.trace.collect import collect
from mkport.verify import verify

# %% [markdown]
"""
## The graph of a layer

The model family builds the graph of a whole step from the config. We look at the nodes of the
first layer: norm, the three projections, attention over splits of the cache, the join, the output
product that adds to the residual stream, and the gated feed-forward.

A tile of a product is sixteen columns of its output, a tile of a norm is one row of the step's
six. That is why the tile counts differ, and why a record, which can hold many tiles, is the unit
of signalling and not the tile.
"""

# %%
shape = replace(tiny.SHAPE, weights="bf16", cache="bf16")
graph = sampled(llama.build(tiny.LLAMA, shape))
end = max(n for n, node in enumerate(graph.nodes) if node.label.startswith("layer 0 /")) + 1
layer = graph.first(end)
for node in layer.nodes:
    print(f"{node.label:24} {node.op.name:18} {node.tiles:3} tiles")

# %% [markdown]
"""
## Dependencies, derived

Who waits for whom follows from what the tiles read and write. Some of it is easy to miss by hand.
The scratch tensor `h` is written by the first norm and written again by the second: the second
has to wait until everybody who *reads* the first content is done. Nobody had to think of that.

How is that found out? The planner goes through the nodes in order and keeps, for each piece of
each tensor, who wrote it last and who has read it since. A tile that reads a piece depends on its
writer. A tile that writes one depends on the last writer and on all of those readers. What
follows from other dependencies is left out: if the product waits for the norm, and the norm for
the embedding, nothing has to be said about product and embedding.

Where a node would have to wait for more than four others, the planner puts in a `join`, a record
without tiles that waits and signals.
"""

# %%
schedule = deal(layer, workers=2)
report = verify(schedule)
print(report)
print(Counter(node.op.name for node in schedule.graph.nodes))

# %% [markdown]
"""
## The file

Composing puts primitives, op bodies, dispatch and the worker's loop into one text. What was
written by a person is copied byte for byte; what is generated, such as the record's constants and
one small struct for each op, comes from the declarations. Two files that define the same name are
refused, both named.

There is a file for each kind of machine, with its sections in the same order. Writing one needs
neither a GPU nor a compiler.
"""

# %% [markdown] tab="CPU"
"""
Let us look at three places: the contents, the dispatch, which picks a body by its number, and the
loop. The loop is all there is: wait, run the tiles, signal.
"""

# %% tab="CPU"
program = compose_cpu(schedule.graph.ops, "bf16", "bf16", "One step of a llama model")
lines = program.source.splitlines()
print(f"{len(lines)} lines, digest {program.digest}\n")
print("\n".join(lines[4:22]), "\n")
at = program.source.index("def run_tiles")
print(program.source[at : at + 420], "\n")
at = program.source.index("    for index in range(count):")
print(program.source[at : at + 900])

# %% [markdown] tab="CUDA"
"""
NVRTC compiles this file while the program starts; there is no nvcc, no CMake. The worker has four
roles where the CPU's has one: a loader that streams weights through a ring ahead of time, stagers
that bring activations in, warps that compute, and a storer. Each walks through the same records
and does its own part, and barriers in shared memory keep them in step.
"""

# %% tab="CUDA"
cuda = compose_cuda(schedule.graph.ops, "bf16", "bf16", rows=8)
print("\n".join(cuda.source.splitlines()[:24]))
assert "struct GemmArgs" in cuda.source

# %% [markdown]
"""
The body of an op in the file is its `task.py`, or `task.cuh`, letter by letter. If you want to
know what ran, you read it here; a debugger steps through it, and a profiler names its functions.
"""

# %%
for op in schedule.graph.ops:
    if op.name != "join":
        text = (op.folder / "task.py").read_text()
        assert text[text.index("@body") :].strip() in program.source, op.name

# %% [markdown]
"""
## Run it, on any number of workers

The same file runs every deal, as records are data. One worker, two, three: the bits are equal,
because the order of every sum belongs to the op and not to the schedule. Scratch and outputs
start as NaN each time.
"""

# %%
given = tiny.fill(graph, shape, np.random.default_rng(0))
results = {}
for workers in (1, 2, 3):
    dealt = deal(layer, workers)
    verify(dealt)
    tensors = {name: array.copy() for name, array in given.items()}
    with CpuMachine(program, dealt, tensors) as machine:
        machine.poison()
        machine.step()
        results[workers] = machine.tensors["x"].copy()
        traces = []
        for _ in range(20):
            machine.step(trace=True)
            caption = f"measured on {cpu_model()}, 2 threads: a layer of a tiny Llama"
            traces.append(collect(machine, caption))
        assert machine.tensors["x"].tobytes() == results[workers].tobytes()
    found = min(traces, key=lambda one: one.span_ns)
    if workers == 2:
        trace = found
    print(f"{workers} workers: {found.tasks} tasks in {found.span_ns / 1000:.0f} us at best")
live = int(given["count"][0])
assert all(results[1].tobytes() == other.tobytes() for other in results.values())
assert np.isfinite(results[1][:live]).all()

# %% [markdown]
"""
## Is it right?

Equal bits say that nothing depends on the deal. They do not say that the numbers are right. For
that there is a second implementation of every model family, in plain NumPy, written from the
formulas and sharing no code with the kernels. Whole steps are held to it in a later recipe, and
to `transformers` in the tests; here it is enough to see that it knows this family.
"""

# %%
assert "llama" in BLOCKS
print(render(summarise(trace)).split("\n\n")[0])
show(trace, "08_one_file")

# %% [markdown]
"""
## What one file is good for

It may look like a matter of taste. Three things make it more than that.

*Reading.* When a number is wrong, the question "what exactly ran?" has an answer that you can
scroll through. In projects whose kernel is assembled by templates, build flags and generated
headers, that question alone can cost a day.

*Bits.* A compiler that sees a body in another surrounding may choose other instructions, if it is
allowed to. Here the order of every sum is fixed by primitives that leave no choice, so the same
body gives the same bits alone, in a file with a dozen others, and in a file that you compose next
year with one more op.

*Keeping.* The file's digest is its name in the cache. Two models with the same ops share the
compiled code, and a second start takes a second. If you change a body, the digest changes, and
nothing old can be run by mistake.

The price is paid once: compiling one large function takes longer than compiling a small one, ten
to forty seconds for a whole model on a CPU.
"""

# %% [markdown]
"""
## What to take along

One file, one loop, and data that says what to do. Change an op and one section changes. Change
the deal and no code changes at all. Keep the file beside your results, and you know forever what
produced them.
"""

# %%
said = prove("mkport compose -o megakernel.py --context 256 --workers 2")
