"""The first step of a port: what is in the file, which kernel is meant, and what it reaches.

What the user asked for stands here too; each further step is a layer on this one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.declare import Op
from mkport.errors import UserError
from mkport.machines.cpu.memory import NUMPY
from mkport.port.arguments import check_range, read_arguments
from mkport.port.conditionals import GPU, resolve
from mkport.port.finding import Finding, RefusedPort
from mkport.port.geometry import Geometry, Three
from mkport.port.includes import Merged, merge
from mkport.port.kernel import Kernel, read_kernel
from mkport.port.macros import expand
from mkport.port.report import Steps
from mkport.port.syntax import find
from mkport.port.unit import Item, Unit


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    path: Path
    kernel: str | None = None
    grid: Three | None = None
    block: Three | None = None
    shared: int | None = None
    instance: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    arguments: Mapping[str, Any] | Sequence[str] | None = None
    name: str | None = None
    out: Path | None = None
    run: bool = True
    compile: bool = True
    machine: str = "host"
    include: tuple[Path, ...] = ()  # folders of headers


RECORDED = "port.json"
ROLES = (  # members of every body
    "ahead", "begin", "compute", "early", "late", "load", "near", "open", "parts", "prepare",
    "stage", "store",
)  # fmt: skip
BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")


def recorded(request: Request, kernel: Kernel, launch: Geometry) -> str:
    """The text of port.json: what was ported, for which launch, and what it was run on."""
    given = request.arguments
    texts = None if given is None or isinstance(given, Mapping) else [absolute(t) for t in given]
    values = {
        "kernel": kernel.name, "instance": request.instance, "grid": launch.grid,
        "block": launch.block, "shared": launch.shared, "immutable": request.immutable,
        "defines": request.defines, "arguments": texts,
    }  # fmt: skip
    return json.dumps(values, indent=1) + "\n"


def read_recorded(folder: Path) -> Request:
    """What a port's folder says of how it was made. Raises UserError where it says nothing."""
    path = folder / RECORDED
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Request(
            folder / "standalone.cu", values["kernel"], _sizes(values["grid"]),
            _sizes(values["block"]), values["shared"], tuple(values["instance"]),
            tuple(values["immutable"]), tuple((n, v) for n, v in values["defines"]),
            values["arguments"],
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not say how the port was made ({error}): port the kernel once more."
        ) from error


def _sizes(given: Sequence[int] | None) -> Three | None:
    return None if given is None else (int(given[0]), int(given[1]), int(given[2]))


def absolute(text: str) -> str:
    """An argument's text with a file's name from the root on."""
    name, _, value = text.partition("=")
    return f"{name}={Path(value.strip()).resolve()}" if value.strip().endswith(".npy") else text


class Scanned:
    """A port whose file has been read."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.merged: Merged = merge(request.path, request.include)
        self.steps = Steps(request.path.name)
        self.launch: Geometry | None = None
        self.files: dict[str, str] = {}
        self.kernel: Kernel
        self.op: Op | None = None
        self.ran = False
        self.name = request.name or ""

    # 1. What is in the file.

    def _scan(self) -> None:
        step = self.steps.begin("scan")
        defines = dict(self.request.defines)
        text = resolve(self.merged.text, defines)
        self.unit = Unit(text)
        expanded = expand(resolve(self.merged.text, defines, {**GPU}), defines)
        self.analysed = Unit(expanded)
        kernels = self.analysed.kernels
        if not kernels:
            raise UserError(
                f"{self.request.path} has no kernel: no `__global__` function with a body was "
                "found in it."
            )
        listed = ", ".join(dict.fromkeys(item.name for item in kernels))
        wanted = self.request.kernel
        if wanted is None and len({item.name for item in kernels}) > 1:
            raise UserError(
                f"{self.request.path} has several kernels: {listed}. Name one, as in "
                f"{self.request.path}:{kernels[0].name}."
            )
        chosen = [item for item in kernels if wanted in (None, item.name)]
        if not chosen:
            raise UserError(f"{self.request.path} has no kernel {wanted!r}; it has {listed}.")
        self.name = self.request.name or chosen[0].name
        step.say(f"{self.request.path.name}: kernels {listed}; porting {chosen[0].name}.")
        self.seen = self._one_of(self.analysed, chosen)
        self.reached, _ = self.analysed.reach([self.seen], " ".join(self.request.instance))
        if found := self.analysed.broken(self.reached):
            raise RefusedPort(self._unread(self.analysed, found[0], "not understood", found[1]))
        self._builtins_are_theirs()
        self.item, self.items = self._emitted()
        self.kernel = read_kernel(self.unit, self.item, self.request.instance)
        for param in self.kernel.params:
            kind = f"{param.dtype} tensor" if param.kind == "tensor" else param.kind
            if param.boxed:
                kind = f"by value: its {param.nbytes} bytes are read from a tensor"
            step.say(f"  {param.name}: {param.type} ({kind})")
        self._check_names()
        helpers = [item.name for item in self.reached if item.kind == "function"
                   and item != self.seen]  # fmt: skip
        others = len(self.reached) - 1  # functions, types and constants
        told = (
            f"{others} other parts"
            if others > 1
            else "one other part"
            if others
            else "nothing else"
        )
        step.say(f"It uses {told} of the file"
                 + (f"; functions {', '.join(helpers)}." if helpers else "."))  # fmt: skip

    def _builtins_are_theirs(self) -> None:
        """Raises RefusedPort where a member or variable is called as one of CUDA's is."""
        tree = self.analysed.tree
        for item in self.reached:
            for node in find(item.outer, "field_identifier", "identifier"):
                name, parent = tree.of(node), node.parent
                if name not in BUILTINS or parent is None:
                    continue
                makes = parent.type.endswith(("declarator", "declaration")) and (
                    parent.child_by_field_name("declarator") == node
                )
                if node.type == "field_identifier" or makes:
                    raise RefusedPort(
                        Finding(
                            "MK101", tree.line(node), tree.column(node),
                            f"A member or variable is called {name} here.",
                            f"In a port {name} is everywhere what the launch has under that name, "
                            "and this would be something else.",
                            "Give it another name.",
                        )
                    )  # fmt: skip

    def _emitted(self) -> tuple[Item, list[Item]]:
        """The kernel in the text that the port is made of: macros expanded only if they must be."""
        defines = dict(self.request.defines)
        written_out = Unit(expand(self.unit.text, defines))
        torn = self.unit.torn and not written_out.torn
        for unit in self._texts((written_out,) if torn else (self.unit, written_out)):
            special = self.analysed.special(self.seen)
            items = [
                item for item in unit.kernels
                if item.name == self.seen.name and unit.special(item) == special
            ]  # fmt: skip
            if len(items) != 1:
                continue
            reached, macros = unit.reach(items, " ".join(self.request.instance))
            functions = [sum(i.kind == "function" for i in all_of)
                         for all_of in (reached, self.reached)]  # fmt: skip
            shared = [len(re.findall(r"\b__shared__\b", u.text_of(i)))
                      for u, all_of in ((unit, reached), (self.analysed, self.reached))
                      for i in [*all_of]]  # fmt: skip
            counts = (sum(shared[: len(reached)]), sum(shared[len(reached) :]))
            hidden = unit is self.unit and any(
                re.search(r"\basm\b|__asm", self.unit.macros[macro].text) for macro in macros
            )  # inline assembly in macros is found when they are written out
            if (
                not hidden
                and unit.broken(reached) is None
                and (
                    unit in (written_out, self.analysed)
                    or (counts[0] == counts[1] and self._guards_agree(*functions))
                )
            ):
                self.unit = unit
                self.macros = frozenset(macros)
                return items[0], reached
        raise RefusedPort(self._unread(self.analysed, self.seen, "not understood"))

    def _texts(self, first: Sequence[Unit]) -> Iterator[Unit]:
        """Texts that the port may be made of; those last that only a GPU's compiler would see,
        for conditionals that tear a declaration apart."""
        yield from first
        yield Unit(resolve(self.merged.text, dict(self.request.defines), {**GPU}))
        yield self.analysed

    def _one_of(self, unit: Unit, chosen: Sequence[Item]) -> Item:
        """The kernel of a name: the template's specialisation for the instance, else the rest."""
        squeezed = tuple("".join(part.split()) for part in self.request.instance)
        plain = []
        for item in chosen:
            special = unit.special(item)
            if special is None:
                plain.append(item)
            elif squeezed == tuple("".join(part.split()) for part in special):
                return item
        if not plain and (kinds := [", ".join(unit.special(item) or ()) for item in chosen]):
            name, listed = chosen[0].name, " and ".join(f"<{kind}>" for kind in kinds)
            raise RefusedPort(
                Finding(
                    "MK102", unit.tree.line(chosen[0].node), unit.tree.column(chosen[0].node),
                    f"The kernel {name} is written out for {listed}, and nothing says which.",
                    "A task is compiled once, for one set of arguments; which would be a guess.",
                    f'Say which: --instantiate "{name}<{kinds[0]}>".',
                )
            )  # fmt: skip
        if len(plain) != 1:
            lines = ", ".join(str(unit.tree.line(item.node)) for item in plain)
            raise RefusedPort(
                Finding(
                    "MK101", unit.tree.line(plain[-1].node), unit.tree.column(plain[-1].node),
                    f"There are {len(plain)} kernels {plain[-1].name}, in lines {lines}.",
                    "Which of them is meant is not known, and a port would be a guess.",
                    "Give each kernel a name of its own.",
                )
            )  # fmt: skip
        return plain[0]

    def _guards_agree(self, here: int, seen: int) -> bool:
        """Whether a text reaches the functions that the analysis saw; more only by branches that
        another compiler takes."""
        return here == seen or (here > seen and "#if" in self.unit.text)

    def _unread(self, unit: Unit, item: Item, what: str, node: Any = None) -> Finding:
        node = node or item.node
        line = " ".join(unit.text.split("\n")[unit.tree.line(node) - 1].split())
        return Finding(
            "MK101", unit.tree.line(node), unit.tree.column(node),
            f"`{line[:80]}` is {what}.",
            "What it does to barriers and memory is not known, and a port would be a guess.",
            "Write it in plain C++; a macro that makes code may be written out.",
        )  # fmt: skip

    def _check_names(self) -> None:
        names = [param.name for param in self.kernel.params]
        tensors = {param.name for param in self.kernel.params if param.kind == "tensor"}
        for name in self.request.immutable:
            if name not in tensors:
                raise UserError(
                    f"--immutable {name}: {self.kernel.name} has no tensor parameter of that name; "
                    f"it has {', '.join(sorted(tensors)) or 'none'}."
                )
        given = self.request.arguments
        self.given: Mapping[str, Any] | None = None
        if isinstance(given, Mapping):
            if odd := sorted(set(given) ^ set(names)):
                raise UserError(
                    f"The arguments are to be those of {self.kernel.name}, {', '.join(names)}; "
                    f"{odd[0]!r} is missing or one too many."
                )
            for param in self.kernel.params:
                if param.kind == "int":
                    check_range(f"{param.name}={given[param.name]}", given[param.name], param)
            boxed = {param.name: param for param in self.kernel.params if param.boxed}
            self.given = {
                name: np.array([value], NUMPY[boxed[name].dtype])
                if name in boxed and not isinstance(value, np.ndarray) else value
                for name, value in given.items()
            }  # fmt: skip
        elif given is not None:
            self.given = read_arguments(given, self.kernel)
        if not re.fullmatch(r"[a-z_]\w*", self.name, re.IGNORECASE) or "__" in self.name:
            raise UserError(f"--name {self.name!r} is no name for an op: use letters, digits, _.")
        if self.name in ROLES or self.name.startswith(("mk_", "Mk", "MK_")):
            raise UserError(
                f"An op cannot be called {self.name}, as the machine calls a part of its own: give "
                f"--name another, such as --name my_{self.name.lower()}."
            )
