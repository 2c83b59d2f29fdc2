"""What the engine's process builds: a runner, timed and checked before anybody is served; what was
found is written to a file."""

import json
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mkport.engine.bench.gpu_serving import bare
from mkport.engine.bench.gpu_serving.model import Drawn, without_weights
from mkport.engine.build import Built
from mkport.engine.capacity import Settings, plan_capacity, widths
from mkport.engine.load import LoadedModel, load
from mkport.engine.runner import StepRunner
from mkport.engine.target import CpuTarget, Target
from mkport.files import replace_file

Data = dict[str, Any]


class Tried(CpuTarget):
    """The CPU machine in a GPU's part: few rows, prompts by PyTorch."""

    prefills = True
    most_rows: int | None = 8
    prompt_chunk, mixed_chunk = 256, 32
    ahead = 1


def build(
    model: Path, machine: str, context: int, contexts: float, profile: bool, report: Path,
    mixed_chunk: int | None = None,
) -> Built:  # fmt: skip
    """A runner whose cache holds `contexts` full contexts of `context` positions; `mixed_chunk` in
    prompt tokens."""
    said: Data = {"errors": {}}
    loaded, runner = built(model, machine, context, contexts, said, mixed_chunk)
    timed(loaded.config.vocab, runner, said)
    if profile:  # last: launches take the host longer from then on
        profiled(loaded.config.vocab, runner, said)
    replace_file(report, lambda part: part.write_text(json.dumps(said, indent=1)))
    return Built(runner, loaded.tokenizer, loaded.name, loaded.config.vocab)


def built(
    model: Path, machine: str, context: int, contexts: float, said: Data,
    mixed_chunk: int | None = None,
) -> tuple[LoadedModel, StepRunner]:  # fmt: skip
    """The model and its runner, and how long that took; `context` in positions, `mixed_chunk` in
    prompt tokens."""
    began = time.perf_counter()
    if machine == "cuda":
        target: Target = Drawn()
        loaded = without_weights(model)
    else:
        target, loaded = Tried(), load(str(model))
    config = loaded.config
    windowed = sum(map(bool, getattr(config, "windows", ()) or ()))
    each = 2 * config.kv_width * (2 if loaded.weights.dtype == "bf16" else 4)
    window = max(getattr(config, "windows", None) or (0,))
    reach = min(context, window + target.prompt_chunk)
    one = each * ((config.layers - windowed) * context + windowed * reach)
    memory = int(one * contexts)
    settings = Settings(max_model_len=context, kv_memory=memory, mixed_chunk=mixed_chunk, page=64)
    shape, limits = plan_capacity(loaded, settings, target)
    runner = StepRunner(loaded, shape, limits, widths(limits, target), None, target)
    said["built_s"] = time.perf_counter() - began
    said["limits"] = vars(limits)
    said["recorded"] = runner.prefill.recorded if runner.prefill else None
    return loaded, runner


def timed(vocab: int, runner: StepRunner, said: Data) -> None:
    """Checks and times; what goes wrong is noted, and the rest goes on."""
    bare.spread_tables(runner)
    tried(said, "attention_off", lambda: bare.check_attention(runner))
    tried(said, "experts_off", lambda: bare.check_experts(runner))
    tried(
        said,
        "keys_off",
        lambda: bare.check_pages(runner, vocab, min(200, runner.limits.context // 2)),
    )
    most = runner.limits.sequences
    at = min(1024, runner.limits.context // 4)
    steps = min(200, runner.limits.context // 4)
    for batch in sorted({1, most}):
        tried(said, f"decode_{batch}", partial(bare.decode, runner, batch, at, steps))
    for tokens in (64, 512, 1024, 8192):
        if tokens <= runner.limits.context:
            tried(said, f"prompt_{tokens}", partial(bare.prompt, runner, vocab, tokens, 0))
    if runner.limits.context >= 2048:
        tried(said, "legs_2048", lambda: bare.legs(runner, vocab, 2048))
    last = runner.limits.context - 512
    if last > 0:
        tried(said, "prompt_512_late", lambda: bare.prompt(runner, vocab, 512, last))


def profiled(vocab: int, runner: StepRunner, said: Data) -> None:
    """Where the GPU's time goes, by kernel."""
    for tokens in (64, 512, 8192):
        if tokens <= runner.limits.context:
            tried(said, f"profile_{tokens}", partial(bare.profile, runner, vocab, tokens))


def tried(said: Data, name: str, call: Callable[[], Any]) -> None:
    """Notes what a call gives, or how it failed."""
    try:
        said[name] = call()
    except Exception:
        said["errors"][name] = traceback.format_exc()[-3000:]
