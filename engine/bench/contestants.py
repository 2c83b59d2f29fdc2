"""The contestants of a decode benchmark: each loads a model and decodes greedily from a prompt.

A contestant runs in a process of its own (`child.py`), so that nobody else's threads or memory
are in its way. Imports are inside: a contestant needs only its own packages.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import mkport
from mkport.errors import UserError


class Contestant(Protocol):
    """Decodes greedily, always from the same prompt."""

    versions: dict[str, str]

    def decode(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        """The ids of `tokens` decode steps after the prompt, and the seconds that they took."""
        ...


class Mkport:
    """The CPU machine."""

    def __init__(self, directory: Path, threads: int, context: int) -> None:
        from importlib.metadata import version

        from mkport.engine.decoder import Decoder
        from mkport.engine.load import load

        self.decoder = Decoder(load(str(directory)), context=context, workers=threads)
        self.versions = {"mkport": mkport.__version__}
        self.versions |= {name: version(name) for name in ("numba", "numpy")}

    def decode(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        token, _ = self.decoder.prefill(0, prompt)
        ids: list[int] = []
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + tokens):
            choice, _ = self.decoder.step([(0, position, token)], [0])
            token = int(choice[0])
            ids.append(token)
        return ids, time.perf_counter() - started

    def host_share(self, prompt: list[int], tokens: int) -> float:
        """The share of a decode step's time during which no worker was inside its list."""
        token, _ = self.decoder.prefill(0, prompt)
        inside = 0.0
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + tokens):
            choice, _ = self.decoder.step([(0, position, token)], [0], trace=True)
            token = int(choice[0])
            times = self.decoder.machine.times
            first, last = min(t[0, 0] for t in times), max(t[-1, 2] for t in times)
            inside += float(last - first) / 1e9
        return 1 - inside / (time.perf_counter() - started)


class Transformers:
    """`transformers` in eager mode or compiled, on the same weights."""

    def __init__(self, directory: Path, threads: int, context: int, compiled: bool = False) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.bfloat16, local_files_only=True
        ).eval()
        self.cache: Callable[[], Any] = transformers.DynamicCache
        self.step: Callable[..., Any] = self.model
        if compiled:
            config = self.model.config
            self.cache = lambda: transformers.StaticCache(config=config, max_cache_len=context)
            self.step = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}

    def decode(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        torch = self.torch
        cache = self.cache()
        with torch.inference_mode():
            out = self.model(torch.tensor([prompt]), past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            ids: list[int] = []
            started = time.perf_counter()
            for position in range(len(prompt), len(prompt) + tokens):
                where = torch.tensor([position])
                out = self.step(
                    token, past_key_values=cache, use_cache=True, cache_position=where,
                    position_ids=where[None],
                )  # fmt: skip
                token = out.logits[:, -1:].argmax(-1)
                ids.append(int(token))
            return ids, time.perf_counter() - started


class LlamaCpp:
    """llama.cpp through `llama-cpp-python`, on a bfloat16 GGUF of the same weights."""

    def __init__(self, gguf: Path, threads: int, context: int) -> None:
        import llama_cpp

        self.llama = llama_cpp.Llama(
            str(gguf), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.versions = {"llama-cpp-python": llama_cpp.__version__}

    def decode(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        import numpy as np

        self.llama.reset()
        self.llama.eval(prompt)

        def choose() -> int:
            row = self.llama._ctx.get_logits_ith(-1)
            return int(np.argmax(np.ctypeslib.as_array(row, (self.llama.n_vocab(),))))

        token = choose()
        ids: list[int] = []
        started = time.perf_counter()
        for _ in range(tokens):
            self.llama.eval([token])
            token = choose()
            ids.append(token)
        return ids, time.perf_counter() - started


def make(name: str, directory: Path, threads: int, context: int, gguf: Path | None) -> Contestant:
    """Loads a contestant by name. Raises UserError naming the package that it lacks."""
    try:
        if name == "mkport":
            return Mkport(directory, threads, context)
        if name == "transformers":
            return Transformers(directory, threads, context)
        if name == "transformers compiled":
            return Transformers(directory, threads, context, compiled=True)
        if name == "llama.cpp" and gguf is not None:
            return LlamaCpp(gguf, threads, context)
    except ImportError as error:
        raise UserError(
            f'The contestant {name} lacks a package ({error}): pip install "mkport[bench]".'
        ) from error
    raise UserError(f"There is no contestant {name!r}.")
