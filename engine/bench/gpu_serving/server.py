"""The process that serves: it starts the engine's, which times and checks what it can without a
server, and serves until it is told to stop.

    python -m mkport.engine.bench.gpu_serving.server --model DIR --port N --bare FILE ...
"""

import argparse
import logging
from pathlib import Path

from mkport.engine.bench.gpu_serving.build import build
from mkport.engine.bench.gpu_serving.model import without_weights
from mkport.engine.engine import Engine
from mkport.engine.server import lifecycle
from mkport.engine.server.settings import Settings


def main() -> None:
    """Serves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bare", type=Path, required=True, help="where the report goes")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--contexts", type=float, required=True, help="that the cache holds")
    parser.add_argument("--machine", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--profile", action="store_true", help="which kernels take the time")
    parser.add_argument("--mixed-chunk", type=int)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    listener = lifecycle.bind("127.0.0.1", given.port)
    options = {
        "model": given.model,
        "machine": given.machine,
        "context": given.context,
        "contexts": given.contexts,
        "profile": given.profile,
        "mixed_chunk": given.mixed_chunk,
        "report": given.bare,
    }
    model = without_weights(given.model)
    engine = Engine.apart(build, options, model.tokenizer, model.config.vocab)
    listener.listen(lifecycle.BACKLOG)
    lifecycle.serve(engine, Settings(), listener)


if __name__ == "__main__":
    main()
