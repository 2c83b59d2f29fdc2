"""Requests of lengths as people and programs send them, made from a seed.

The text is words in no order; only the lengths are meant to be like something. Nobody's data is
in here: both mixes are distributions with a few numbers, written down below.
"""

import math
import random
from collections.abc import Callable
from typing import Any

from mkport.engine.bench.serving.client import Ask

WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law"
).split()
TOKENS_A_WORD = 1.05  # of this list, with a space before each word

# People's chats, in the shape of the ShareGPT conversations that servers are usually measured on:
# log-normal, half of the prompts under 60 tokens with a long tail, answers about 150.
CHAT_PROMPT = (60, 1.1, 8, 1500)  # median, sigma of the logarithm, least, most; tokens
CHAT_ANSWER = (120, 0.7, 8, 400)

# A coding agent: one long beginning that all steps share, a talk that grows by what a tool said,
# and short answers.
AGENT_SYSTEM = 1500
AGENT_RESULT = (150, 0.9, 20, 900)
AGENT_ANSWER = (40, 0.6, 10, 120)
AGENT_STEPS = 6

Body = Callable[[list[dict[str, str]], int], dict[str, Any]]  # messages, answer's tokens


def words(draw: random.Random, tokens: int) -> str:
    """Text of about so many tokens."""
    return " ".join(draw.choices(WORDS, k=max(1, round(tokens / TOKENS_A_WORD))))


def lognormal(draw: random.Random, shape: tuple[float, float, int, int]) -> int:
    """A length: median, sigma of the logarithm, least, most."""
    median, sigma, least, most = shape
    return round(min(max(draw.lognormvariate(math.log(median), sigma), least), most))


def chats(count: int, body: Body, seed: int = 0) -> list[Ask]:
    """Separate questions with chat-like lengths."""
    draw = random.Random(seed)
    asks = []
    for _ in range(count):
        text = words(draw, lognormal(draw, CHAT_PROMPT))
        said = [{"role": "user", "content": text}]
        asks.append(Ask(body(said, lognormal(draw, CHAT_ANSWER)), label="chat"))
    return asks


def agents(count: int, body: Body, seed: int = 0) -> list[Ask]:
    """Steps of agents' talks: those of one talk in order, talks one after the other."""
    draw = random.Random(seed)
    system = {"role": "system", "content": words(draw, AGENT_SYSTEM)}
    asks: list[Ask] = []
    talk: list[dict[str, str]] = []
    for number in range(count):
        if number % AGENT_STEPS == 0:
            talk = [system, {"role": "user", "content": words(draw, 60)}]
        tokens = lognormal(draw, AGENT_ANSWER)
        asks.append(Ask(body(list(talk), tokens), label="agent"))
        talk.append({"role": "assistant", "content": words(draw, tokens)})
        talk.append({"role": "user", "content": words(draw, lognormal(draw, AGENT_RESULT))})
    return asks


def arriving(asks: list[Ask], a_second: float, seed: int = 0) -> list[Ask]:
    """The same requests in an open loop: so many a second on average, at random times."""
    draw, at = random.Random(seed), 0.0
    timed = []
    for ask in asks:
        timed.append(Ask(ask.body, at, label=ask.label))
        at += draw.expovariate(a_second)
    return timed
