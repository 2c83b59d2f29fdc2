"""The verb `run`: generates text. The text is alone on stdout; how it went is told on stderr."""

import sys
from typing import Annotated

import typer

from mkport.cli.options import (
    ContextOption,
    DtypeOption,
    MachineOption,
    ModelOption,
    ScanOption,
    WorkersOption,
    open_decoder,
    open_model,
)
from mkport.cli.output import JsonFlag, emit
from mkport.engine.decoder import check_prompt, decode_shape, prompt_chunk
from mkport.engine.generate import Generation, generate
from mkport.engine.prompt import encode_prompt
from mkport.engine.sampled import Draw
from mkport.errors import UserError

MAX_TEMPERATURE = 100.0  # by then any token is as likely as any other
DEFAULT_PROMPT = "Explain in two sentences what a computer does."


def command(
    prompt: Annotated[
        str, typer.Argument(help="What to say to the model; - reads it from stdin.")
    ] = DEFAULT_PROMPT,
    model: ModelOption = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Tokens to generate at most.")
    ] = 128,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt into the model's chat template, or continue it as it is; a chat "
            "where there is a template when left out.",
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message before the prompt.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", min=0.0, max=MAX_TEMPERATURE, help="0 is greedy; 1 is the model's own."
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Of what is drawn; the same seed gives the same text.")
    ] = 0,
    dtype: DtypeOption = None,
    machine: MachineOption = "cpu",
    workers: WorkersOption = None,
    context: ContextOption = None,
    scan: ScanOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Generate text with a model, one token a step of its megakernel."""
    text = _stdin() if prompt == "-" else prompt
    loaded = open_model(model, dtype, scan, machine)
    ids = encode_prompt(loaded.tokenizer, text, chat, system)
    check_prompt(len(ids), decode_shape(loaded, context=context).context)
    if context is None and machine == "cuda":  # whose memory is taken whether it is used or not
        context = len(ids) + max_tokens
    draw = Draw(temperature, seed)
    chunk = prompt_chunk(len(ids))
    with open_decoder(
        loaded, context=context, workers=workers, machine=machine, chunk=chunk
    ) as decoder:
        shown = (lambda piece: None) if as_json else show
        generation = generate(decoder, ids, max_tokens, shown, draw)
        workers = decoder.workers
    data = {
        "model": loaded.name,
        "dtype": loaded.weights.dtype,
        "machine": machine,
        "workers": workers,
        "prompt": text,
        "generation": generation,
        "tokens_per_second": generation.tokens_per_second,
    }
    emit(data, as_json, lambda console: print())
    if not as_json:
        print(stats(generation), file=sys.stderr)


def show(piece: str) -> None:
    """Write a piece of text to stdout at once."""
    print(piece, end="", flush=True)


def stats(generation: Generation) -> str:
    """How a generation went, in one line."""
    ended = "the model ended it" if generation.reason == "stop" else "the limit ended it"
    return (
        f"{generation.prompt_tokens} prompt tokens in {generation.prefill_s:.2f} s, "
        f"{len(generation.ids)} tokens at {generation.tokens_per_second:.1f} tokens/s; {ended}"
    )


def _stdin() -> str:
    if sys.stdin is None:
        raise UserError("The prompt - is read from stdin, which is closed. Give it as an argument.")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError(f"The prompt on stdin is not UTF-8 text: {error}. Convert it.") from error
