"""How every verb speaks: results on stdout as text or one JSON document, the rest on stderr.

What a verb says is the verb's business; which stream, which form and which width are decided here.
"""

import dataclasses
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

_JSON_KEY = "mkport.json"
_MAX_WIDTH = 100


def _remember(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[_JSON_KEY] = value  # click shares meta with the parent, which prints the errors
    return value


def expect_json(ctx: typer.Context, args: Sequence[str]) -> None:
    """Note `--json` among a verb's arguments, in case that they cannot be parsed."""
    ctx.meta[_JSON_KEY] = "--json" in args[: args.index("--") if "--" in args else None]


JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document on stdout instead of text.",
        callback=_remember,
        is_eager=True,
    ),
]


def wants_json(ctx: typer.Context) -> bool:
    """Whether the verb that ran under `ctx` was given `--json`."""
    return bool(ctx.meta.get(_JSON_KEY, False))


def plain(value: Any) -> Any:
    """`value` in the types of JSON: dataclasses become objects, paths and NaN become strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return plain(value.tolist())
    return str(value)


def emit(data: Any, as_json: bool, render: Callable[["Console"], None]) -> None:
    """Print a verb's result on stdout.

    Args:
        data: the result; a dataclass, mapping, sequence or scalar, nested as you like.
        as_json: print `data` as one JSON document and do not call `render`.
        render: writes the same result for a person on the console it is given.
    """
    if as_json:
        print(json.dumps(plain(data), indent=2, allow_nan=False))
        return
    from rich.console import Console

    render(Console(highlight=False))


def emit_error(message: str, as_json: bool) -> None:
    """Print a user's mistake: `error: ...` wrapped on stderr, or `{"error": ...}` on stdout."""
    message = " ".join(message.split())
    if as_json:
        print(json.dumps({"error": message}, indent=2))
        return
    width = min(_MAX_WIDTH, shutil.get_terminal_size().columns)
    paragraph = textwrap.fill(
        f"error: {message}", width=width, break_long_words=False, break_on_hyphens=False
    )
    print(paragraph, file=sys.stderr)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, gone when the block ends; silent where stderr is no terminal.

    Args:
        description: what is going on, in a few words.
        total: the amount of work; None where it is not known.

    Yields:
        a function that adds its argument to the work done.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def in_parts(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    """What moves a bar of total 1 when it is told how many parts are done, of how many in all."""
    seen = 0.0

    def report(done: int, parts: int) -> None:
        nonlocal seen
        advance(done / parts - seen)
        seen = done / parts

    return report
