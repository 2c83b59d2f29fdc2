# %% [markdown]
"""
# First light: two tasks and one counter

A model that generates text runs the same few hundred small kernels for every token. On a GPU each
of them is launched by itself: the host says go, the kernel reads its weights, all of it ends, and
the next one starts. While one kernel drains and the next one fills up, the memory sits idle, and
for a single token the memory is all that matters.

A *megakernel* is the other way to do it. One kernel is launched, once, and it stays. Its thread
blocks, which we call *workers*, each walk through a list of small jobs. A job that needs another
job's result waits for it; all the others just run.

This recipe builds the smallest megakernel there is: two jobs, on two workers, with one place
where they meet. It takes two minutes and needs no GPU, since here a worker is a thread of your
CPU.
"""

# %%
import numpy as np

from mkport.compose import compose_cpu
from mkport.declare.case import from_bf16, to_bf16
from mkport.doctor import cpu_model
from mkport.kernels.gemm.op import OP as GEMM
from mkport.kernels.rmsnorm.op import OP as RMSNORM
from mkport.learn.lesson import prove, show
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, deal, signal_of, waits_of
from mkport.trace.collect import collect
from mkport.verify import verify

# %% [markdown]
"""
## What to do: a graph

We start with *what*, and leave *who* and *when* for later. A graph holds tensors and uses of ops.
An *op* is a kind of work, such as a matrix product; it says of itself which bytes its pieces read
and which they write. We use two: `rmsnorm` scales a row so that its mean square is one, and
`gemm` multiplies that row with a matrix. Every layer of a language model begins with this pair.

The row has 16,384 numbers, so that there is something to see in the picture; the matrix has
sixteen rows, which is one *tile* of the product: the piece that is worked on as a whole.
"""

# %%
K = 16384
graph = Graph()
graph.tensor("count", "i32", (1,), "input")  # how many rows are in use: one
graph.tensor("x", "f32", (1, K), "input")
graph.tensor("scale", "f32", (K,), "weight")
graph.tensor("h", "f32", (1, K), "scratch")  # what the first job hands to the second
graph.tensor("w", "bf16", (16, K), "weight")
graph.tensor("y", "f32", (1, 16), "output")
graph.add(RMSNORM, "norm", count="count", x="x", w="scale", y="h", groups=1, k=K, eps=1e-5)
graph.add(GEMM, "product", count="count", x="h", w="w", y="y", n=16, k=K)
print([node.label for node in graph.nodes])

# %% [markdown]
"""
A use of an op is a *node* of the graph. In `add`, names on the left are the op's own arguments,
names on the right are our tensors. Two things there surprise most readers.

`count` is a tensor of one integer, not an integer. How many rows are in use changes from step to
step, while the graph is planned once and its code compiled once; so an op reads the number when
it runs. `k` and `n`, on the other hand, are plain integers, as the shape of a matrix never
changes.

Every tensor also says what it is *for*. An input is filled before the step, a weight is never
written, scratch lives within a step and an output is read after it. The next part relies on that.
"""

# %% [markdown]
"""
## Who does it: a schedule

Now the work is dealt to two workers. What a worker gets is a list of *records*: rows of 32
integers that name the op, its tensors, the tiles to do, what to wait for first, and what to
signal at the end.

Look at what was dealt. The norm waits for nothing and signals counter 0. The product waits until
counter 0 has reached 1. A *counter* is an integer in memory that only ever grows; the one who
signals adds to it, the one who waits looks at it until it is high enough.

In the printout a wait is a pair, (counter, value to reach), and a signal is (counter, amount to
add). The product's signal names counter -1, which means none: nobody waits for it. The end of the
step is known by other means, for a step is over when every worker has come to the end of its
list.

Nobody typed that wait. It was derived: the product declares that it reads `h`, the norm declares
that it writes `h`, and so one has to come after the other.
"""

# %%
schedule = deal(graph, workers=2)
for worker, records in enumerate(schedule.lists):
    for index, record in enumerate(records):
        print(
            f"{schedule.describe(worker, index)}: "
            f"waits {waits_of(record)}, signals {signal_of(record)}"
        )
assert [len(records) for records in schedule.lists] == [1, 1]
assert waits_of(schedule.lists[1][0]) == [(0, 1)]

# %% [markdown]
"""
## Is it safe? The verifier

Programs that wait for each other can hang, and programs that should wait but do not give wrong
numbers, sometimes. So nothing runs here before the verifier has looked at it. It proves, for this
schedule and whatever the timing, that every wait is met and that no two jobs touch the same bytes
in an undecided order. Its answer counts *edges*, which are waits seen as arrows from one record
to another, and *atoms*, the pieces into which all reads and writes cut the tensors. Later we
break schedules on purpose and see what it says.
"""

# %%
report = verify(schedule)
print(report)
assert (report.records, report.workers, report.counters) == (2, 2, 1)

# %% [markdown]
"""
## One file

`compose_cpu` writes the megakernel: one Python file with the arithmetic primitives, the two op
bodies, the code that picks a body by its number, and the loop that a worker runs. Numba compiles
it to machine code. The first time that takes a few seconds; then it is kept.
"""

# %%
program = compose_cpu(schedule.graph.ops, "bf16", "bf16", "First light")
print(program.source[:600])
assert "def rmsnorm(a, tile, arena):" in program.source
assert "def gemm(a, tile, arena):" in program.source

# %% [markdown] tab="CPU"
"""
On a CPU a worker is a thread, and a megakernel is a function that every thread calls with another
list. Threads wait by looking at a counter over and over, and after some looks they let others use
the core. So the machine works with more workers than cores, only slowly.
"""

# %% [markdown] tab="CUDA"
"""
On a GPU a worker is a block of threads, one on each multiprocessor, and one launch starts them
all. `compose_cuda` writes its file from the same graph, in CUDA C++, and the records are the
same. Within a worker the warps share the labour: some bring the next bytes in while others still
compute. You need no GPU to read that file: a later recipe looks into it, and `mkport compose
--target cuda` writes one.
"""

# %% [markdown]
"""
## First light

We fill in random numbers, set everything that will be written to NaN, run a step, and compare
with NumPy. If the product had not waited for the norm, the NaN would show. Then twenty more steps
run with the clock on, and we keep the one in which the product waited longest: on a busy computer
the second worker may come so late that it finds everything done.
"""

# %%
rng = np.random.default_rng(0)
scale = rng.standard_normal(K, np.float32)
bits = to_bf16(rng.standard_normal((16, K)) / np.sqrt(K))  # the upper half of float32's bits
x = rng.standard_normal((1, K), np.float32)

with CpuMachine(program, schedule, {"scale": scale, "w": bits}) as machine:
    machine.tensors["x"][:] = x
    machine.tensors["count"][:] = 1
    machine.poison()
    machine.step()
    y = machine.tensors["y"].copy()
    traces = []
    for _ in range(20):
        machine.step(trace=True)
        traces.append(collect(machine, f"measured on {cpu_model()}, 2 threads: a norm, a product"))

normed = x * scale / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-5)
exact = normed @ from_bf16(bits).T.astype(np.float64)
print("largest error", np.abs(y - exact).max())
assert np.abs(y - exact).max() < 1e-4

# %% [markdown]
"""
## The picture

One lane for each worker, one colour for each op; grey means that a job has been picked up and
waits. Worker 1 had nothing else to do, so it waited all the while that worker 0 ran the norm.
When the counter moved, it began. The program checks what you see: the product was not ready
before the norm had begun, nor before its own wait was over.
"""


# %%
def times_of(trace, node):
    """Start, ready and end of a node's one task, in ns."""
    return trace.times[trace.node == node][0]


def waited(trace):
    """How long the product was picked up and waited, in ns."""
    start, ready, _ = times_of(trace, 1)
    return ready - start


trace = max(traces, key=waited)
norm, product = times_of(trace, 0), times_of(trace, 1)
print(f"the product waited {waited(trace) / 1000:.1f} us")
assert norm[1] < product[1] <= product[2]
show(trace, "01_first_light")

# %% [markdown]
"""
## What you have seen

Four things, in the order in which they always come: a **graph** says what to do, a **schedule**
says who does it and what waits for what, the **verifier** says whether that is safe, and a
**machine** runs it. Everything that follows is more of the same: more ops, more workers, the same
counters. The step of a real model has hundreds of nodes and is dealt, verified and run by these
very functions.

The command below does all of it for a language model and says which op waits longest.

Now it is your turn. `mkport learn` gives you the first exercise: find out which tile an element
belongs to. The recipe that goes with an exercise is named beside it.
"""

# %%
said = prove("mkport verify --workers 2 --context 256")
assert said.startswith("safe")
