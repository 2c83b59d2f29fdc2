"""Several kernels that a file's host code launches in order: the ops they become, and which waits
for which, proposed from what each reads and writes. The user answers for what is proposed; the
verifier derives the waits of a megakernel from the ops themselves.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mkport.errors import UserError
from mkport.port.conditionals import GPU, resolve
from mkport.port.finding import RefusedPort
from mkport.port.includes import merge
from mkport.port.kernel import Param, read_kernel
from mkport.port.lexer import split_list
from mkport.port.macros import expand
from mkport.port.syntax import find
from mkport.port.uniform import Uniformity
from mkport.port.unit import Unit
from mkport.port.usage import modes

if TYPE_CHECKING:
    from tree_sitter import Node

WRITES = ("write", "update")
_NULLS = ("nullptr", "NULL", "0")


@dataclass(frozen=True)
class HostLaunch:
    """A launch in the host code. `given` is each parameter's argument, as the host writes it."""

    kernel: str
    line: int
    function: str  # the host function that it stands in
    given: dict[str, str]
    modes: dict[str, str]  # of tensor parameters: read, write, update
    params: tuple[Param, ...]

    def touched(self, *wanted: str) -> dict[str, str]:
        """Host variables that the launch touches in one of these modes, and the parameter."""
        boxed = {param.name for param in self.params if param.boxed}
        return {
            _variable(self.given[p]): p
            for p, mode in self.modes.items()
            if mode in wanted and p not in boxed and self.given[p] not in _NULLS
        }  # fmt: skip

    def tensor(self, param: Param) -> str:
        """The name of the tensor that a parameter is given, or comes in by value."""
        if param.boxed:
            return f"{self.kernel}_{param.name}"
        return _variable(self.given[param.name])


@dataclass(frozen=True)
class Dependency:
    """The later launch waits for the earlier one, because of a host variable."""

    earlier: HostLaunch
    later: HostLaunch
    variable: str
    why: str  # "reads what it wrote", "overwrites what it read", "overwrites what it wrote"

    def __str__(self) -> str:
        return (
            f"{self.later.kernel} (line {self.later.line}) waits for {self.earlier.kernel} "
            f"(line {self.earlier.line}): {self.why}, {self.variable}"
        )


def host_launches(
    path: Path, define: Mapping[str, str] | None = None, include: Sequence[Path] = ()
) -> list[HostLaunch]:
    """The launches of a CUDA file in the order in which they stand; `include` are folders of
    headers.

    Raises UserError where there is none, and for a kernel whose parameters cannot be told.
    """
    defines = dict(define or {})
    merged = merge(path, include)
    text = merged.text
    unit = Unit(resolve(text, defines))
    seen = Unit(expand(resolve(text, defines, {**GPU}), defines))
    found = []
    for call in find(unit.tree.root, "kernel_call_syntax"):
        file, line = merged.place(unit.tree.line(call))
        try:
            launch = _launch(unit, seen, call)
        except RefusedPort as refused:
            text = " ".join(unit.tree.of(call.parent or call).split("<<<")[0].split())
            raise UserError(
                f"{file}:{line} launches {text}, which cannot be followed: "
                f"{refused.finding.cause} Port its kernels one by one, with --instantiate for "
                "templates whose types the host code leaves to macros."
            ) from refused
        if launch is not None:
            found.append(replace(launch, line=line))
    if not found:
        raise UserError(
            f"{path} launches no kernel of its own: without a `<<<...>>>` there is no order. Name "
            "the kernels one by one."
        )
    return found


def dependencies(launches: list[HostLaunch]) -> list[Dependency]:
    """What each launch waits for: the latest earlier ones of its host function that conflict."""
    found = []
    for number, later in enumerate(launches):
        seen: set[tuple[str, str]] = set()
        for earlier in reversed(launches[:number]):
            if earlier.function != later.function:
                continue
            for theirs, ours, why in (
                (WRITES, ("read", "update"), "reads what it wrote"),
                (("read", "update"), WRITES, "overwrites what it read"),
                (WRITES, WRITES, "overwrites what it wrote"),
            ):
                for variable in earlier.touched(*theirs).keys() & later.touched(*ours).keys():
                    if (variable, why) not in seen:
                        seen.add((variable, why))
                        found.append(Dependency(earlier, later, variable, why))
    return found


def chain_text(path: Path, launches: list[HostLaunch], folder: str = "ops") -> str:
    """A TOML file for `mkport compose`, a node a launch; sizes and numbers are to be filled in.

    Host variables become tensors, so that what one kernel writes and another reads is one tensor.
    One that is written, and read before that, is state: it holds something before a step.
    """
    tensors: dict[str, str] = {}
    written, state = set[str](), set[str]()
    for launch in launches:
        for param in launch.params:
            if param.kind == "tensor":
                tensors.setdefault(launch.tensor(param), param.dtype)
        state |= launch.touched("read", "update").keys() - written
        written |= launch.touched(*WRITES).keys()
    state &= written
    lines = [
        f"# Proposed from the launches of {path.name}: fill in what stands between < and >.",
        "",
    ]
    lines += [f'title = "{path.stem}"', f'ops = ["{folder}"]', "", "[tensors]"]
    lines += [
        f'{name} = {{ dtype = "{dtype}", shape = [<size>]'
        + (', kind = "state" }' if name in state else " }")
        for name, dtype in tensors.items()
    ]
    labels: list[str] = []
    for launch in launches:
        count = labels.count(launch.kernel)
        labels.append(launch.kernel)
        label = launch.kernel if not count else f"{launch.kernel} {count + 1}"
        args = []
        for param in launch.params:
            text = launch.given[param.name]
            if param.kind == "tensor":
                args.append(f'{param.name} = "{launch.tensor(param)}"')
            else:
                args.append(f"{param.name} = {_number(text) or f'<{text}>'}")
        lines += ["", "[[nodes]]", f'op = "{launch.kernel}"', f'label = "{label}"']
        lines += [f"args = {{ {', '.join([*args, 'grid_x = <blocks>'])} }}"]
    return "\n".join(lines) + "\n"


def _number(text: str) -> str:
    """A number of C++ as TOML writes it, which has no `2.` and no `.5`; empty for what is none."""
    found = re.fullmatch(r"(-?\d+)|-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text.rstrip("fFuUlL"), re.I)
    if found is None:
        return ""
    return str(int(found[1])) if found[1] else repr(float(found[0]))


def _launch(unit: Unit, seen: Unit, call: "Node") -> HostLaunch | None:
    parent = call.parent
    function = None if parent is None else parent.child_by_field_name("function")
    arguments = None if parent is None else parent.child_by_field_name("arguments")
    if parent is None or function is None or arguments is None:
        return None
    text = unit.tree.of(function).strip()
    name = re.split(r"[<(]", text)[0].split("::")[-1].strip()
    items = [item for item in seen.kernels if item.name == name]
    if not items:
        return None
    instance = re.search(r"<(.*)>", text)
    given = split_list(unit.tree.of(arguments).strip().removeprefix("(").removesuffix(")"))
    kernel = read_kernel(seen, items[0], split_list(instance[1]) if instance else ())
    reached, _ = seen.reach([items[0]])
    uniformity = Uniformity(seen, replace(kernel, item=items[0]), reached, (1, 1, 1))
    return HostLaunch(
        name,
        unit.tree.line(call),
        _enclosing(unit, parent),
        dict(zip((p.name for p in kernel.params), given, strict=False)),
        modes(uniformity, kernel, frozenset()),
        kernel.params,
    )


def _enclosing(unit: Unit, node: "Node") -> str:
    """The name of the function that a node stands in."""
    at: Node | None = node
    while at is not None and at.type != "function_definition":
        at = at.parent
    declarator = None if at is None else at.child_by_field_name("declarator")
    return "" if declarator is None else unit.tree.of(declarator).split("(")[0].strip()


def _variable(text: str) -> str:
    """The host variable in an argument: casts, addresses and methods such as `.data_ptr<float>()`
    stripped."""
    text = re.sub(
        r"^(\([^()]*\*\s*\)|(?:reinterpret|static|const)_cast<[^()]*>)\s*", "", text.strip()
    )
    found = re.search(r"[A-Za-z_]\w*", text)
    return found[0] if found else re.sub(r"\W", "_", text) or "none"
