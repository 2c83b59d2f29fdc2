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
    config: tuple[str, ...] = ()  # grid, block, shared bytes, stream, as the host writes them
    instance: tuple[str, ...] = ()  # arguments of a template
    assumed: tuple[tuple[str, str], ...] = ()  # types that the host leaves to its macros
    around: str = ""  # the text of the host function
    within: str = ""  # "a loop" or "a condition" that it stands in
    numbers: tuple[
        int, ...
    ] = ()  # of the value of each parameter, among those that the kernel gets

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
            names = [one.name for one in self.params]
            number = self.numbers[names.index(param.name)] if self.numbers else 1
            return f"{self.kernel}_{param.name}" + (f"_{number}" if number > 1 else "")
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
    path: Path,
    define: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    types: Mapping[str, str] | None = None,
) -> list[HostLaunch]:
    """The launches of a CUDA file in the order in which they stand; `include` are folders of
    headers, `types` the types that the names of a dispatching macro stand for, float where left
    out.

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
            launch = _launch(unit, seen, call, types or {})
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
    return _numbered(found)


def _numbered(launches: Sequence[HostLaunch]) -> list[HostLaunch]:
    """The launches with a number for each value that a kernel gets: other words of the host's are
    another value."""
    known: dict[tuple[str, str, str], list[str]] = {}
    made = []
    for launch in launches:
        numbers = []
        for param in launch.params:
            text = " ".join(launch.given.get(param.name, "").split())
            texts = known.setdefault((launch.function, launch.kernel, param.name), [])
            if text not in texts:
                texts.append(text)
            numbers.append(texts.index(text) + 1)
        made.append(replace(launch, numbers=tuple(numbers)))
    return made


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


def _launch(unit: Unit, seen: Unit, call: "Node", types: Mapping[str, str]) -> HostLaunch | None:
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
    listed = re.search(r"<(.*)>", text, re.DOTALL)
    around = _function_around(parent)
    body = "" if around is None else unit.tree.of(around)
    instance, assumed = _instance(split_list(listed[1]) if listed else [], body, types)
    given = split_list(unit.tree.of(arguments).strip().removeprefix("(").removesuffix(")"))
    config = unit.tree.of(call).strip().removeprefix("<<<").removesuffix(">>>")
    kernel = read_kernel(seen, items[0], instance)
    reached, _ = seen.reach([items[0]])
    uniformity = Uniformity(seen, replace(kernel, item=items[0]), reached, (1, 1, 1))
    return HostLaunch(
        name,
        unit.tree.line(call),
        _enclosing(unit, parent),
        dict(zip((p.name for p in kernel.params), given, strict=False)),
        modes(uniformity, kernel, frozenset()),
        kernel.params,
        tuple(split_list(config)),
        tuple(instance),
        tuple(assumed),
        body,
        _within(parent, around),
    )


def _instance(
    listed: Sequence[str], body: str, types: Mapping[str, str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """A template's arguments, with types for the names that a dispatching macro defines."""
    dispatched = set(types)
    if "DISPATCH" in body:
        dispatched |= {part for part in listed if re.fullmatch(r"\w*(?:scalar|index)\w*_t", part)}
        dispatched -= {part for part in dispatched if re.search(rf"\busing\s+{part}\b", body)}
    usual = {name: "int" if "index" in name else "float" for name in dispatched} | dict(types)
    assumed = [(name, usual[name]) for name in dict.fromkeys(listed) if name in dispatched]
    return [usual.get(part, part) for part in listed], assumed


def _within(node: "Node", around: "Node | None") -> str:
    """What decides whether or how often a launch is made; "" where nothing does."""
    here = node.parent
    while here is not None and here != around:
        if here.type in ("for_statement", "while_statement", "do_statement", "for_range_loop"):
            return "a loop"
        if here.type in ("if_statement", "switch_statement", "conditional_expression"):
            return "a condition"
        here = here.parent
    return ""


def _function_around(node: "Node") -> "Node | None":
    at: Node | None = node
    while at is not None and at.type != "function_definition":
        at = at.parent
    return at


def _enclosing(unit: Unit, node: "Node") -> str:
    """The name of the function that a node stands in."""
    at = _function_around(node)
    declarator = None if at is None else at.child_by_field_name("declarator")
    return "" if declarator is None else unit.tree.of(declarator).split("(")[0].strip("*& \n")


def _variable(text: str) -> str:
    """The host variable in an argument: casts, addresses and methods such as `.data_ptr<float>()`
    stripped."""
    text = re.sub(
        r"^(\([^()]*\*\s*\)|(?:reinterpret|static|const)_cast<[^()]*>)\s*", "", text.strip()
    )
    found = re.search(r"[A-Za-z_]\w*", text)
    return found[0] if found else re.sub(r"\W", "_", text) or "none"
