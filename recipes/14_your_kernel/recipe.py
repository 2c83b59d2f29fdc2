# %% [markdown]
"""
# Porting your own kernel

Until here all kernels came with the library. This recipe takes one that does not: an ordinary
CUDA kernel, as you find them in thousands of repositories, with thread indices, shared memory and
barriers. `mkport port` makes a task of it, so that it can run in a megakernel between others, or
names the line that is the reason why it cannot.

No GPU is needed. The CUDA source is compiled by your C++ compiler and run on a CPU, block by
block, its threads interleaved in random orders. If there is no C++ compiler here, the port is
still made, and only the runs are left out.
"""

# %%
import tempfile
from pathlib import Path

import numpy as np

from mkport.learn.lesson import prove
from mkport.library import ops_in
from mkport.machines.host.build import compiler
from mkport.plan import deal
from mkport.port.port import port_file
from mkport.port.run import graph_with, run_port
from mkport.port.scaffold import new_op
from mkport.verify import verify

folder = Path(tempfile.mkdtemp())
can_run = compiler() is not None

# %% [markdown]
"""
## The kernel

A softmax of rows, one block a row: each thread looks for the largest of its columns, the block
joins them in shared memory, then the same for the sum. Nothing in it knows of mkport.

Look at its barriers, as they will matter. `__syncthreads()` is where all threads of the block
meet. The one after `most = part[0]` is easily forgotten: without it a fast thread writes its sum
into `part` while a slow one has yet to read the largest value from there.
"""

# %%
SOFTMAX = r"""
__global__ void softmax(const float* x, float* y, int n) {
  __shared__ float part[128];
  const float* row = x + (long long)blockIdx.x * n;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
  part[threadIdx.x] = most;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
    __syncthreads();
  }
  most = part[0];
  __syncthreads();
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - most);
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[(long long)blockIdx.x * n + i] = expf(row[i] - most) / part[0];
}
"""
file = folder / "softmax.cu"
_ = file.write_text(SOFTMAX)

# %% [markdown]
"""
## Twelve steps

A port asks twelve questions, in an order in which each may rely on the ones before. What is in
the file, how is it launched, does it fit into a worker. Do all threads meet every barrier,
whatever the data. Which memory is read and written, and may it be cached. Does it wait for other
blocks, or count on their order. Then the task is written, compiled, and run beside the original,
which itself is run several times with other junk in its memory: a kernel that gives two answers
is not worth porting.

A kernel is launched with a grid and a block; a file that holds only the kernel does not say
which, so we do. `arguments` are those of a run. Their shapes matter, since the run sees only the
paths that they lead to; their values are yours.
"""

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((6, 100), np.float32)
arguments = {"x": x, "y": np.zeros_like(x), "n": 100}
report = port_file(
    file, grid=(6, 1, 1), block=(128, 1, 1), arguments=arguments, out=folder / "ops", run=can_run
)
for step in report.steps:
    print(
        f"{step.number:2} {step.name:16} {step.state:8} {step.lines[0] if step.lines else ''}"[:96]
    )
print("verdict:", report.verdict, "with equal bits" if report.ran else "(not run here)")
assert report.verdict == "ported"

# %% [markdown]
"""
## What was written

A folder with the op's declaration and its body. Compare the body with the kernel: it is the same
text, with the names `blockIdx` and `threadIdx` bound to the record and to the 256 threads that a
worker computes with. Barriers became barriers of those threads, and shared memory became a part
of the worker's own.

What was an index of the hardware is now a question of convention:
"""

# %% [markdown] tab="CUDA"
"""
In CUDA C++ the body is still text in threads. Macros give the names `blockIdx`, `threadIdx` and
`__syncthreads` their new meaning for this one body, in a namespace of its own, so that two ports
in one file cannot meet. A block of 128 threads takes half of a worker's 256, and the other half
waits at the end.
"""

# %% [markdown] tab="Numba"
"""
Numba kernels are ported with `mkport port FILE.py`. A function under `@cuda.jit` becomes such a
CUDA body. A loop under `@njit` becomes a CPU body, Python as before, whose outer loop over rows
or blocks is the one that is cut: what one turn of it does is the tile.
"""

# %% [markdown]
"""
The declaration is careful. Whole tensors are read and written, since nobody has said which part a
block touches; that orders this op after everything before it. You may replace it by the exact
boxes, and more can run side by side.
"""

# %%
print(sorted(path.name for path in (folder / "ops" / "softmax").iterdir()))
task = report.files["task.cuh"]
print("\n".join(task.splitlines()[:14]), "\n...")

# %% [markdown]
"""
## Alone, and in a chain

The ported op is an op like any other: it can be planned, dealt and verified. Here it runs three
times in one step, each time on the result of the time before, on two workers.
"""

# %%
(op,) = ops_in(folder / "ops").values()
grid = {"grid_x": 6} | {arg.name: 1 for arg in op.args if arg.name in ("grid_y", "grid_z")}
graph, _ = graph_with(op, {**arguments, **grid}, times=3)
print(verify(deal(graph, workers=2)))
if can_run:
    y = run_port(op, {**arguments, **grid})["y"]
    odds = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    truth = odds / odds.sum(axis=1, keepdims=True)
    print("largest error", np.abs(y - truth).max())
    assert np.abs(y - truth).max() < 1e-6

# %% [markdown]
"""
## A refusal

Now a kernel that cannot be a task. Its blocks wait for each other: the last one to arrive adds up
what the others have left. In a megakernel blocks have no such order; a tile may run long before
another one, or on the same worker. The port finds the line and says what to do instead: make two
kernels of it, and let the counter between them be the schedule's.
"""

# %%
WAITS = r"""
__global__ void total(const float* x, float* partial, float* y, int* arrived, int n) {
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int i = blockIdx.x; i < n; i += gridDim.x) sum += x[i];
    partial[blockIdx.x] = sum;
    atomicAdd(arrived, 1);
    while (atomicAdd(arrived, 0) < (int)gridDim.x) {
    }
    if (blockIdx.x == 0)
      for (int b = 0; b < (int)gridDim.x; b++) y[0] += partial[b];
  }
}
"""
(folder / "total.cu").write_text(WAITS)
refused = port_file(folder / "total.cu", grid=(4, 1, 1), block=(128, 1, 1), run=False)
for finding in refused.refusals:
    print(f"{finding.code}, line {finding.line}: {finding.cause}\n  {finding.fix}")
assert refused.verdict == "refused" and refused.refusals

# %% [markdown]
"""
## Try it

Break the softmax and see who notices. Take out the second `__syncthreads()`: the port refuses
nothing, as the text alone cannot show it, but the original, run under several orders of its
threads, gives two answers or reads what another thread is just writing, and the report says which
line. Put a `return` for some threads before a barrier, as many kernels do for columns past the
end: on a GPU that happens to work or hangs, depending on the chip; here it is a refusal with a
line.

Declare `x` immutable with `--immutable x` and look at `op.py`: the access has another mode, so in
a schedule this op may fetch its input before anything it waits for is over. Now lie: name
something immutable that an earlier op writes. The verifier of the schedule finds it, and names
both.
"""

# %% [markdown]
"""
Each finding has a code, and the documentation has a page for each code: the kernel that shows it,
why it cannot be a task, and how to change it.

## By hand

A port is a beginning: correct, and not yet fast. The body does everything itself: it waits for
memory, computes, writes. To let bytes run ahead it has to be split by roles, which is work for a
person. If you would rather start from nothing, `mkport new` writes a whole op with a trivial
body: oracle, ordinary kernels for both machines, tasks for both, declaration, and a test. All of
it passes as it is written, so you change one file after another and check again.
"""

# %%
files = new_op("mine", folder / "own")
print([path.name for path in files])
said = prove(f"mkport check mine --ops {folder / 'own'} --form standalone")
assert "mine" in said
