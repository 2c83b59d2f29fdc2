"""The contestants of a decode benchmark: each loads a model and decodes greedily from a prompt.

A contestant runs in a process of its own (`child.py`), so that nobody else's threads or memory
are in its way. Imports are inside: a contestant needs only its own packages.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import mkport
from mkport.errors import UserError
from mkport.extras import install

Prompts = list[list[int]]
FLOAT32 = "transformers float32"  # the contestant that reads prompts fastest on most CPUs


class Contestant(Protocol):
    """Decodes greedily from prompts of one length, side by side."""

    versions: dict[str, str]

    def decode(self, prompts: Prompts, tokens: int) -> tuple[list[list[int]], float]:
        """Runs the prompts, then decodes greedily from each of them at the same time.

        Returns the ids of `tokens` decode steps, [prompts][tokens], without the prompt's own next
        token, and the wall seconds of those steps alone. All prompts are of one length.
        """
        ...

    def logits(self, prompt: list[int]) -> list[float]:
        """The logits after `prompt` [ids] in one sequence: [vocabulary]."""
        ...


class Mkport:
    """The CPU machine, for `batch` sequences of `context` positions."""

    def __init__(self, directory: Path, threads: int, context: int, batch: int) -> None:
        from importlib.metadata import version

        from mkport.engine.decoder import Decoder
        from mkport.engine.load import load

        self.decoder = Decoder(load(str(directory)), batch=batch, context=context, workers=threads)
        self.versions = {"mkport": mkport.__version__}
        self.versions |= {name: version(name) for name in ("numba", "numpy")}

    def decode(self, prompts: Prompts, tokens: int) -> tuple[list[list[int]], float]:
        """Ids [prompts][tokens] and wall seconds of the decode steps: one step of the machine a
        token, all prompts in its batch.
        """
        steps = [[self.decoder.prefill(s, ids)[0] for s, ids in enumerate(prompts)]]
        started = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + tokens):
            steps.append(self._step(position, steps[-1]))
        seconds = time.perf_counter() - started
        return [list(ids) for ids in zip(*steps[1:], strict=True)], seconds

    def logits(self, prompt: list[int]) -> list[float]:
        """The logits after `prompt` [ids]: [vocabulary], float32, the step's own."""
        values: list[float] = self.decoder.prefill(0, prompt)[1].tolist()
        return values

    def prefill(self, prompt: list[int]) -> float:
        """Seconds to read `prompt` [ids], up to the logits after it."""
        started = time.perf_counter()
        self.decoder.prefill(0, prompt)
        return time.perf_counter() - started

    def host_share(self, prompts: Prompts, tokens: int) -> float:
        """The share of a decode step's time during which no worker was inside its list."""
        last = [self.decoder.prefill(s, ids)[0] for s, ids in enumerate(prompts)]
        inside = 0.0
        started = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + tokens):
            last = self._step(position, last, trace=True)
            times = self.decoder.machine.times
            begin, end = min(t[0, 0] for t in times), max(t[-1, 2] for t in times)
            inside += float(end - begin) / 1e9
        return 1 - inside / (time.perf_counter() - started)

    def _step(self, position: int, last: list[int], trace: bool = False) -> list[int]:
        rows = [(sequence, position, token) for sequence, token in enumerate(last)]
        choices, _ = self.decoder.step(rows, range(len(rows)), trace)
        return [int(choice) for choice in choices]


class Transformers:
    """`transformers` in eager mode or compiled, on the same weights; its cache has `context`
    positions if it is compiled, else it grows."""

    def __init__(
        self,
        directory: Path,
        threads: int,
        context: int,
        compiled: bool = False,
        dtype: str = "bfloat16",
    ) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch = torch
        # experts in one grouped product is the fastest of transformers' ways on a CPU
        experts = {"experts_implementation": "grouped_mm"} if _has_experts(directory) else {}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype), local_files_only=True, **experts
        ).eval()
        self.cache: Callable[[], Any] = transformers.DynamicCache
        self.step: Callable[..., Any] = self.model
        if compiled:
            config = self.model.config
            self.cache = lambda: transformers.StaticCache(config=config, max_cache_len=context)
            self.step = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}

    def decode(self, prompts: Prompts, tokens: int) -> tuple[list[list[int]], float]:
        """Ids [prompts][tokens] and wall seconds of the decode steps: one forward pass a token, all
        prompts in one batch.
        """
        torch = self.torch
        cache = self.cache()
        with torch.inference_mode():
            out = self.model(torch.tensor(prompts), past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            steps = []
            started = time.perf_counter()
            for position in range(len(prompts[0]), len(prompts[0]) + tokens):
                where = torch.tensor([position])
                out = self.step(
                    token, past_key_values=cache, use_cache=True, cache_position=where,
                    position_ids=where[None],
                )  # fmt: skip
                token = out.logits[:, -1:].argmax(-1)
                steps.append(token[:, 0].tolist())
            return [list(ids) for ids in zip(*steps, strict=True)], time.perf_counter() - started

    def prefill(self, prompt: list[int]) -> float:
        """Seconds to read `prompt` [ids] in one pass, up to the logits after it."""
        ids = self.torch.tensor([prompt])
        started = time.perf_counter()
        with self.torch.inference_mode():
            cache = self.cache()
            self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - started

    def logits(self, prompt: list[int]) -> list[float]:
        """The logits after a prompt, [vocabulary]: from a pass in the model's storage type."""
        with self.torch.inference_mode():
            values: list[float] = self.model(self.torch.tensor([prompt])).logits[0, -1].tolist()
        return values


class LlamaCpp:
    """llama.cpp through `llama-cpp-python`, on a bfloat16 GGUF of the same weights; `context` is in
    positions."""

    def __init__(self, gguf: Path, threads: int, context: int) -> None:
        import llama_cpp

        self.llama = llama_cpp.Llama(
            str(gguf), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.versions = {"llama-cpp-python": llama_cpp.__version__}

    def decode(self, prompts: Prompts, tokens: int) -> tuple[list[list[int]], float]:
        """Ids [prompts][tokens] and wall seconds of the decode steps: one `eval` a token.

        Raises ValueError for more than one prompt: the package has no call for more.
        """
        import numpy as np

        (prompt,) = prompts
        self.logits(prompt)
        token = int(np.argmax(self._row()))
        ids: list[int] = []
        started = time.perf_counter()
        for _ in range(tokens):
            self.llama.eval([token])
            token = int(np.argmax(self._row()))
            ids.append(token)
        return [ids], time.perf_counter() - started

    def logits(self, prompt: list[int]) -> list[float]:
        """The logits after `prompt` [ids]: [vocabulary], float32, out of the library's memory."""
        self.llama.reset()
        self.llama.eval(prompt)
        values: list[float] = self._row().tolist()
        return values

    def _row(self) -> Any:
        """The last token's logits, float32 [vocabulary], in the library's own memory."""
        import numpy as np

        row = self.llama._ctx.get_logits_ith(-1)
        return np.ctypeslib.as_array(row, (self.llama.n_vocab(),))


def _has_experts(directory: Path) -> bool:
    config = json.loads((directory / "config.json").read_text())
    return any(name in config for name in ("num_experts", "num_local_experts"))


def make(
    name: str, directory: Path, threads: int, context: int, batch: int, gguf: Path | None
) -> Contestant:
    """Loads a contestant by name, for `batch` sequences of `context` positions. Raises UserError
    naming the package that it lacks, or the contestant that there is not."""
    try:
        if name == "mkport":
            return Mkport(directory, threads, context, batch)
        if name == "transformers":
            return Transformers(directory, threads, context)
        if name == FLOAT32:
            return Transformers(directory, threads, context, dtype="float32")
        if name == "transformers compiled":
            return Transformers(directory, threads, context, compiled=True)
        if name == "llama.cpp" and gguf is not None:
            return LlamaCpp(gguf, threads, context)
    except ImportError as error:
        raise UserError(
            f"The contestant {name} lacks a package ({error}): {install('bench')}."
        ) from error
    raise UserError(f"There is no contestant {name!r}.")
