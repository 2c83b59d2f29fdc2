# %% [markdown]
"""
# The calling convention, and a kernel that is ported to it

A megakernel runs tiles of many kernels in any order that is safe, on any worker. For that, all of
them must be called in the same way. This recipe shows that way, which we call the *calling
convention*, takes the product of the last recipe through it line by line, and then proves what
the convention promises: the kernel before and after gives the same bits.

The convention is short:

- A kernel becomes a *body*: a function that computes **one tile**. It is told which one.
- The body gets its arguments from a *record*, a row of 32 integers, and never from where it
  happens to run. It does not ask for a block or thread index of the hardware.
- It reads its inputs, may use a scratch area called the *arena*, and writes its own tile. Nothing
  else.
- It waits for no task and never signals. Whoever called it has already waited, and will signal.
"""

# %%
import numpy as np

from mkport.declare import RECORD
from mkport.declare.generate import c_header, record_table
from mkport.kernels.gemm.op import OP as GEMM
from mkport.learn.lesson import prove
from mkport.plan import Graph, deal, run_of
from mkport.testing import check_op, tiny
from mkport.testing.ported import port_diff

# %% [markdown]
"""
## The record

A record says: which op, which tiles (a first one, a stride, a count), what to wait for, what to
signal, and the op's arguments. Tensors are places in a table of addresses; integers stand as they
are; floats are their bits. It is declared once, in Python, and everything else is generated from
that: the constants in the composed files, the C header, the table in the documentation, the
labels in timelines. The layout below comes from the declaration and cannot be out of date.

Why 32 integers, and not a structure for each op? A worker fetches its next record before it knows
which op is in it, so all must have one size; and 32 words of four bytes are 128 bytes, one load
for each of the 32 lanes of a GPU's warp and two cache lines of a CPU. The seventeen words at the
end are enough for every op so far. An op that needs more is refused when it is declared.
"""

# %%
print(record_table())
assert RECORD["args"].end == 32

# %% [markdown]
"""
## The declaration

Beside its body an op declares a few facts. How many tiles there are. Which boxes of which tensors
a tile reads and writes, and which reads are of bytes that nothing writes during a step: weights
are *immutable*, so they may be fetched before any wait is over. The arithmetic order, in words.
The arena, in bytes. From the accesses the planner derives who waits for whom, and the verifier
proves that it suffices.

A *box* is a range in each dimension: `[(0, 8), (32, 48)]` is rows 0 to 7, columns 32 to 47. Boxes
are the whole language in which ops speak about memory. They may be coarse: an op that declares
more than it touches is safe, and waits too long. One that declares less is a bug which no
verifier sees, as it believes what is declared. That is what the checks below are for, which run
an op on several workers with everything that nobody has written full of NaN.

Let us bind the product to some tensors and ask tile 2 what it touches.
"""

# %%
graph = Graph()
graph.tensor("count", "i32", (1,), "input")
graph.tensor("x", "f32", (8, 64), "input")
graph.tensor("w", "bf16", (77, 64), "weight")
graph.tensor("y", "f32", (8, 77), "output")
node = graph.add(GEMM, "product", count="count", x="x", w="w", y="y", n=77, k=64)
print("tiles:", node.tiles)
for access in GEMM.access(node.bound, np.int64(2)):
    print(f"  {access.mode:9} {access.arg:6} {[tuple(map(int, r)) for r in access.box]}")
assert node.tiles == 5

# %% [markdown]
"""
The last tile is cut off at column 77: a kernel that rounds up is a kernel that writes over its
neighbour's data.

Dealt to three workers, the five tiles become three records. `run_of` lists the tiles of one.
"""

# %%
schedule = deal(graph, workers=3)
for worker, records in enumerate(schedule.lists):
    for record in records:
        print(f"worker {worker} runs tiles {run_of(record).tolist()}")
assert sorted(int(t) for records in schedule.lists for t in run_of(records[0])) == [0, 1, 2, 3, 4]

# %% [markdown]
"""
## Before and after

Here is what porting changed. Lines with a minus are the ordinary kernel's, lines with a plus the
body's. Three things happen, and they are the same three in every port.

First, the loop over tiles goes, since the machine runs it, and `tile` takes its place. Second,
the arguments come out of `a`: a tensor is an address, with 0 for one that was left out. Third,
arithmetic goes through *primitives*, about thirty small functions that fix lanes, chains and
joins, such as `fma` and `join_sums`. A primitive means the same instructions wherever it is
inlined, and that is what makes equal bits possible at all.
"""

# %% [markdown] tab="CPU"
"""
For the CPU the body is a Python function that Numba compiles. In the excerpt, `a.x` is the
address of a tensor, and `dot_tile`, `join_sums` and `put_rows` are primitives.
"""

# %% tab="CPU"
diff = port_diff(GEMM)
print("\n".join(line for line in diff.text.splitlines() if line.startswith("+"))[:1600])
print(f"\n{diff.kept} lines kept, {diff.removed} removed, {diff.added} added")

# %% [markdown] tab="CUDA"
"""
For a GPU the same op has a `task.cuh` beside its `standalone.cu`. There the body is a struct with
a function for each role of the warps: `load` says which weights to stream, `early` and `input`
what to bring in, `store` where the result goes; the product between them is a part that many ops
share. Arguments come in a generated struct, names and types, never an index into the record.

One thing is different here. In steps of one or two tokens most scratch is *flagged*: each word
tells whether it has been written. A body reads it by `mk_await` or `mk_read`, and looks again
until it has. Which arguments it reads so stands in `op.py`, as `awaits`, and the verifier proves
that an earlier node writes those words.
"""

# %% tab="CUDA"
header = c_header([GEMM])
print(header[header.index("struct GemmArgs") : header.index("MK_DEVICE static")])
assert "mk_weight* w;" in header

# %% [markdown]
"""
## Four forms, equal bits

An op exists in four *forms*. **Standalone** is the ordinary kernel. **Ported** is the body,
called through one record. **Solo** is a megakernel of that op alone, on several workers. **Step**
is the op in the middle of a whole model's megakernel. On one machine all four give the same bits,
at every batch width.

That is a strong promise and a cheap one to keep honest. Every check below starts with outputs,
scratch and arena full of NaN, so that whatever is read without having been written shows; it
compares with the oracle under the tolerance law, and then bit by bit with the standalone form.

Why so strict? A tolerance hides things. An op that is wrong in one row out of a thousand can pass
a tolerance for years. Two forms that differ in a single bit have a reason to, and the reason is
worth an hour.
"""

# %%
program = tiny.program("bf16")  # every op of the library in one file: compiled once, used often
for form in ("standalone", "ported", "solo", "step"):
    given = program if form in ("ported", "solo") else None
    verdicts = check_op(GEMM, form=form, dtype="bf16", program=given)
    bits = {verdict.same_bits for verdict in verdicts}
    worst = max(verdict.error / verdict.allowed for verdict in verdicts)
    print(f"{form:10} {len(verdicts)} cases, error at most {worst:4.0%} of the law, bits {bits}")
    assert all(verdict.ok for verdict in verdicts)

# %% [markdown]
"""
## Unit by unit

You can hold any op in any form to this, and one failing line names the op, the form, the shape,
the storage type and the worst element. It works from another repository too: mkport brings a
pytest fixture `check_op`, so a test of your own op is one line long.

What the convention forbids is worth a second look. A body knows no counter, so it cannot wait for
the wrong one. It cannot signal, so nobody counts arrivals by hand, which is where hand-made
megakernels usually break. It does not know who runs it, so tiles may be dealt to any number of
workers. What is left for the caller is to wait for the right things. The next recipe gets that
wrong on purpose.
"""

# %%
said = prove("mkport check gemm --form ported --form solo --dtype bf16")
assert "gemm" in said
