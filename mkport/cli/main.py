"""The entry point: the table of verbs, their lazy import, and what an error looks like.

A verb's options and text live in its own file; here stands one line a verb, so that `mkport --help`
imports none of them. A verb's module defines `command`, a function that Typer can read; one with
verbs of its own defines `app`, a Typer application, as well.
"""

import errno
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import mkport
from mkport.cache import CACHE_VARIABLE, keep_compiled
from mkport.cli import output
from mkport.errors import UserError

USAGE_ERROR: Any = typer.BadParameter.__base__  # click's, which Typer may carry within itself
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LEARN, BUILD, RUN, LOOK = "Learn", "Build", "Run", "Look"


class Verb(NamedTuple):
    """One verb of the command line."""

    module: str  # defines `command`, and `app` when it has verbs of its own
    panel: str  # the heading it stands under in the help
    help: str  # one line


VERBS = {
    "learn": Verb("mkport.cli.learn", LEARN, "Exercises, from a tile to the serving engine."),
    "doctor": Verb("mkport.cli.doctor", LOOK, "Say what works on this machine, and the fix."),
    "list": Verb("mkport.cli.list_ops", LOOK, "List the ops and which of their forms are written."),
    "check": Verb("mkport.cli.check", BUILD, "Hold ops to their oracles, unit by unit."),
    "new": Verb("mkport.cli.new", BUILD, "Start an op of your own, with files that pass."),
    "compose": Verb("mkport.cli.compose", BUILD, "Write a model's megakernel as one file."),
    "port": Verb("mkport.cli.port", BUILD, "Make a task of a CUDA kernel, or say why not."),
    "verify": Verb("mkport.cli.verify", BUILD, "Prove a schedule safe, or say why it is not."),
    "trace": Verb("mkport.cli.trace", LOOK, "Record a step: timeline, Perfetto file, summary."),
    "inspect": Verb(
        "mkport.cli.inspect_model", LOOK, "Say what a model is and how fast it can be."
    ),
    "synth": Verb("mkport.cli.synth", BUILD, "Write a random checkpoint of a model family."),
    "run": Verb("mkport.cli.run", RUN, "Generate text with a model."),
    "serve": Verb("mkport.cli.serve", RUN, "Serve a model over HTTP, as OpenAI's API does."),
    "eval": Verb("mkport.cli.evaluate", RUN, "Measure the perplexity of a text."),
    "bench": Verb("mkport.cli.bench", RUN, "Measure decode against transformers and llama.cpp."),
    "demo": Verb("mkport.cli.demo", RUN, "Check, compose, verify, speak and trace, in one go."),
}


class LazyGroup(TyperGroup):
    """Knows every verb by its help line, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As click's, with the placeholder replaced by the verb itself. Raises UserError where
        compiled code has no folder to be kept in."""
        output.expect_json(ctx, args)
        name, placeholder, rest = super().resolve_command(ctx, args)
        if placeholder is None or placeholder.name is None:
            return name, placeholder, rest
        return name, _load(placeholder.name), rest

    def invoke(self, ctx: Any) -> Any:
        """As click's, but a `UserError` becomes one paragraph (or JSON object) and exit code 2, and
        under --json wrong use an object too: raises typer.Exit with the code."""
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()  # what cannot be written shows here, not at exit
            return done
        except UserError as error:
            output.emit_error(str(error), output.wants_json(ctx))
            raise typer.Exit(2) from None
        except USAGE_ERROR as error:
            if not output.wants_json(ctx):
                raise
            output.emit_error(error.format_message(), as_json=True)
            raise typer.Exit(error.exit_code) from None


def _load(name: str) -> Any:
    """The click command of the verb `name`, its module imported now."""
    keep_compiled(Path(mkport.__file__).parent)
    try:
        module = importlib.import_module(VERBS[name].module)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        raise UserError(
            f"Compiled code cannot be kept anywhere ({error}). Set {CACHE_VARIABLE} to a folder "
            "that you may write to."
        ) from error
    if isinstance(own := getattr(module, "app", None), typer.Typer):
        return typer.main.get_command(own)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(module.command)
    return typer.main.get_command(alone)


def _placeholder() -> None:
    """Holds a verb's place in the help; `LazyGroup` puts the verb in its stead."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mkport {mkport.__version__}")
        raise typer.Exit()


app = typer.Typer(
    name="mkport", cls=LazyGroup, add_completion=False, pretty_exceptions_enable=False
)


@app.callback(no_args_is_help=True)
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Port ordinary kernels into one verified, persistent megakernel, and run models with it."""


for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.help, rich_help_panel=_verb.panel)(_placeholder)


def main() -> None:
    """Run the command line on `sys.argv`; exit codes: 0 done, 1 failed, 2 wrong use, 130 Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character it lacks must not end a text
    try:
        app()
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is not tried again at exit
        output.emit_error(
            f"The output cannot be written ({error.strerror}) and ends here. Free some space, or "
            "send it somewhere else.",
            as_json=False,
        )
        sys.exit(2)
