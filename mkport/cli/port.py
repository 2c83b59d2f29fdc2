"""The verb `port`: makes a task of a CUDA kernel of one's own, or says why that cannot be."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mkport.cli.output import JsonFlag, emit
from mkport.errors import UserError
from mkport.port.report import Report, Step

if TYPE_CHECKING:
    from mkport.port.launched import Launched
    from mkport.port.several import HostLaunch

COLOURS = {"ok": "green", "warned": "yellow", "refused": "red", "skipped": "dim"}


def command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:KERNEL]", help="A CUDA file, or a Python file, and which of its kernels."
        ),
    ],
    grid: Annotated[
        str | None,
        typer.Option("--grid", metavar="X[,Y[,Z]]", help="Blocks; else what the file launches."),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option("--block", metavar="X[,Y[,Z]]", help="Threads; else what the file launches."),
    ] = None,
    shared: Annotated[
        int | None,
        typer.Option("--shared", min=0, metavar="BYTES", help="Dynamic shared memory of a block."),
    ] = None,
    instantiate: Annotated[
        str | None,
        typer.Option(
            "--instantiate", metavar='"NAME<float, 4>"', help="The arguments of a template."
        ),
    ] = None,
    immutable: Annotated[
        str | None,
        typer.Option(
            "--immutable",
            metavar="NAME,...",
            help="Parameters that nothing writes during a step; only they keep read-only loads.",
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="What original and port are run on: f32[8,512], i32[16]=0..7, 512, 1e-5, null, "
            "x.npy, or another parameter's name. Made up when none is given.",
        ),
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            metavar='"float32[:,:], int32"',
            help="A Numba kernel's argument types, unless its decorator names them.",
        ),
    ] = None,
    launches: Annotated[
        bool,
        typer.Option(
            "--launches",
            help="What the file's host code launches (FILE:FUNCTION: that function), as a chain "
            "for `mkport compose`: shown; with -o ported and written; with --arg for the host's "
            "variables, run beside the launches in their order.",
        ),
    ] = False,
    oracle: Annotated[
        Path | None,
        typer.Option(
            "--oracle",
            metavar="FILE.py",
            help="With --launches: the chain's oracles, a function for each kernel.",
        ),
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("--define", "-D", metavar="NAME[=VALUE]", help="A macro of the file."),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", "-I", metavar="DIR", help="A folder of headers."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What the op is called; else as the kernel.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Write the op's folder here; else nothing is written.",
        ),
    ] = None,
    machine: Annotated[
        str,
        typer.Option(
            "--machine", metavar="host|cuda", help="Where the port is run to compare bits."
        ),
    ] = "host",
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Run original and port, and compare the bits.")
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Make a task of a CUDA kernel, in twelve steps, or say which line is the reason it cannot be.

    Exit codes: 0 ported, 3 refused, 4 the original is not well defined, 2 wrong use.
    """
    from mkport.port.port import port_file

    path, kernel = _split(file)
    if launches:
        _refuse_options(
            "--launches takes the launches from the host's code",
            {"--grid": grid, "--block": block, "--shared": shared, "--immutable": immutable,
             "--types": types, "--name": name},
        )  # fmt: skip
        defines = dict(_definition(text) for text in define or ())
        stands_for = dict(_definition(part) for part in (instantiate or "").split(",") if part)
        chosen = _launched(path, kernel, defines, include or (), stands_for)
        if out is None and not arg:
            _propose(path, chosen, as_json)
            return
        from mkport.port.launched import port_launches

        made = port_launches(
            path, chosen, arg or (), define=defines, include=include or (), out=out, run=run,
            machine=machine, oracle=oracle,
        )  # fmt: skip
        emit(made.as_dict(), as_json, lambda console: _render_launched(console, made))
        raise typer.Exit(made.exit_code)
    _refuse_options("oracles are for the chain that --launches makes", {"--oracle": oracle})
    if path.suffix == ".py":
        from mkport.port.numba_port import port_python

        _refuse_options(
            f"{path} is a Python file, whose arrays bring their sizes",
            {"--shared": shared, "--instantiate": instantiate, "--define": define,
             "--include": include},
        )  # fmt: skip
        report = port_python(
            path, kernel, types, grid=_three("grid", grid), block=_three("block", block),
            arguments=list(arg) if arg else None, name=name, out=out, run=run, machine=machine,
            immutable=_names(immutable),
        )  # fmt: skip
        emit(report.as_dict(), as_json, lambda console: _render(console, report))
        raise typer.Exit(report.exit_code)
    _refuse_options(f"{path} is no Python file, so that its types are its own", {"--types": types})
    report = port_file(
        path,
        kernel,
        grid=_three("grid", grid),
        block=_three("block", block),
        shared=shared,
        instantiate=instantiate,
        immutable=_names(immutable),
        define=dict(_definition(text) for text in define or ()),
        arguments=list(arg) if arg else None,
        name=name,
        out=out,
        run=run,
        machine=machine,
        include=include or (),
    )
    emit(report.as_dict(), as_json, lambda console: _render(console, report))
    raise typer.Exit(report.exit_code)


def _launched(
    path: Path, function: str | None, define: dict[str, str], include: Sequence[Path],
    types: dict[str, str],
) -> "list[HostLaunch]":  # fmt: skip
    """The launches of a file, or of one host function of it. Raises UserError for another name."""
    from mkport.port.several import host_launches

    found = host_launches(path, define, include, types)
    if function is None:
        return found
    chosen = [one for one in found if one.function.split("::")[-1] == function]
    if not chosen:
        names = ", ".join(dict.fromkeys(one.function for one in found))
        raise UserError(f"{path} has no host function {function!r} that launches; it has {names}.")
    return chosen


def _render_launched(console, made: "Launched") -> None:  # type: ignore[no-untyped-def]
    """A line a launch, what waits for what, what each port found, and what was compared."""
    from mkport.port.several import dependencies

    lines = [f"{one.kernel} (line {one.line}, in {one.function})" for one in made.launches]
    lines += map(str, dependencies(made.launches))
    for name, report in made.reports.items():
        lines.append(f"op {name}: {report.verdict}")
        lines += [f"  {finding}" for finding in report.findings]
    lines += [*map(str, made.findings), *made.lines, f"result: {made.verdict}"]
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _propose(path: Path, found: "list[HostLaunch]", as_json: bool) -> None:
    """The launches of a file, their dependencies, and the chain that they make."""
    from mkport.port.chain_file import chain_text
    from mkport.port.several import dependencies

    needs = dependencies(found)
    chain = chain_text(path, found)
    data = {
        "launches": [
            {"kernel": one.kernel, "line": one.line, "function": one.function, "given": one.given}
            for one in found
        ],
        "dependencies": [
            {
                "earlier": found.index(need.earlier), "later": found.index(need.later),
                "variable": need.variable, "why": need.why,
            }
            for need in needs
        ],
        "chain": chain,
    }  # fmt: skip
    lines = [f"{one.kernel} (line {one.line}, in {one.function})" for one in found]
    kinds = {pair for one in found for pair in one.assumed}
    lines += [f"for {name} = {kind}; --instantiate {name}=TYPE for another" for name, kind in kinds]
    text = "\n".join([*lines, *map(str, needs), "", chain])
    emit(data, as_json, lambda console: console.print(text, markup=False, soft_wrap=True))


def _split(file: str) -> tuple[Path, str | None]:
    head, colon, tail = file.rpartition(":")
    if colon and head and tail.replace("_", "a").isalnum() and not Path(file).exists():
        return Path(head), tail
    return Path(file), None


def _names(listed: str | None) -> list[str]:
    return [name.strip() for name in (listed or "").split(",") if name.strip()]


def _refuse_options(why: str, given: dict[str, object]) -> None:
    """Raises UserError for options that would do nothing."""
    if idle := [name for name, value in given.items() if value not in (None, [], ())]:
        raise UserError(f"{', '.join(idle)} would do nothing: {why}. Leave it out.")


def _three(option: str, text: str | None) -> tuple[int, int, int] | None:
    from mkport.port.geometry import three

    return None if text is None else three(text, option)


def _definition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.strip().isidentifier():
        raise UserError(f"--define {text!r} is no macro: write NAME or NAME=VALUE.")
    return name.strip(), value if equals else "1"


def _render(console, report: Report) -> None:  # type: ignore[no-untyped-def]
    """Each step with its lines, then the verdict; of what is no port, those that decided alone."""
    from rich.text import Text

    told = {str(finding): finding for finding in report.findings}
    for steps in _grouped(report):
        first, last = steps[0], steps[-1]
        name = first.name if first is last else f"to {last.number}"
        head = Text(f"{first.number:2} {name:<16}")
        left = report.verdict != "ported" and first.state == "skipped"
        head.append("not reached" if left else first.state, style=COLOURS[first.state])
        console.print(head)
        for line in () if _quiet(report, first) else first.lines:
            finding = told.get(line)
            parts = (line,) if finding is None else (
                line.removesuffix(f" {finding.consequence} {finding.fix}"),
                f"  {finding.consequence}", f"  {finding.fix}",
            )  # fmt: skip
            for part in parts:
                console.print(Text("     " + part), soft_wrap=True)


def _quiet(report: Report, step: Step) -> bool:
    """A step that decided nothing about a kernel that was not ported."""
    inner = 1 < step.number < len(report.steps)
    return report.verdict != "ported" and inner and step.state in ("ok", "skipped")


def _grouped(report: Report) -> list[list[Step]]:
    """The steps in groups: quiet ones that went alike and follow each other, any other alone."""
    groups: list[list[Step]] = []
    for step in report.steps:
        before = groups[-1][0] if groups else step
        alike = _quiet(report, step) and _quiet(report, before) and before.state == step.state
        if groups and alike:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups
