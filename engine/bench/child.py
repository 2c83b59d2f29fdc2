"""One contestant's process: reads one JSON request a line, answers one JSON line."""

import json
import resource
import sys
from pathlib import Path

from mkport.engine.bench.contestants import make
from mkport.errors import UserError


def main() -> None:
    """Serves until standard input ends; the first line answers whether loading went well."""
    setup = json.loads(sys.argv[1])
    gguf = Path(setup["gguf"]) if setup["gguf"] else None
    try:
        contestant = make(
            setup["name"],
            Path(setup["directory"]),
            setup["threads"],
            setup["context"],
            setup["batch"],
            gguf,
        )
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"versions": contestant.versions}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "decode":
            ids, seconds = contestant.decode(request["prompts"], request["tokens"])
            answer: dict[str, object] = {"ids": ids, "seconds": seconds}
        elif request["what"] == "prefill":
            answer = {"seconds": contestant.prefill(request["prompt"])}  # type: ignore[attr-defined]
        elif request["what"] == "logits":
            answer = {"logits": contestant.logits(request["prompt"])}
        elif request["what"] == "host_share":
            share = contestant.host_share(request["prompts"], request["tokens"])  # type: ignore[attr-defined]
            answer = {"host_share": share}
        else:  # ru_maxrss is in KiB on Linux
            answer = {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
