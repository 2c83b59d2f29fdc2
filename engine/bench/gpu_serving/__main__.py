"""The client's process: starts the one that serves, asks everything of it, writes one JSON."""

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mkport.engine.bench.decode import commit
from mkport.engine.bench.gpu_serving import behaviour, speeds
from mkport.engine.bench.gpu_serving.asks import Served, Sizes
from mkport.engine.bench.gpu_serving.model import write_config, write_tokenizer
from mkport.engine.bench.gpu_serving.page import page
from mkport.engine.child import prepare
from mkport.engine.synth import synthesise
from mkport.models.sizes import config_of

Data = dict[str, Any]
FAMILY = "cohere2_moe"
SIZES = {
    "full": Sizes(
        16384, 2.0, short=400, output=256, long=8192, grown=640, long_requests=7900, settle_s=1.0
    ),
    "tiny": Sizes(
        512, 2.0, short=30, output=160, long=400, grown=300, long_requests=24, settle_s=0.02
    ),
}
READY_S = 240.0
PACKAGES = ("cupy-cuda13x", "torch", "numpy", "fastapi", "uvicorn", "openai", "llguidance")


def main() -> None:
    """Measures one size of the model, or two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--page", type=Path, help="print a report as a page, measure nothing")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU machine")
    parser.add_argument("--profile", action="store_true", help="and which kernels take the time")
    parser.add_argument("--sizes", default="tiny,full", help="of the models on the GPU")
    parser.add_argument("--mixed-chunk", type=int, help="prompt tokens of a chunk beside others")
    given = parser.parse_args()
    if given.page:
        print(page(json.loads(given.page.read_text())), end="")
        return
    if not given.out:
        parser.error("--out says where the report goes")
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = ["tiny"] if given.tiny else given.sizes.split(",")
    machine = "cpu" if given.tiny else "cuda"
    report: Data = {
        "commit": commit(),
        "machine": machine,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "clock": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpu": _gpu() if machine == "cuda" else None,
        "runs": {},
    }
    for size in sizes:
        more = ["--profile"] if given.profile else []
        more += ["--mixed-chunk", str(given.mixed_chunk)] if given.mixed_chunk else []
        report["runs"][size] = measured(size, machine, given.out, more)
        text = json.dumps(report, indent=1)
        (given.out / "gpu_serving.json.part").write_text(text + "\n")
        os.replace(given.out / "gpu_serving.json.part", given.out / "gpu_serving.json")
    failed = False
    for size, run in report["runs"].items():
        print(f"== {size}", *summary(run), sep="\n", flush=True)
        failed = failed or bool(run["errors"])
    sys.exit(1 if failed else 0)


def measured(size: str, machine: str, out: Path, more: list[str]) -> Data:
    """Everything about one model; `more` options of its server [options]."""
    began = time.perf_counter()
    run: Data = {"size": size, "errors": {}}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / f"{FAMILY}-{size}"
        if machine == "cpu":
            synthesise(FAMILY, size, directory, "f32")
        else:
            write_config(directory, FAMILY, size)
        write_tokenizer(directory, config_of(FAMILY, size)["vocab_size"])
        log = out / f"server-{size}.log"
        bare = Path(folder) / "bare.json"
        try:
            with serving(directory, size, machine, bare, log, more) as served:
                run["ready_s"] = time.perf_counter() - began
                asked(run, served)
        except Exception:
            run["errors"]["server"] = traceback.format_exc()[-3000:]
        if bare.exists():
            run["bare"] = json.loads(bare.read_text())
            run["errors"] |= run["bare"].pop("errors")
        run["errors"] |= {"log": log.read_text()[-3000:]} if run["errors"] else {}
    compared(run)
    run["took_s"] = time.perf_counter() - began
    return run


@contextmanager
def serving(
    directory: Path, size: str, machine: str, bare: Path, log: Path, more: list[str]
) -> Iterator[Served]:
    """The server's process, ready, as long as the block lasts. Raises RuntimeError, naming the log,
    when it does not come up."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sizes = SIZES[size]
    command = (
        sys.executable, "-m", "mkport.engine.bench.gpu_serving.server",
        "--model", str(directory), "--port", str(port), "--bare", str(bare), "--machine", machine,
        "--context", str(sizes.context), "--contexts", str(sizes.contexts),
        *more,
    )  # fmt: skip
    with log.open("wb") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words, preexec_fn=prepare())
        try:
            until = time.monotonic() + READY_S
            while not _ready(f"http://127.0.0.1:{port}/ready"):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the server did not come up, see {log.name}")
                time.sleep(0.2)
            vocab = config_of(FAMILY, size)["vocab_size"]
            yield Served("127.0.0.1", port, directory.name, vocab, sizes)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def asked(run: Data, served: Served) -> None:
    """Every experiment; what fails is noted, and the rest goes on."""
    sizes = served.sizes
    experiments: dict[str, Callable[[Served], Data]] = {
        "warm": partial(speeds.crowd, count=2, seed=1),
        "crowd_1": partial(speeds.crowd, count=1, seed=10),
        "crowd_8": partial(speeds.crowd, count=8, seed=20),
        "first_token_short": partial(speeds.first_token, tokens=sizes.long // 8),
        "first_token": partial(speeds.first_token, tokens=sizes.long),
        "beside_long": speeds.beside_long,
        "follow_up": speeds.follow_up,
        "seeded": behaviour.seeded,
        "ragged": behaviour.ragged,
        "tool_call": behaviour.tool_call,
        "grammar_crowd": speeds.grammar_crowd,
        "disconnected": behaviour.disconnected,
        "preempted": behaviour.preempted,
    }
    for name, experiment in experiments.items():
        began = time.perf_counter()
        try:
            run[name] = experiment(served)
        except Exception:
            run["errors"][name] = traceback.format_exc()[-1500:]
        run.setdefault("seconds", {})[name] = time.perf_counter() - began
    run["stats"] = served.stats()


def compared(run: Data) -> None:
    """What engine and HTTP cost beside bare decode steps: shares of a bare step."""
    for batch in (1, 8):
        step = run.get("bare", {}).get(f"decode_{batch}", {}).get("median_ms")
        crowd = run.get(f"crowd_{batch}", {}).get("step_ms")
        if step and crowd:
            run[f"overhead_{batch}"] = crowd / step - 1


def summary(run: Data) -> Iterator[str]:
    """The lines that tell most."""
    bare = run.get("bare", {})
    for name in ("attention_off", "experts_off", "keys_off", "recorded", "legs_2048"):
        yield f"{name}: {bare.get(name)}"
    for name, found in bare.items():
        if isinstance(found, dict) and "median_ms" in found:
            queued = f", queued after {found['host_ms']}" if "host_ms" in found else ""
            yield f"bare {name}: {found['median_ms']:.2f} ms{queued}"
    for name, found in run.items():
        if name not in ("bare", "errors", "size"):
            yield f"{name}: {found}"
    for name, found in bare.items():
        if name.startswith("profile_"):
            yield f"{name}:\n{found}"
    for name, found in run["errors"].items():
        yield f"FAILED {name}:\n{found}"


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu() -> str:
    """What nvidia-smi says; this process leaves the GPU alone."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    main()
