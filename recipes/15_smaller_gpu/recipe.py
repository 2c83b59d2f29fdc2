# %% [markdown]
"""
# A smaller GPU

The numbers in the earlier recipes were those of a large data-centre GPU: 132 multiprocessors, 227
KB of shared memory for each block, 4.8 TB/s. Yours may have 24 of the first, 99 KB of the second,
and a quarter of a terabyte of the third. Megakernels that are written for one chip break on the
next in an ugly way: they hang, because more workers were launched than can be resident, or they
fail to launch at all.

Here nothing of that is written down in a kernel. The workers are counted when the machine is
there, the shared memory is divided when its size is known, and the schedule is dealt after that.
This recipe goes through the three, without a GPU.

A reminder of the words: a GPU is some dozens of *multiprocessors*, each with a fast memory of its
own that the threads of a block *share*, in front of one large memory for all. One worker is one
block of threads on one multiprocessor. (As the whole recipe is about GPUs, it has no tabs.)
"""

# %%
from mkport.compose.cuda import MAX_ROWS, compose_cuda
from mkport.compose.cuda_constants import CONSTANTS
from mkport.engine import cuda_target
from mkport.errors import UserError
from mkport.learn.lesson import prove, show
from mkport.machines.cuda.layout import shared_of
from mkport.machines.cuda.nvrtc import find, nvrtc
from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import deal
from mkport.plan.bytes import step_bytes
from mkport.trace import summarise
from mkport.trace.simulate import Costs, simulate
from mkport.verify import Refused, verify

# %% [markdown]
"""
## Three chips

Multiprocessors, shared memory that a block may have, bandwidth, from their data sheets: a large
chip, the large chip of the generation before, and a card for small servers, whose shared memory
is that of most consumer cards too. The model is a Llama of half SmolLM2's depth.
"""

# %%
KIB = 1024
CHIPS = {
    "H200": (132, 227 * KIB, 4.8e12),
    "A100": (108, 163 * KIB, 2.0e12),
    "L4": (58, 99 * KIB, 0.30e12),
}
SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
fields = config_of("llama", "small") | SIZES
config = parse_config(fields)
graph = family_of(fields).build(config, StepShape(rows=1, context=2048))
nbytes = step_bytes(graph, 1, 1024)
for name, (workers, _, bandwidth) in CHIPS.items():
    print(f"{name:5} {workers:4} workers, at most {bandwidth / nbytes:7.0f} tokens/s")

# %% [markdown]
"""
## Workers that are really there

A worker waits by spinning. If two workers had to share one multiprocessor in turns, the one that
spins might never let the other in. So all workers must be *resident* at the same time, and a
schedule for more workers than that is refused before it is launched; the driver is asked for a
cooperative launch, which makes the same promise in hardware.

Ordinary kernels need not care: a block that finds no room is started later, when another one has
ended. Workers of a megakernel end only with the step.
"""

# %%
schedule = deal(graph, workers=132, share="strided")
try:
    verify(schedule, resident=58)
    raise AssertionError("it should have been refused")
except Refused as refused:
    print(refused)

# %% [markdown]
"""
Dealt again for 58, the same graph is fine. That is a matter of milliseconds, as dealing is
arithmetic on lists; no code is compiled again.
"""

# %%
schedules = {}
for name, (workers, _, _) in CHIPS.items():
    schedules[name] = deal(graph, workers, share="strided")
    print(f"{name:5} {verify(schedules[name], resident=workers)}")

# %% [markdown]
"""
## Shared memory

A block's shared memory is divided into three parts: what is always needed, stage buffers in which
a record's inputs lie, and the *ring*, through which weights stream ahead of their use. The ring
gets whatever is left. On a small chip it is short, and the loader cannot run far ahead; where
there is no room for one chunk, the layout is refused with the numbers. Wide batches need larger
stage buffers, so a small chip may hold fewer tokens in a step. A *chunk* is what the loader asks
for at once: some rows of a weight, with a barrier that opens when they have arrived.
"""


# %%
def layout_on(name, graph, cache):
    """The division of a block's shared memory on a chip. Raises UserError."""
    workers, shared, _ = CHIPS[name]
    dealt = deal(graph, workers, share="strided")
    program = compose_cuda(dealt.graph.ops, "bf16", cache, rows=1)
    return shared_of(program, dealt, shared)


rings = {}
for name in CHIPS:
    try:
        layout = layout_on(name, graph, "bf16")
    except UserError as error:
        print(f"{name:5} refused: {error}")
        continue
    rings[name] = layout.ring
    chunks = layout.ring // CONSTANTS["CHUNK_BYTES"]
    print(f"{name:5} stage {layout.stage:,} bytes, ring {layout.ring:,} bytes, {chunks} chunks")
assert rings["H200"] > rings["A100"]

# %% [markdown]
"""
On the small card one chunk is all: attention over a bfloat16 cache keeps the queries of eight
heads and the partial sums of eight warps. A float32 cache takes the plain path, which keeps much
less, and leaves more to the ring. With more tokens in a step the card is refused, and a refusal
with numbers in it is something one can work with.
"""

# %%
plain = family_of(fields).build(config, StepShape(rows=1, context=2048, cache="f32"))
more = layout_on("L4", plain, "f32").ring
print(f"L4 with a float32 cache: ring {more >> 10} KiB")
assert rings["A100"] > more > rings["L4"] >= CONSTANTS["CHUNK_BYTES"]

# %% [markdown]
"""
## What the ring is worth

We simulate a step on each chip, with the ring that it has and with none. A worker gets its share
of the bandwidth; a task costs 700 ns and a signal one microsecond everywhere, which is roughly
so. The gaps are the same number of microseconds on all chips, while the bytes take longer on a
slow one. So the faster the memory, the further a step stays from its bound, and a small model on
a large chip is the hardest case of all. The ring takes a part of the gaps back, on each of them.
"""

# %%
gains, shares = {}, {}
for name, (workers, _, bandwidth) in CHIPS.items():
    spans = []
    for ahead in (0, rings[name]):
        costs = Costs(bandwidth / workers, task_ns=700, signal_ns=1000, ahead=ahead)
        trace = simulate(schedules[name], costs, f"a step on an {name}", context=1024)
        spans.append(trace.span_ns)
    gains[name] = spans[0] / spans[1]
    shares[name] = nbytes / bandwidth * 1e9 / spans[1]
    told = f"{spans[1] / 1000:6.0f} us, {shares[name]:4.0%} of the bound"
    print(f"{name:5} {told}; {gains[name]:.2f}x by the ring")
    if name == "L4":
        show(trace, "15_smaller_gpu", "The first 100 us of a step on the small card", 100_000)
        print(f"{summarise(trace).busy:.0%} busy")
assert shares["H200"] < shares["A100"] < shares["L4"] < 1 and min(gains.values()) > 1

# %% [markdown]
"""
## Compiling for a chip that is not here

The composed CUDA file has no chip in it either: tensor-core instructions that every chip since
2020 has, and a handful of primitives in one header that differ. NVRTC compiles it for any of
them, with no GPU and no driver, in the time it takes to read this paragraph. Where NVRTC is not
installed, this cell says so and goes on.
"""

# %%
if find() is None:
    print("NVRTC is not here: pip install nvidia-cuda-nvrtc")
else:
    made = nvrtc().compile(compose_cuda(graph.ops[:2], "bf16", "bf16").source, "sm_80")
    print(
        f"for sm_80: {len(made.cubin):,} bytes, {made.registers['megakernel']} registers a thread"
    )
    assert made.cubin

# %% [markdown]
"""
## What else differs

*The L2 cache.* On a card with 72 MB of it, a small model's weights may stay there from step to
step; then the bound is the cache's bandwidth, which no data sheet names. Measure before you
believe a number above 100 %.

*Clocks and power.* Workers that spin draw power too, and a card with a tight limit lowers its
clock for it. Write the clock down beside a measurement.

*The display.* A card that also draws a screen may stop kernels that run for seconds. One step
takes milliseconds, and the kernel ends after it, so that never matters here.

*Older chips.* Everything needs compute capability 8.0: the tensor-core instruction and the
asynchronous copies that it brought. Older ones are refused by name, before anything is compiled.
"""

# %% [markdown]
"""
## On the chip itself

`mkport run --machine cuda` asks the device for its multiprocessors and its shared memory and does
all of the above in a second or two. If you have a GPU that nobody here has tried, `mkport check
--machine cuda` and then `python -m mkport.testing.gpu_check` tell you in a few minutes whether it
computes what it should; the report is worth sending in, right or wrong.

- `engine/cuda_target.py`: a model's steps on a GPU: weights, page tables, inputs, steps that
  follow each other.
- `engine/cuda_ahead.py`: steps that are queued there before the host knows what came before.
"""

# %%
print(f"a step on a GPU holds at most {cuda_target.MAX_ROWS} tokens")
assert cuda_target.MAX_ROWS == MAX_ROWS
said = prove("mkport verify --workers 58 --context 1024")
assert "58 workers" in said
