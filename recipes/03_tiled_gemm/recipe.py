# %% [markdown]
"""
# A tiled GEMM: one kernel, three rungs

Nine tenths of what a language model reads are the matrices of products like `y = x W^T`. Before
such a product can become part of a megakernel it has to be a good kernel by itself. This recipe
climbs a short ladder: three files, each a whole kernel that runs, each changing one idea. They
are ordinary Numba kernels and know nothing of megakernels.

The shapes: `x` is [tokens, k], one row for each token of the step, between one and a few dozen;
`w` is [n, k], a row for each output column, thousands of both; `y` is [tokens, n]. The weight is
stored with `k` last, so that each output walks along memory that lies in a row.

Two questions decide every step: *which bytes are read how often*, and *in which order is added*.
The first makes a kernel fast. The second makes it trustworthy: floating-point addition gives
another result in another order, and we want the same bits in every form of this kernel, today and
tomorrow.
"""

# %%
import time

import numpy as np

from mkport.kernels.gemm.op import OP as GEMM
from mkport.learn.lesson import prove
from mkport.testing import check_op
from mkport.testing.parts import kernel_of, load_file
from mkport.testing.rung import check_rung

RUNGS = [GEMM.folder / "ladder/1_naive.py", GEMM.folder / "ladder/2_tiled.py"]
RUNGS.append(GEMM.folder / "standalone.py")

# %% [markdown]
"""
## What the product must compute

The truth about an op is a function in PyTorch, its *oracle*, and some shapes on which it is
checked. The oracle is run in float64. A kernel in float32 cannot hit that exactly, so how far off
may it be? We do not choose a number. The oracle is run once more in float32, and the kernel may
be off by twice as much as PyTorch itself is, plus one rounding of the largest value; where PyTorch
adds in many sums at once, as much as it would be with one term after the other. That is the
*tolerance law*: it has no knob to turn when a test is red.

## Rung 1: the definition

Three loops. For each token and each output column, walk along the row of the weight and add. It
is right, and slow for two reasons: every weight is read again for every token, and each addition
waits for the one before it, because the compiler must not reorder what we wrote.
"""

# %%
print(RUNGS[0].read_text().split("@njit(nogil=True)")[1].split("if __name__")[0])
verdicts = check_rung(RUNGS[0], dtypes=("f32",))
for verdict in verdicts:
    print(f"{verdict.shape:18} error {verdict.error:.1e}, allowed {verdict.allowed:.1e}")
assert all(verdict.ok for verdict in verdicts)

# %% [markdown]
"""
## Rung 2: tiles

Sixteen rows of the weight are taken as a *tile*: they stay in the cache while every token uses
them, so the weight crosses the memory bus once, however many tokens there are. Inside a row,
sixteen neighbouring columns are taken together, and column `k` is added to sum `k % 16`. Those
sixteen sums fit one vector register.

The sums are of float32 and the weights may be bfloat16, two bytes instead of four. `widen` turns
one into the other exactly: the bits of a bfloat16 are the upper half of a float32. So nothing is
lost by storing weights short, apart from what was lost when the model was written that way.

Notice who decided on that order: we did, in the source. The compiler may turn the loop over lanes
into vector instructions because they compute exactly what the loop says. There are flags that
allow a compiler to reorder additions as it likes. They are banned here: with them the same
product gives other bits when it is inlined elsewhere, and nothing could be promised.
"""

# %%
verdicts = check_rung(RUNGS[1], dtypes=("f32",))
assert all(verdict.ok for verdict in verdicts)
print(RUNGS[1].read_text().split("def gemm")[1].split("if __name__")[0])

# %% [markdown]
"""
## Rung 3: four chains

A processor can begin a multiply-add in every cycle, but each takes about four cycles to finish.
With one vector of sums, each multiply-add waits for the last. With four vectors, used in turn,
there is always one that is ready. So column `k` now goes to sum `k % 64`: four chains of sixteen
lanes. In the end chains are joined as (0 + 1) + (2 + 3), and lanes in halves.

This is the standalone kernel, the last rung, and its order is the one that is *declared* for the
op. Every other form of this op has to reproduce it to the bit.
"""

# %%
print(GEMM.order)
for dtype in ("f32", "bf16"):
    verdicts = check_op(GEMM, form="standalone", dtype=dtype)
    assert all(verdict.ok for verdict in verdicts)
    print(f"{dtype}: {len(verdicts)} shapes within the law")

# %% [markdown]
"""
## Which is faster?

Nothing is timed that was not just checked; that is done above. We take a matrix of 2304 x 768,
four tokens, and let each rung run a few times. The best time counts, as everything else on the
machine can only make it slower. The numbers are of your computer, in this minute.
"""

# %%
rng = np.random.default_rng(0)
tokens, n, k = 4, 2304, 768
x = rng.standard_normal((tokens, k), np.float32)
w = rng.standard_normal((n, k), np.float32)
y = np.empty((tokens, n), np.float32)
best = {}
for path in RUNGS:
    kernel = kernel_of(load_file(path), GEMM)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        kernel(x, w, y)
        times.append(time.perf_counter() - started)
    best[path.name] = min(times)
    print(
        f"{path.name:14} {min(times) * 1e6:8.0f} us, "
        f"{w.nbytes / min(times) / 1e9:5.1f} GB/s of weights"
    )
    assert np.abs(y - x @ w.T).max() < 1e-3
assert best["standalone.py"] < best["1_naive.py"]

# %% [markdown]
"""
## Try it

The rungs are files, so change them. Copy `2_tiled.py`, let a tile have one row rather than
sixteen, and time it for one token and for eight: for which of the two does it matter, and why?
Then give the third rung eight chains in place of four. Is it faster here? It is certainly wrong
in one sense: `mkport check gemm` compares the bits of all forms with the standalone kernel's, so
a standalone kernel with another order fails every other form at once. That is how an order stays
declared: nobody can change it in one place and forget the others.

And try to cheat. Return the right result rounded to bfloat16: the error is small, a picture would
not show it, and the law refuses it, as plain PyTorch in float32 does a hundred times better.
"""

# %% [markdown]
"""
## Here and on a GPU

The same product stands in the library twice, once for each kind of machine, and both are ordinary
kernels that run by themselves.
"""

# %% [markdown] tab="CPU"
"""
`kernels/gemm/standalone.py` is the third rung. A tile is 16 output columns, whose
results fill one vector register of a processor with AVX-512, two of one with AVX2. A thread takes
whole tiles; within a tile there is nobody to synchronise with.
"""

# %% [markdown] tab="CUDA"
"""
`kernels/gemm/standalone.cu` is an ordinary CUDA file. It makes the same two decisions with other
numbers. A block streams its weight rows through shared memory once, its eight warps share the
columns `k`, and the tensor cores multiply 16 weight rows with up to 8 tokens at a time. With few
tokens those cores are nearly idle, and that is fine, as the bytes are the limit. Its declared
order is another one than the CPU's, so bits are compared within a machine and not across. The
command `mkport check gemm --machine host` compiles this file with your C++ compiler and holds it
to the same oracle, with no GPU in the house. This is how it begins:
"""

# %% tab="CUDA"
source = (GEMM.folder / "standalone.cu").read_text()
print("\n".join(source.splitlines()[:19]))

# %% [markdown]
"""
## What to take along

A tile is a piece of the output and the bytes it needs. A kernel is a loop over tiles, in an order
that is written down. Nothing in the body of the loop cares *who* runs the tile or *when*, as long
as the inputs are there. That is the seam at which the next recipe cuts.
"""

# %%
said = prove("mkport check gemm --form standalone")
assert "gemm" in said
