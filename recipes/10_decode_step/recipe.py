# %% [markdown]
"""
# A whole decode step against the oracle

Nine recipes were about parts. Now the whole step of a real model runs as one megakernel and
writes text. The question that decides whether any of this is worth something is: *are the numbers
right?* Not plausible; right. A model with a wrong rotary angle or a lost expert still writes
fluent sentences, and that is the worst kind of bug there is.

So before we read a word of what the model says, its logits are held to a second implementation,
in plain NumPy and float64, which shares no code with the kernels.

The words once more, as all of them come together here. *Logits* are the scores that the model
gives to each of its 49,152 tokens as the next one. *Greedy* decoding takes the highest. The
*cache* holds keys and values of the tokens so far, and a *prompt* is what was there before the
first token is written.
"""

# %%
import numpy as np

from mkport.doctor import cpu_model
from mkport.engine.decoder import Decoder
from mkport.engine.evaluate import CORPUS, perplexity
from mkport.engine.generate import generate
from mkport.engine.load import load
from mkport.engine.prompt import encode_prompt
from mkport.engine.steps import plan_step
from mkport.engine.target import target_of
from mkport.learn.lesson import prove, show
from mkport.testing.reference import judge_logits
from mkport.trace import summarise
from mkport.trace.collect import collect
from mkport.verify import verify

# %% [markdown]
"""
## From a checkpoint to a machine

`load` opens the model. A `Decoder` then does what you did by hand so far: it builds the step
graph, deals it, verifies it, composes the file, allocates the cache and starts the workers. It
holds two machines that share weights and cache: one for a token of each sequence, and a wider one
that reads prompts in chunks. Both run the same bodies, so a prompt read in chunks leaves the same
bits in the cache as one read token by token.

Where the steps run is a *target*:
"""

# %% [markdown] tab="CPU"
"""
`Decoder(model, workers=2)` runs on threads. Weights are read from where the checkpoint's file was
mapped, so a model that is twice as large as memory would still start, and crawl.
"""

# %% [markdown] tab="CUDA"
"""
`Decoder(model, on="cuda")` copies the weights to the GPU, takes as many workers as it has
multiprocessors and launches the kernel once a step; `mkport run --machine cuda` does so. With
`host` in place of `cuda` the same CUDA source is built by your C++ compiler and run on the CPU,
thread by thread. That takes seconds for a token and needs no GPU: the tests use it.
"""

# %% [markdown]
"""
The rest of this recipe is the same for all of them.
"""

# %%
model = load()
decoder = Decoder(model, context=256, workers=2, all_logits=True, chunk=16)
planned = decoder.decode
print(f"{model.name}: {len(planned.schedule.graph.nodes)} nodes")
print(verify(planned.schedule))
again = plan_step(model, planned.shape, 2, target_of("cpu"))
assert again.program.digest == planned.program.digest, "the same model gives the same file"

# %% [markdown]
"""
## One step, by hand

A step takes tokens with their places, (sequence, position, token), and a list of rows whose
logits are wanted. It returns for each of these the likeliest next token and its logits. We feed a
sentence token by token, and before every step fill scratch and outputs with NaN: what a step does
not write it must not read.
"""

# %%
ids = model.tokenizer.encode("The quick brown fox jumps over the lazy")
logits = np.empty((len(ids), model.config.vocab), np.float32)
for position, token in enumerate(ids):
    decoder.machine.poison()
    choices, row = decoder.step([(0, position, token)], wanted=[0])
    logits[position] = row[0]
print("it goes on with", repr(model.tokenizer.decode([int(choices[0])])))

# %% [markdown]
"""
## The oracle's verdict

The reference runs the same sentence twice: in float64, which counts as the truth, and in float32,
which shows how far off honest float32 arithmetic is. The tolerance law allows twice that. The
greedy choices must be exact.
"""

# %%
verdict = judge_logits(model.config, model.weights, ids, model.weights.dtype, logits)
print(
    f"error {verdict.error:.2e}, allowed {verdict.allowed:.2e}, largest logit {verdict.scale:.1f}"
)
assert verdict.ok
assert int(choices[0]) == int(logits[-1].argmax())

# %% [markdown]
"""
## A chunk gives the same bits

Reading a prompt token by token is slow, as every step reads all the weights. The wider machine
takes 16 tokens a step. Each of them sees the others before it, so attention has to wait for the
keys of this very step. The result is compared bit for bit: in sequence 0 with what we have above.
"""

# %%
_, last = decoder.prefill(0, ids)
assert last.tobytes() == logits[-1].tobytes()
print("the same bits, token by token and in chunks")

# %% [markdown]
"""
## Text

A chat model expects a conversation in the form it was trained on; the checkpoint carries a
template for that, and `encode_prompt` applies it. Then the loop is short: read the prompt, take
the choice, feed it back, until an end token comes. Characters may be spread over several tokens,
so pieces of text are held back until they are whole.
"""

# %%
prompt = encode_prompt(model.tokenizer, "Name three colours.")
answer = generate(decoder, prompt, max_tokens=24)
print(answer.text)
print(f"{answer.tokens_per_second:.0f} tokens a second, {answer.reason}")
assert answer.ids and answer.text

# %% [markdown]
"""
## How good is it? Perplexity

One sentence proves that the arithmetic is right, not that nothing happens at position 200.
Perplexity looks at a longer text: how surprised is the model by each next token, on average? Two
engines with the same weights must give nearly the same number. It is a power: the exponential of
the mean surprise, so that 20 means as unsure as a fair choice among twenty tokens. Here a few
hundred tokens of the first chapter of *Alice* are enough; `mkport eval` takes all of it, and the
tests compare with `transformers`.
"""

# %%
text = model.tokenizer.encode(CORPUS.read_text(), add_special=False)[:128]
found = perplexity(decoder, text, window=128)
print(f"perplexity {found.perplexity:.2f} over {found.predicted} tokens")
assert 5 < found.perplexity < 100

# %% [markdown]
"""
## When it is wrong

Suppose the verdict had been bad. Where do you look? A step is a graph, so it can be cut:
`graph.first(n)` is the step up to its n-th node, with the same ops and the same file. Run it up
to each layer's end and compare the residual stream with the reference's; the first layer that is
off has the bug, and within it the same game goes on node by node. The tests do exactly that for
six model families against `transformers`, layer by layer, so that a wrong layer is named rather
than a wrong word.

Three mistakes are so common that each has a check of its own. Scratch that is read before it was
written: the poison shows it. A result that depends on who else is in the batch: rows are compared
alone and in company. And a model that asks for something nobody has implemented, such as an
unusual rotary scaling: it is refused by name when it is loaded, as it would write plausible
nonsense otherwise.
"""

# %% [markdown]
"""
## Where the time went

The last step is run once more with the clock on. Every task of every node is in the trace. Nearly
all of the time should go to products, since they read nearly all of the bytes.
"""

# %%
traces = []
for _ in range(3):
    decoder.step([(0, len(ids), 0)], [0], trace=True)
    caption = f"measured on {cpu_model()}, 2 threads: a decode step of SmolLM2-135M"
    traces.append(collect(decoder.machine, caption))
trace = min(traces, key=lambda one: one.span_ns)
summary = summarise(trace)
products = sum(op.busy_ns for op in summary.ops if op.op.startswith("gemm"))
busy = sum(op.busy_ns for op in summary.ops)
print(f"{trace.span_ns / 1e6:.1f} ms; products are {products / busy:.0%} of the work")
assert products > 0.5 * busy
show(trace, "10_decode_step")
decoder.close()

# %% [markdown]
"""
## New in the engine

- `engine/decoder.py`: steps of one model: tokens in, logits and choices out.
- `engine/steps.py`: machines of several widths over the same weights and cache.
- `engine/target.py`: where steps run, and what differs between the places.
- `engine/ran.py`: what a step gives, at once or later.
- `engine/generate.py`: the loop from a prompt to its end.
- `engine/prompt.py`: a person's words in the form that the model expects.
- `engine/tokenizer.py`: text to ids and back.
- `engine/token_bytes.py`: the exact bytes of a token, half a character included.
- `engine/template.py`: a checkpoint's own chat template, run in a sandbox.
- `engine/evaluate.py`: perplexity of a text.
"""

# %%
said = prove('mkport run "Name three colours." --max-tokens 12 --context 256')
assert said.strip()
