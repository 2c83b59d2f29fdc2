"""The process that serves: it builds the engine, times and checks what it can without a server,
writes that down, and serves until it is told to stop.

    python -m mkport.engine.bench.gpu_serving.server --model DIR --port N --bare FILE
"""

import argparse
import json
import logging
import os
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mkport.engine.bench.gpu_serving import bare
from mkport.engine.bench.gpu_serving.model import Drawn, without_weights
from mkport.engine.capacity import Settings, plan_capacity, widths
from mkport.engine.engine import Engine
from mkport.engine.load import LoadedModel, load
from mkport.engine.runner import StepRunner
from mkport.engine.server import lifecycle
from mkport.engine.server.settings import Settings as ServerSettings
from mkport.engine.target import CpuTarget, Target

Data = dict[str, Any]


class Tried(CpuTarget):
    """The CPU machine in a GPU's part: few rows, prompts by PyTorch."""

    prefills = True
    most_rows: int | None = 8
    prompt_chunk, mixed_chunk = 256, 32


def main() -> None:
    """Serves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bare", type=Path, required=True, help="where the report goes")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--contexts", type=float, required=True, help="that the cache holds")
    parser.add_argument("--machine", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--checks-only", action="store_true", help="no times")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    listener = lifecycle.bind("127.0.0.1", given.port)
    said: Data = {"errors": {}}
    loaded, runner = built(given, said)
    timed(given, loaded.config.vocab, runner, said)
    temporary = given.bare.with_suffix(".part")
    temporary.write_text(json.dumps(said, indent=1))
    os.replace(temporary, given.bare)
    engine = Engine.over(runner, loaded.tokenizer, loaded.name, loaded.config.vocab, 256)
    listener.listen(lifecycle.BACKLOG)
    lifecycle.serve(engine, ServerSettings(), listener)


def built(given: argparse.Namespace, said: Data) -> tuple[LoadedModel, StepRunner]:
    """The model and its runner, and how long that took."""
    began = time.perf_counter()
    if given.machine == "cuda":
        target: Target = Drawn()
        loaded = without_weights(given.model)
    else:
        target, loaded = Tried(), load(str(given.model))
    config = loaded.config
    windowed = sum(map(bool, getattr(config, "windows", ()) or ()))
    each = 2 * config.kv_width * (2 if loaded.weights.dtype == "bf16" else 4)
    window = max(getattr(config, "windows", None) or (0,))
    reach = min(given.context, window + target.prompt_chunk)
    one = each * ((config.layers - windowed) * given.context + windowed * reach)
    settings = Settings(max_model_len=given.context, kv_memory=int(one * given.contexts), page=64)
    shape, limits = plan_capacity(loaded, settings, target)
    runner = StepRunner(loaded, shape, limits, widths(limits, target), None, target)
    said["built_s"] = time.perf_counter() - began
    said["limits"] = vars(limits)
    return loaded, runner


def timed(given: argparse.Namespace, vocab: int, runner: StepRunner, said: Data) -> None:
    """Checks and times; what goes wrong is noted, and the rest goes on."""
    bare.spread_tables(runner)
    tried(said, "attention_off", lambda: bare.check_attention(runner))
    tried(said, "experts_off", lambda: bare.check_experts(runner))
    tried(said, "keys_off", lambda: bare.check_pages(runner, vocab, min(200, given.context // 2)))
    if given.checks_only:
        return
    most = runner.limits.sequences
    at = min(1024, given.context // 4)
    steps = min(200, given.context // 4)
    for batch in sorted({1, most}):
        tried(said, f"decode_{batch}", partial(bare.decode, runner, batch, at, steps))
    for tokens in (512, 1024, 8192):
        if tokens <= given.context:
            tried(said, f"prompt_{tokens}", partial(bare.prompt, runner, vocab, tokens, 0))
            tried(said, f"profile_{tokens}", partial(bare.profile, runner, tokens))
    last = given.context - 512
    if last > 0:
        tried(said, "prompt_512_late", lambda: bare.prompt(runner, vocab, 512, last))


def tried(said: Data, name: str, call: Callable[[], Any]) -> None:
    """Notes what a call gives, or how it failed."""
    try:
        said[name] = call()
    except Exception:
        said["errors"][name] = traceback.format_exc()[-3000:]


if __name__ == "__main__":
    main()
