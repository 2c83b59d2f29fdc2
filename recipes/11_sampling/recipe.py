# %% [markdown]
"""
# Sampling and the batch

The step gives a row of logits: one number for each of some fifty thousand tokens. Which one is
written? Taking the largest is easy, and dull. Drawing one at random sounds simple as well, until
you ask for three things together: the same seed gives the same text; the text does not depend on
who else is in the batch; and the draw can be made on the machine itself, without sending fifty
thousand numbers to the host for each token.

This recipe builds a sampler that has all three, field by field, and then lets several sequences
run side by side.
"""

# %%
import numpy as np

from mkport.engine import noise
from mkport.engine.decoder import Decoder
from mkport.engine.grammar import Grammars
from mkport.engine.load import load
from mkport.engine.logprobs import token_logprob
from mkport.engine.request import Grammar, Sampling
from mkport.engine.sampled import GREEDY, Draw
from mkport.engine.sampling import Sampler, choose_all
from mkport.engine.text import OutputText
from mkport.engine.truncation import survivors
from mkport.learn.lesson import prove
from mkport.library import find_op
from mkport.testing import check_op, tiny

# %% [markdown]
"""
## From logits to odds

The odds of a token are `exp(logit / temperature)`. A low temperature makes the likely ones
likelier; at 0 only the best is left. Before the draw three filters may take tokens out. `top_k`
keeps the k best. `min_p` keeps what is at least so likely compared with the best. `top_p` keeps
the fewest tokens whose probabilities together reach p.

Each of the three has its reason. A model gives a tiny probability to thousands of tokens that
make no sense here, and together they are drawn every few sentences. `top_k` cuts the tail at a
fixed length, `top_p` and `min_p` where the model itself is unsure: after "two plus two is" few
tokens are left, after "once upon a" many.
"""

# %%
logits = np.array([2.0, 1.5, 1.4, 0.0, -1.0, -3.0], np.float32)
odds = np.exp(logits - logits.max())
print("probabilities", (odds / odds.sum()).round(3))
for name, left in {
    "top_k 3": survivors(logits, 0.0, 3, 1.0),
    "min_p 0.2": survivors(logits, 0.2, 0, 1.0),
    "top_p 0.8": survivors(logits, 0.0, 0, 0.8),
}.items():
    print(f"{name:10} leaves tokens {left.tolist()}")
assert survivors(logits, 0.0, 3, 1.0).tolist() == [0, 1, 2]

# %% [markdown]
"""
## Drawing with noise

The textbook way to draw is to add up probabilities until a random number is passed. That needs a
sum over the whole row, in some order. There is a better way. Give every token a noise of its own,
from the *Gumbel* distribution, add it to the logit, and take the largest. The winner is
distributed exactly as the softmax says. And "take the largest" can be done in pieces, in any
order, on any machine.

Where does the noise come from? Not from a generator that has a state: then the result would
depend on how often it was asked before. It is a *function* of (seed, choice, position, token):
the Philox generator, ten rounds of multiplications. Ask it for token 17 at position 5, now or
tomorrow, alone or in a batch, on a CPU or a GPU, and it gives the same number. The *choice* tells
apart the several answers that one request may ask for.
"""

# %%
draws = np.bincount(
    [noise.race(logits, seed=7, choice=0, position=p) for p in range(20_000)], minlength=6
)
print("drawn      ", (draws / draws.sum()).round(3))
assert np.abs(draws / draws.sum() - odds / odds.sum()).max() < 0.015
one, many = noise.gumbel(np.array([17]), 1, 0, 5), noise.gumbel(np.arange(99), 1, 0, 5)
assert one[0] == many[17], "whoever else is asked for"

# %% [markdown]
"""
## All fields of a request

A `Sampler` belongs to one output and applies everything its request asked for, in a fixed order:
penalties and biases, bans, temperature, filters, draw. Two rules are easy to get wrong. Log
probabilities are those of the model, before any of that. And a mistake in one row (a NaN, a
grammar that leaves nothing) ends that request and no other.
"""

# %%
wants = [
    Sampling(8, temperature=0.0),
    Sampling(8, temperature=0.8, top_p=0.9, seed=1),
    Sampling(8, temperature=0.8, logit_bias={5: 100.0}),
]
rows = np.stack([logits] * 3)
rows = np.concatenate([rows, np.full((1, 6), np.nan, np.float32)])
samplers = [Sampler(want, seed=want.seed or 0) for want in [*wants, wants[0]]]
chosen = choose_all(samplers, rows, [None] * 4, [10] * 4)
print(chosen[:3], type(chosen[3]).__name__, "for the row of NaN")
assert chosen[0] == 0 and chosen[2] == 5 and isinstance(chosen[3], Exception)
print("log probability of token 0:", round(token_logprob(logits, 0, 2, 10).logprob, 3))

# %% [markdown]
"""
## In the kernel

What you have seen so far is the definition, in NumPy. A server does all of it in the step itself:
the op `sample` changes blocks of a row as the request says and races them with the same noise,
and `sample_join` takes the best of the blocks. The host receives one integer for each row, and
the next step can begin at once.

Filters seem to need the whole row, sorted. They do not. The winner of the race over *all* tokens
is nearly always among those that the filters leave, and to know whether it is, one only has to
count and weigh the tokens that are larger: few, if the winner is any good. If it falls through,
the race goes on among the larger ones. Weights are whole numbers, so their sums have no order.
Both ops are held to the oracle like any other. Only a grammar keeps its row waiting: which tokens
may come next the host has to tell.
"""

# %% [markdown] tab="CPU"
"""
On a CPU the row of logits is in the same memory as everything else, so there is little to save:
the point is that `argmax` and `sample` are tasks which all workers share, and not a loop in
Python over 49,152 numbers after the step.
"""

# %% [markdown] tab="CUDA"
"""
On a GPU a row of logits is 200 KB that would cross a bus which is dozens of times slower than the
memory, and the next step would wait for the answer. With the draw in the kernel, the next step
reads the token from the GPU's own memory, and the host learns it while that step runs already.
"""

# %%
program = tiny.program("bf16")
for name in ("sample", "sample_join"):
    verdicts = check_op(find_op(name), form="ported", dtype="bf16", program=program)
    assert all(verdict.ok for verdict in verdicts)
    print(f"{name}: {len(verdicts)} cases")

# %% [markdown]
"""
## Side by side

Now a batch. Three sequences share each step: the weights are read once for all of them. Each has
its own position, its own pages and its own draw. The promise is that a sequence has the same bits
alone and in any company, so we decode each alone and compare the texts, token by token.
"""

# %%
model = load()
tokenizer = model.tokenizer
prompts = [tokenizer.encode(text) for text in ("The sea is", "Once upon a time", "Two plus")]
how = [GREEDY, Draw(temperature=0.8, seed=3), Draw(temperature=1.0, seed=4, choice=1)]


def decode(decoder, which, tokens=10):
    """The next tokens of some of the prompts, decoded side by side."""
    texts = {}
    for row, n in enumerate(which):
        token, _ = decoder.prefill(row, prompts[n], draw=how[n])
        texts[n] = [token]
    for step in range(tokens - 1):
        places = [(row, len(prompts[n]) + step, texts[n][-1]) for row, n in enumerate(which)]
        choices, _ = decoder.step(places, range(len(which)), draws=[how[n] for n in which])
        for row, n in enumerate(which):
            texts[n].append(int(choices[row]))
    return texts


with Decoder(model, batch=3, context=128, workers=2) as decoder:
    together = decode(decoder, [0, 1, 2])
    alone = {n: decode(decoder, [n])[n] for n in range(3)}
for n in range(3):
    print(repr(tokenizer.decode(prompts[n] + together[n])))
assert together == alone

# %% [markdown]
"""
## Text that is final

Tokens are not characters: an emoji may take four of them. And a request may name *stop strings*,
at which the text ends and of which nothing may be shown. So text is held back while it could
still become a stop string or is half a character, and not a moment longer.
"""

# %%
text = OutputText(tokenizer, stop=("three",))
pieces = [text.push(token) for token in tokenizer.encode("one two thr three four")]
print(pieces, "stopped at", text.stopped)
assert "".join(pieces) == "one two thr " and text.stopped == "three"

# %% [markdown]
"""
## Grammars

A request may ask that the answer *is* JSON of a given shape. Then a grammar says, at each place,
which tokens may come; all others are taken out before the draw. It is compiled before the first
token, so a schema that is wrong is refused at once. Grammars come with the extra `serve`
(in a clone: `pip install -e '.[serve]'`).
"""

# %%
grammars = Grammars(tokenizer, model.config.vocab)
matcher = grammars.matcher(Grammar("regex", "(yes|no)"))
bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")  # one for each token
allowed = {tokenizer.decode([token]) for token in np.flatnonzero(bits)}
print("it may begin with", sorted(allowed))
assert allowed == {"n", "no", "y", "ye", "yes"}

# %% [markdown]
"""
## Try it

Draw with temperature 0.1 and 5 and print the counts again. Change the seed, then the position,
then the choice, and see that each gives another draw; put them back, and the first one returns.
Ask for the noise of one token and of all of them, in any order, as often as you like.

Then look for the joint. Let one of the three sequences in the batch be a long prompt that is read
while the others write; let it be the first row or the last. The texts of the others must not
change by a token. If you ever find a case in which they do, it is a bug, and the seed and the
three prompts are all that is needed to report it: there is no state to lose.
"""

# %% [markdown]
"""
## New in the engine

- `engine/request.py`: a request and its events, as types.
- `engine/sampling.py`: every field of a request, in order.
- `engine/noise.py`: the noise, defined once for every machine.
- `engine/truncation.py`: top-k, min-p and top-p without sorting everything.
- `engine/logprobs.py`: log probabilities as the model gave them.
- `engine/sampled.py`: what a row tells the step of its draw.
- `engine/sampling_tables.py`: penalties, biases and masks where the step reads them.
- `engine/text.py`: text that is final; stop strings.
- `engine/grammar.py`: grammars as masks over tokens.
"""

# %%
said = prove("mkport check sample sample_join --dtype bf16 --form ported")
assert "sample" in said
