"""The verb `serve`: loads a model and serves it over HTTP until a signal ends it."""

import importlib.util
import re
import sys
from functools import partial
from typing import Annotated

import typer

from mkport.cli.options import MAX_BATCH, DtypeOption, ModelOption
from mkport.cli.output import JsonFlag, emit, progress
from mkport.engine.parsers import choose
from mkport.errors import UserError
from mkport.extras import install

NEEDED = (
    "fastapi",
    "httptools",
    "httpx",
    "llguidance",
    "prometheus_client",
    "pydantic",
    "uvicorn",
    "uvloop",
)
MAX_REPLICAS = 64
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def command(
    model: ModelOption = None,
    machine: Annotated[
        str, typer.Option("--machine", metavar="cpu|cuda", help="Where the model runs.")
    ] = "cpu",
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 is every network's.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="MKPORT_API_KEY",
            show_envvar=True,
            help="A key that every request must bring; none is asked for when left out.",
        ),
    ] = None,
    max_batch: Annotated[
        int,
        typer.Option("--max-batch", min=1, max=MAX_BATCH, help="Requests that run side by side."),
    ] = 8,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            "--kv-memory",
            metavar="SIZE",
            help="Memory for keys and values, such as 4GiB or 500MB; what the machine can spare "
            "when left out.",
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            min=2,
            help="Positions of a request, prompt and answer; when left out the model's limit, "
            "32768, or what the memory holds, whichever is least.",
        ),
    ] = None,
    prefill_chunk: Annotated[
        int | None,
        typer.Option(
            "--prefill-chunk", min=1, help="Prompt tokens that a step runs when nothing else does."
        ),
    ] = None,
    mixed_chunk: Annotated[
        int | None,
        typer.Option(
            "--mixed-chunk",
            min=1,
            help="Prompt tokens, of each prompt, that a step runs beside running requests, whose "
            "pause it bounds on a CPU.",
        ),
    ] = None,
    pause: Annotated[
        float | None,
        typer.Option(
            "--pause",
            metavar="MS",
            help="Milliseconds that a GPU reads of a prompt between two tokens of running "
            "requests; 20 when left out.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="plain|hermes|llama3|cohere",
            help="How the model writes reasoning and tool calls; by its chat template when left "
            "out.",
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", min=1, max=MAX_REPLICAS, help="Server processes behind the one address."
        ),
    ] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Serve a model over HTTP, the way OpenAI's API does; a page to try it is at /.

    The first SIGINT or SIGTERM lets running requests end, the second ends them.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Serving needs {', '.join(missing)}, not installed here: {install('serve')}."
        )
    if machine not in ("cpu", "cuda"):
        raise UserError(f"There is no machine {machine!r}: --machine takes cpu or cuda.")
    if api_key is not None and (not api_key.strip() or not api_key.isprintable()):
        raise UserError("The API key is empty or not printable. Give one, or leave --api-key out.")
    choose(None, form)
    memory = None if kv_memory is None else size(kv_memory)

    def told(what: str, address: str, **more: object) -> None:
        data = {**more, "url": address, "machine": machine}
        text = f"{what} at {address}, the page for people; {address}/v1 for clients"
        emit(data, as_json, lambda console: console.print(text, markup=False, soft_wrap=True))
        sys.stdout.flush()

    if replicas > 1:
        from mkport.engine.replicas import serve as serve_replicas

        ready = partial(told, f"{replicas} replicas", replicas=replicas)
        serve_replicas(replicas, host, port, own_arguments(sys.argv[2:]), ready)
        return
    from mkport.engine.server.start import start

    with progress("loading the model (compiled on first use)"):
        running = start(
            model,
            host=host,
            port=port,
            api_key=api_key,
            machine=machine,
            dtype=dtype,
            form=form,
            max_batch=max_batch,
            kv_memory=memory,
            max_model_len=max_model_len,
            prefill_chunk=prefill_chunk,
            mixed_chunk=mixed_chunk,
            pause_ms=pause,
        )
    told(running.engine.name, running.address, model=running.engine.name)
    running.serve()


def size(text: str) -> int:
    """Bytes of a size such as 500MB, 4GiB or 1000000. Raises UserError for anything else."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmg]i?|)b?", text.strip().lower())
    if found is None or (nbytes := int(float(found[1]) * _UNITS[found[2]])) < 1:
        raise UserError(f"--kv-memory {text[:40]!r} is not a size: write 4GiB, 500MB or bytes.")
    return nbytes


def own_arguments(given: list[str]) -> list[str]:
    """The options that each replica gets too: all but --host, --port and --replicas."""
    kept: list[str] = []
    skip = False
    for argument in given:
        name, has_value, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in ("--host", "--port", "--replicas"):
            skip = not has_value
        else:
            kept.append(argument)
    return kept
