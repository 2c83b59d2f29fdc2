"""Random requests from several clients at once, some of them cancelled, on a cache that is too
small for them: what each gets is what it gets alone."""

import random
import threading
from pathlib import Path

import pytest

from mkport.engine.engine import Engine, Output, collect
from mkport.engine.load import LoadedModel, load
from mkport.engine.loop import Loop
from mkport.engine.request import Sampling
from mkport.engine.synth import synthesise
from tests.engine.checkpoints import one_program

CLIENTS, CONTEXT, VOCAB = 6, 256, 288
Request = tuple[list[int], Sampling, int]


def requests(count: int, seed: int) -> list[Request]:
    """Prompts that often begin alike, with all kinds of sampling."""
    draw = random.Random(seed)
    texts = [[draw.randrange(VOCAB) for _ in range(draw.randint(1, 200))] for _ in range(12)]
    found: list[Request] = []
    for _ in range(count):
        text = draw.choice(texts)
        more = [draw.randrange(VOCAB) for _ in range(draw.choice([0, 0, 5, 20]))]
        sampling = Sampling(
            draw.randint(30, 120),
            temperature=draw.choice([0.0, 1.0]),
            seed=draw.randrange(10**9),
            top_p=draw.choice([1.0, 0.9]),
            repetition_penalty=draw.choice([1.0, 1.3]),
            logprobs=draw.choice([None, 1]),
            ignore_eos=True,
        )
        prompt = [*text[: draw.randint(1, len(text))], *more][:130]
        found.append((prompt, sampling, draw.choice([1, 1, 2, 3])))
    return found


def served(engine: Engine, asked: list[Request]) -> list[tuple[Request, list[Output]]]:
    """What the clients got who did not leave: each asks one thing after the other, and leaves one
    in five."""
    got: list[tuple[Request, list[Output]]] = []

    def client(number: int) -> None:
        draw = random.Random(number)
        for prompt, sampling, n in asked[number::CLIENTS]:
            stream = engine.submit(prompt, sampling, n)
            if draw.random() < 0.2:
                for _ in range(draw.randint(0, 10)):
                    next(stream)
                stream.cancel()
                collect(stream, n)
            else:
                got.append(((prompt, sampling, n), collect(stream, n)))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("cohere2_moe", 24),
        pytest.param("llama", 150, marks=pytest.mark.slow),
        pytest.param("cohere2_moe", 150, marks=pytest.mark.slow),
    ],
)
def test_what_each_gets_is_what_it_gets_alone(tmp_path: Path, family: str, count: int) -> None:
    synthesise(family, "tiny", tmp_path / "model", "f32", seed=3)
    model: LoadedModel = load(str(tmp_path / "model"))
    one = model.config.layers * 2 * model.config.kv_width * CONTEXT * 4
    asked = requests(count, seed=count)
    with one_program():
        crowded = Engine(
            model, max_batch=6, max_model_len=CONTEXT, page=16, kv_memory=int(1.15 * one), workers=2
        )
        lone = Engine(
            model, max_batch=1, max_model_len=CONTEXT, page=16, prefix_cache=False, workers=1
        )
    with crowded, lone:
        got = served(crowded, asked)
        assert len(got) > count // 2
        for (prompt, sampling, n), outputs in got:
            assert collect(lone.submit(prompt, sampling, n), n) == outputs
        stats = crowded.stats()
        assert count < 100 or (stats.preemptions > 0 and stats.prefix_hits > 0)
        assert isinstance(crowded._loop, Loop)
        crowded._loop.core.scheduler.check()
