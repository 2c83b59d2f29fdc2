# %% [markdown]
"""
# Scheduling and run-ahead

A correct megakernel can be slow. All workers may stand in front of one counter; a worker may wait
for data while the next weights, which depend on nothing, are not even requested. This recipe is
about the two levers that matter, and looks at each before and after: the **order and waits** of
tasks, and **run-ahead**, which means reading immutable bytes before the wait for the data is
over.

Some of it is measured here, on your CPU. What concerns a GPU is simulated, with numbers you can
change. Pictures say which of the two they are.
"""

# %%
import time
from dataclasses import replace

import numpy as np

from mkport.compose import compose_cpu
from mkport.declare import RECORD
from mkport.doctor import cpu_model
from mkport.kernels.gemm.op import OP as GEMM
from mkport.learn.lesson import prove, show
from mkport.machines.cpu.machine import CpuMachine
from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import Graph, deal
from mkport.trace import summarise
from mkport.trace.collect import collect
from mkport.trace.simulate import Costs, simulate
from mkport.trace.sketch import sketch
from mkport.verify import verify

# %% [markdown]
"""
## Before: one after the other

The simplest safe schedule lets every op wait for all of the op before it. That is what launching
kernels in a row does. We can write it down: give each node a counter, let its records wait for
the node before. The verifier accepts it, of course; it only asks for safety.
"""


# %%
def in_turn(schedule):
    """The same records, but each node waits for all of the node before it."""
    lists = [records.copy() for records in schedule.lists]
    node, waits, signal = (RECORD[name].first for name in ("node", "waits", "signal"))
    tiles = [max(n.tiles, 1) for n in schedule.graph.nodes]
    for records in lists:
        for record in records:
            n = record[node]
            record[waits : RECORD["waits"].end] = -1
            if n:
                record[waits : waits + 2] = n - 1, tiles[n - 1]
            record[signal] = n
    return replace(schedule, lists=tuple(lists), counters=len(tiles))


# %% [markdown]
"""
## After: waits that are needed

Take six products that do not depend on each other, such as the queries, keys and values of a
layer. Each has three tiles, and there are two workers. In turn, each product takes two tile
times: one worker does two tiles, the other does one and waits. With only the waits that are
needed, nobody waits at all, since the deal begins each node where the last one ended. Nine tile
times instead of twelve, six products with three tiles divided by two workers.

In `sketch`, which draws a timeline in characters, a letter is an op at work, a dot is a task that
was picked up and waits, and a space is nothing at all.

This one is measured. We run both on your CPU, many times, in turns, and take the best of each.
"""

# %%
K, WIDTH, NODES = 4096, 48, 6
graph = Graph()
graph.tensor("count", "i32", (1,), "input")
graph.tensor("x", "f32", (1, K), "input")
rng = np.random.default_rng(0)
given = {"count": np.ones(1, np.int32), "x": rng.standard_normal((1, K), np.float32)}
for n in range(NODES):
    graph.tensor(f"w{n}", "f32", (WIDTH, K), "weight")
    given[f"w{n}"] = rng.standard_normal((WIDTH, K), np.float32)
    graph.tensor(f"y{n}", "f32", (1, WIDTH), "output")
    names = {"x": "x", "w": f"w{n}", "y": f"y{n}"}
    graph.add(GEMM, f"product {n}", count="count", n=WIDTH, k=K, **names)
needed = deal(graph, workers=2)
program = compose_cpu(graph.ops, "f32", "f32")

best, traces, bits = {}, {}, set()
schedules = {"in turn": in_turn(needed), "as needed": needed}
for schedule in schedules.values():
    verify(schedule)
machines = {name: CpuMachine(program, s, given) for name, s in schedules.items()}
for _ in range(60):
    for name, machine in machines.items():
        started = time.perf_counter()
        machine.step(trace=True)
        took = time.perf_counter() - started
        if took < best.get(name, np.inf):
            best[name] = took
            caption = f"measured on {cpu_model()}, 2 threads: six products {name}"
            traces[name] = collect(machine, caption)
        bits.add(b"".join(machine.tensors[f"y{n}"].tobytes() for n in range(NODES)))
for name, machine in machines.items():
    machine.close()
    print(f"{name}: {traces[name].span_ns / 1000:.0f} us\n{sketch(traces[name], 60)}\n")
assert len(bits) == 1, "a schedule changes the time, never the bits"

# %% [markdown]
"""
If your computer has other things to do, the two may come out alike; a worker that is not running
cannot be early. The number of tiles on the longest path does not depend on luck, so that is what
we assert, in a simulation in which a tile takes a fixed time.
"""

# %%
fixed = Costs(bytes_per_s=10e9, task_ns=0, signal_ns=100)
spans = {name: simulate(s, fixed).span_ns for name, s in schedules.items()}
print(spans)
assert spans["as needed"] < 0.8 * spans["in turn"]

# %% [markdown]
"""
## A layer on a large GPU

Now North Mini Code, three layers of it, dealt to 132 workers as on an H200. A worker reads 34
GB/s, a task costs a fixed 700 ns, a signal takes a microsecond to be seen. The tiles of a node
are dealt *strided*: worker 0 gets tiles 0, 132, 264, so that all workers read from the same
neighbourhood at the same time. We compare four ways. "In turn" is kernel by kernel, without even
counting launches. "As needed" has derived waits. In the last two a loader runs ahead by 64 or 192
KB, about what the shared memory of a block has room for.
"""

# %%
fields = config_of("cohere2_moe", "full")
few = {"num_hidden_layers": 3, "layer_types": fields["layer_types"][:3]}
fields = fields | few
step = family_of(fields).build(parse_config(fields), StepShape(rows=1, context=8192))
layers = step.first(max(n for n, node in enumerate(step.nodes) if "layer 2 /" in node.label) + 1)
dealt = deal(layers, workers=132, share="strided")
print(verify(dealt))
table = {}
for name, schedule, ahead in (
    ("in turn", in_turn(dealt), 0),
    ("as needed", dealt, 0),
    ("and 64 KB ahead", dealt, 64 << 10),
    ("and 192 KB ahead", dealt, 192 << 10),
):
    costs = Costs(34e9, task_ns=700, signal_ns=1000, ahead=ahead)
    caption = f"three layers of North Mini Code, 132 workers, {name}"
    table[name] = simulate(schedule, costs, caption, context=8192)
    found = summarise(table[name])
    print(f"{name:18} {table[name].span_ns / 1000:7.1f} us, waiting {found.waiting:4.0%}")
assert table["as needed"].span_ns <= table["in turn"].span_ns
assert table["and 192 KB ahead"].span_ns < 0.9 * table["as needed"].span_ns
show(table["and 192 KB ahead"], "09_run_ahead")

# %% [markdown]
"""
## Try it

Raise the cost of a task to 2,000 ns and look at the share that waits: tasks that are too small
are a tax on everything, which is why a record runs many tiles. Set the cost of a signal to zero:
what remains of the waiting is imbalance, tiles that do not divide evenly among the workers, and
no counter in the world can mend that.

Then double the ring. Past some size nothing happens any more, for a worker can only run ahead as
far as the next bytes whose address is data. On the CPU machine `mkport trace --workers 1` and
`--workers 2` show the same thing in your own hands: the second lane is not idle, and still the
step does not take half the time, since both lanes share one memory.
"""

# %% [markdown]
"""
## Why run-ahead works

Look at the end of a layer. A norm needs the whole residual stream, the router needs the norm, the
choice needs the router: a chain of tiny tasks in which nearly all workers wait. The bytes that
come next, the projections of queries, keys and values, are immutable and their addresses are
known. With a ring the loader fills it *while the worker waits*, and when the counter moves, the
product finds its first tiles in shared memory.

On 132 workers a ring of 192 KB holds 25 MB together: about all the projections of the next layer.
What cannot run ahead are the experts, as which ones is data; in the picture they begin right when
their choice is known.

That a loader may do this at all is the reason for the word `immutable` in an op's declaration. It
is a promise that no task of the step writes those bytes, and the verifier checks it.
"""

# %% [markdown]
"""
Who reads ahead depends on the machine:
"""

# %% [markdown] tab="CPU"
"""
With a single token nobody has to. The hardware's prefetcher sees that a task walks along memory
and asks for the next lines; fetching the next task's weights by hand while a worker waits was
tried and gave nothing. With several tokens a tile's weights are used more than once, memory
stands idle meanwhile, and the tasks ask for the next tile's weights themselves.
"""

# %% [markdown] tab="CUDA"
"""
A multiprocessor fetches nothing that was not asked for. So one warp of each worker, the loader,
runs through the list of records ahead of the others, asks for the weights of the next ones, and
stops when the ring is full. Each chunk that arrives opens a barrier for the warps that compute,
and each that they have used opens one for the loader.
"""

# %% [markdown]
"""
## What is measured where

The simulation leaves out instruction fetch, caches, and the arithmetic itself. On a real H200 a
step moved from 7.6 ms to 2.9 ms through changes of this kind and others; each has a line in the
performance log in the documentation, with what was expected and what came out. Read the failures
there too: prefetching into the L2 cache gave nothing.

## What to take along

Only wait for what you read. Begin each node where the last one ended. Put work that many wait for
early, and work that nobody waits for late. And let bytes that nothing can change travel while you
wait. None of this may change a bit of the result, and it does not.
"""

# %%
said = prove("mkport trace --context 256 --workers 2 --steps 4 -o traced")
assert "busy" in said
