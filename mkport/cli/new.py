"""The verb `new`: starts an op of one's own. The files come from `mkport.port.scaffold`."""

import importlib.util
import shlex
from pathlib import Path
from typing import Annotated

import typer

from mkport.cli.output import JsonFlag, emit
from mkport.extras import tool
from mkport.port.scaffold import new_op


def command(
    name: Annotated[str, typer.Argument(metavar="OP", help="The op's name, as in C and Python.")],
    ops: Annotated[
        Path, typer.Option("--ops", metavar="DIR", help="The folder of your ops.")
    ] = Path("ops"),
    as_json: JsonFlag = False,
) -> None:
    """Start an op by hand: oracle, ordinary kernels, tasks for both machines, declaration, test.

    Everything passes as it is written, for y = factor * x; change one file after another and check
    again. Nothing that is there already is overwritten.
    """
    files = new_op(name, ops)
    text = "\n".join(map(str, files))
    check = f"{tool('mkport')} check {name} --ops {shlex.quote(str(ops))}"
    text += f"\n\n{check}\n{check} --machine host"
    if importlib.util.find_spec("pytest") is None:
        text += f"\n{tool('pip')} install pytest  # once, for the test"
    text += f"\n{tool('pytest')} {shlex.quote(str(files[-1]))}"
    emit(
        {"op": name, "files": files},
        as_json,
        lambda console: console.print(text, markup=False, soft_wrap=True),
    )
