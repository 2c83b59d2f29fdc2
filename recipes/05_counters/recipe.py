# %% [markdown]
"""
# Counters, and what goes wrong

Megakernels have a bad name for two things: they hang, and they are wrong sometimes. Both come
from the same place. The tasks of a step wait for each other through integers in memory, and
somebody has to get those integers right.

Here you break a schedule in four ways: a signal is lost, a target is wrong, a task reads too
early, two tasks overlap. Each time the *verifier* names the fault before anything runs. Then we
run the broken schedule all the same, to see what it looks like from outside when nobody checked.
"""

# %%
from dataclasses import replace
from pathlib import Path

import numpy as np

from mkport.compose import compose_cpu
from mkport.declare import RECORD
from mkport.doctor import cpu_model
from mkport.kernels.gemm.op import OP as GEMM
from mkport.learn.lesson import prove, show
from mkport.machines import cuda
from mkport.machines.cpu.machine import CpuMachine, Stuck
from mkport.machines.interpret import interpret
from mkport.plan import Graph, deal, signal_of, waits_of
from mkport.trace.collect import collect
from mkport.trace.simulate import Costs, simulate
from mkport.trace.sketch import sketch
from mkport.verify import Refused, verify

WAITS, SIGNAL, RUN = (RECORD[name].first for name in ("waits", "signal", "run"))

# %% [markdown]
"""
## A chain

Our victim is a chain of four products, each of the whole result of the one before it. With 96
columns each has six tiles, dealt to two workers.
"""

# %%
WIDTH, TOKENS, NODES = 96, 3, 4
rng = np.random.default_rng(0)
graph = Graph()
graph.tensor("count", "i32", (1,), "input")
graph.tensor("h0", "f32", (TOKENS, WIDTH), "input")
given = {"count": np.array([TOKENS], np.int32), "h0": rng.standard_normal((TOKENS, WIDTH), "f")}
for n in range(NODES):
    graph.tensor(f"w{n}", "f32", (WIDTH, WIDTH), "weight")
    graph.tensor(f"h{n + 1}", "f32", (TOKENS, WIDTH), "scratch")
    given[f"w{n}"] = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    names = {"x": f"h{n}", "w": f"w{n}", "y": f"h{n + 1}"}
    graph.add(GEMM, f"product {n}", count="count", n=WIDTH, k=WIDTH, **names)
schedule = deal(graph, workers=2)
program = compose_cpu(graph.ops, "f32", "f32")
print(verify(schedule))
for record in schedule.lists[0]:
    print("waits", waits_of(record), "signals", signal_of(record))

# %% [markdown]
"""
Read the numbers. Product 0 waits for nothing: its input was there before the step. Each of its
two records adds 3 to counter 0 when it is done, one for each of its tiles. Product 1 waits until
counter 0 has reached 6, when both workers have signalled. Why must *all* of product 0 be done,
when a tile of product 1 is only 16 columns? Because each of those columns is a sum over a whole
row of `h1`, so it reads what every tile of product 0 wrote.

A *signal* is more than an addition. Before the counter moves, everything the task wrote must be
visible to the others; that is what "release" means in `add_release`. And a wait that has seen the
counter must not use values it read before; that is "acquire". On a GPU forgetting either gives
results that are right for months.

Counters are never set back. In step `s` the target is simply `s + 1` times as large, and the
comparison looks at the sign of a 32-bit difference, so that it survives the day the counter
wraps. Setting them back would need a moment in which nobody looks at them, and making such a
moment takes another round of waiting.
"""


# %%
def run(broken, limit_s=0.3):
    """The result of one step, from scratch that is full of NaN."""
    with CpuMachine(program, broken, given, limit_s=limit_s) as machine:
        machine.poison()
        machine.step(trace=True)
        trace = collect(machine, f"measured on {cpu_model()}, 2 threads: four products")
        return machine.tensors[f"h{NODES}"].copy(), trace


def changed(record, word, value, workers=(0, 1)):
    """The schedule with one word of a record of some workers changed."""
    lists = tuple(records.copy() for records in schedule.lists)
    for worker in workers:
        lists[worker][record, word] = value
    return replace(schedule, lists=lists)


def refused(broken, *kinds):
    """Prints what the verifier says of a schedule; it must be a refusal of one of these kinds."""
    try:
        raise AssertionError(f"the verifier let it pass: {verify(broken)}")
    except Refused as refusal:
        print(refusal)
        assert refusal.problems[0].kind in kinds


right, trace = run(schedule)
exact = np.linalg.multi_dot([given["h0"].astype(float), *(given[f"w{n}"].T for n in range(NODES))])
assert np.abs(right - exact).max() < 1e-4
show(trace, "05_counters")

# %% [markdown]
"""
## A lost signal

Worker 1 does its part of product 1 and tells nobody. The verifier adds up the signals that can
reach the counter, compares with the target, and refuses.

Run all the same, the others wait for ever. Here for ever is a third of a second: every wait has a
limit, and when it passes the workers leave and say where they stood. You get a name, a counter,
what it has and what it needs, rather than a black screen.
"""

# %%
lost = changed(1, SIGNAL, -1, [1])
refused(lost, "target")
try:
    run(lost)
    raise AssertionError("it should have hung")
except Stuck as stuck:
    print(stuck)

# %% [markdown]
"""
## A wrong target

Somebody counted tiles by hand and was off by one. Too high, and it hangs, as above. Too low is
worse: it works, nearly always. The reader starts when *some* of the tiles are there, and whether
the last one is there too is a matter of luck. The verifier needs no luck.
"""

# %%
refused(changed(2, WAITS + 1, 3), "target")

# %% [markdown]
"""
## A read too early

Product 2 of worker 0 does not wait at all. The verifier finds two tasks that touch the same piece
of a tensor, one writing it, with nothing that puts them in order, and names both, the piece, and
the edge that is missing.

The timeline shows it as well, in two simulated runs: where the schedule is right, each task stands
behind a dot, a moment of waiting for the other worker's signal. In the second run the dot between
the second and the third task of worker 0 is gone.

A real machine may get away with it, so we use another one. The *interpreter* runs one tile at a
time and takes turns by a seeded dice. Under many seeds we count how often the result is wrong.
This is the honest picture of a race: not "it fails", but "it fails on Tuesdays".
"""

# %%
early = changed(2, WAITS, -1, [0])
refused(early, "order")
for dealt in (schedule, early):
    print(sketch(simulate(dealt, Costs(1e9), "four products on two workers"), 60))


def wrong(dealt, seed):
    """Whether the interpreter's result is wrong in this order; scratch begins as NaN."""
    values = given | {f"h{n + 1}": np.full((TOKENS, WIDTH), np.nan, "f") for n in range(NODES)}

    def tile_of(node, tile):
        columns = slice(16 * tile, 16 * tile + 16)
        x, w = values[node.args["x"]], values[node.args["w"]]
        values[node.args["y"]][:, columns] = x @ w[columns].T

    interpret(dealt, tile_of, seed)
    return not np.allclose(values[f"h{NODES}"], exact, atol=1e-4)


found = sum(wrong(early, seed) for seed in range(100))
print(f"{found} of 100 orders give a wrong result")
assert 0 < found < 100 and not any(wrong(schedule, seed) for seed in range(100))

# %% [markdown]
"""
## An overlap

Worker 1 runs one tile too many to the left, so tile 2 of product 0 is written by both. With equal
inputs both write the same numbers, and no test of results will ever see it; until an op adds to
what is there, in place. The verifier wants every tile run exactly once.
"""

# %%
refused(changed(0, RUN, 2, [1]), "coverage", "target")

# %% [markdown]
"""
## What waiting looks like

A wait is a loop around one load, on either machine. Two details carry all the weight: the load is
an *acquire*, so nothing that stands behind it in the program may be read before it, and the
difference is looked at as a signed number: that is the comparison which survives the wrap.
"""

# %% [markdown] tab="CPU"
"""
After some tries the thread yields its core, since the one that it waits for may need it.
"""

# %% tab="CPU"
at = program.source.index("    while True", program.source.index("def wait_for"))
print(program.source[at : program.source.index("\n\n\n", at)])

# %% [markdown] tab="CUDA"
"""
A thread block never gives its multiprocessor away, so a GPU's loop only spins. Few threads of a
worker wait like this; the others wait for them at barriers inside the multiprocessor. And what
was written by another multiprocessor in this step must be read past the first-level cache, which
knows nothing of what others write. Kernels that use read-only loads for such data pass every test
on the desk and fail in the field. In steps of one or two tokens most scratch has no counter: a
word that nobody has written yet is a NaN that no arithmetic gives, and whoever needs it looks at
it until it is another. The documentation tells under decisions what the verifier proves then.
"""

# %% tab="CUDA"
device = (Path(cuda.__file__).parent / "device.cuh").read_text()
at = device.index("MK_DEVICE inline bool mk_wait_counter")
print(device[at : device.index("}\n\n", at) + 1])

# %% [markdown]
"""
## Why it cannot deadlock

One more property is checked, and it is a theorem rather than a test. All records stand in one
global order, the order of the graph. Every worker's list follows it, and all workers run at the
same time. Then the earliest task that is not finished can always go on: whatever it waits for
stands before it and is finished. So a verified schedule cannot deadlock, whatever the timing.

In this library no target is typed by a person; they are derived from what tiles read and write.
The verifier looks at the result all the same, since a planner has bugs too.
"""

# %%
assert prove("mkport verify --workers 8 --context 128").startswith("safe")
