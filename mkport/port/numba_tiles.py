"""An `@njit` function rewritten as an op of the CPU machine: its outermost loop becomes the tiles.

The function stays Python: element reads and writes become the machine's, sizes and numbers become
arguments of the record. A loop whose iterations are not seen to be independent is refused with its
line.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mkport.files import make_folder, write_text
from mkport.port.numba_body import STORED, NjitBody, is_stored, own_names, refuse_loose
from mkport.port.numba_carried import kept, unset
from mkport.port.numba_words import refuse_foreign

VECTOR = "mkport.machines.cpu.vector"


@dataclass(frozen=True)
class PortedNjit:
    """The port: its files' texts by name, and the arrays' sizes that are arguments of the op."""

    name: str
    path: Path
    files: dict[str, str]
    sizes: dict[str, tuple[str, int]]  # argument: array, axis
    arrays: tuple[str, ...]

    def write(self, folder: Path) -> Path:
        """Writes the op's folder, `folder`/`name`, and returns it. Raises UserError."""
        target = make_folder(folder / self.name)
        for file, text in self.files.items():
            write_text(target / file, text)
        return target


class NjitPort(NjitBody):
    """One function on its way to an op. Raises NumbaRefused with a line.

    `stage` is the step of a port's report that it is at.
    """

    stage = "scan"
    count = ""  # how many tiles there are, in terms of the op's arguments

    def ported(self) -> PortedNjit:
        """The files."""
        refuse_foreign(self.module, self.node, self.own)
        self.stage = "geometry"
        body = [s for s in self.node.body if not _is_text(s)]
        if not body or not isinstance(body[-1], ast.For) or body[-1].orelse:
            self.module.refuse(
                body[-1] if body else self.node,
                "its last statement is not the loop whose iterations are to be tiles.",
            )
        loop, before = body[-1], body[:-1]
        count, first, step = self._range(loop, before)
        self.count, self.loop = count, loop
        self.stage = "control flow"
        self._check_independent(before, loop)
        self.stage = "memory"
        prefix = [self.visit(s) for s in before]
        self.inside = True
        inner = [self.visit(_ended(s)) for s in loop.body]
        self._check_apart(loop)
        self.stage = "emit"
        numbers = [f"{self.safe(name)} = a.{name}" for name in self.scalars]
        place = "tile" if (first, step) == ("0", "1") else f"{first} + tile * {step}"
        lines = [*numbers, *map(ast.unparse, prefix), f"{self.safe(self.tile)} = {place}"]
        lines += map(ast.unparse, inner)
        name = self.node.name
        helpers = "\n\n\n".join(self._helper(f) for f in self.helpers.values())
        doc = ast.get_docstring(self.node) or f"Tile `{self.tile}` of {name}."
        text = "\n".join(lines).replace("\n", "\n    ")
        task = (
            f'"""The body of {name}, ported from {self.module.path.name}."""\n\n'
            + ("import math\n\n" if "math." in text + helpers else "")
            + ("import numpy as np\n\n" if "np." in text + helpers else "")
            + f"from {VECTOR} import {', '.join(sorted(self.primitives))}\n\n\n"
            + (helpers + "\n\n\n" if helpers else "")
            + f'@body\ndef {name}(a, tile, arena):\n    """{doc}"""\n    {text}\n'
        )
        sizes = {
            f"{n}_{axis}": (n, axis) for n, use in self.uses.items() for axis in sorted(use.sizes)
        }
        files = {
            "op.py": self._op(sizes, count),
            "task.py": task,
            "standalone.py": self.module.path.read_text(encoding="utf-8"),
        }
        return PortedNjit(name, self.module.path, files, sizes, tuple(self.uses))

    # What the loop must be.

    def _range(self, loop: ast.For, before: list[ast.stmt]) -> tuple[str, str, str]:
        """The number of tiles for the declaration, and first and step for the body."""
        known = self._known(before)
        call = loop.iter
        if not (
            isinstance(loop.target, ast.Name) and isinstance(call, ast.Call)
            and ast.unparse(call.func).split(".")[-1] in ("range", "prange")
        ):  # fmt: skip
            self.module.refuse(loop, "tiles are `for NAME in range(...)` or prange.")
        self.tile = loop.target.id
        args = [ast.unparse(self.visit(arg)) for arg in call.args]
        first = args[0] if len(args) > 1 else "0"
        stop = args[1] if len(args) > 1 else args[0]
        step = args[2] if len(args) > 2 else "1"
        if not step.isdigit() or step == "0":
            self.module.refuse(loop, "tiles step by a positive number that is written there.")
        for name, text in (known | {self.safe(n): f"a.{n}" for n in self.scalars}).items():
            first, stop = (_named(t, name, text) for t in (first, stop))
        unknown = {
            n.id for t in (first, stop) for n in ast.walk(ast.parse(t)) if isinstance(n, ast.Name)
        } - {"a", "max", "min", "abs", "int"}
        if unknown:
            self.module.refuse(
                loop, f"the number of tiles depends on {sorted(unknown)[0]}: it must follow from "
                "the arguments alone.",
            )  # fmt: skip
        self.place = first, step
        self.tile_counts = first.isdigit()
        whole = (first, step) == ("0", "1")
        if whole and (
            stop.isdigit() or stop in {f"a.{n}_{k}" for n in self.uses for k in range(9)}
        ):
            return stop, first, step
        more = f"max(0, {stop})" if whole else f"max(0, -(({first} - {stop}) // {step}))"
        return more, first, step

    def _known(self, before: list[ast.stmt]) -> dict[str, str]:
        """What the numbers before the loop are, in terms of the arguments; the last one first."""
        known: dict[str, str] = {}
        stored: set[str] = set(self.scalars)
        for statement in before:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and is_stored(node):
                    if node.id in stored:
                        self.module.refuse(statement, f"{node.id} is set twice before the loop.")
                    stored.add(node.id)
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            copied = ast.parse(ast.unparse(statement)).body[0]
            assert isinstance(copied, ast.Assign)
            target, value = statement.targets[0], statement.value
            if isinstance(value, ast.Attribute) and value.attr == "shape":
                array = ast.unparse(value.value)
                names = target.elts if isinstance(target, ast.Tuple) else []
                for axis, name in enumerate(names):
                    size = ast.unparse(self._size(value, array, axis))
                    known = {self.safe(ast.unparse(name)): size} | known
            elif isinstance(target, ast.Name):
                text = ast.unparse(self.visit(copied.value))
                if "get_" not in text and not _is_empty(statement, target.id):
                    known = {self.safe(target.id): text} | known
        return known

    def _check_independent(self, before: list[ast.stmt], loop: ast.For) -> None:
        """What is made before the loop is not changed in it."""
        made = {
            n.id for s in before for n in ast.walk(s) if isinstance(n, ast.Name) and is_stored(n)
        }
        self._check_carried(before, loop)
        made |= set(self.scalars)
        for node in ast.walk(ast.Module(loop.body, [])):
            if isinstance(node, ast.Name) and is_stored(node) and node.id == self.tile:
                self.module.refuse(node, f"{self.tile} is changed in the loop that counts it.")
            if isinstance(node, ast.Name) and is_stored(node) and node.id in made:
                self.module.refuse(node, f"{node.id} goes from one iteration to the next.")
            if isinstance(node, ast.Return):
                self.module.refuse(node, "a return ends all the iterations that follow.")
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                name = ast.unparse(node.value)
                if name in made and not any(_is_empty(s, name) for s in before):
                    self.module.refuse(node, f"{name} goes from one iteration to the next.")
        for statement in before:
            if not isinstance(statement, ast.Assign):
                self.module.refuse(statement, "before the loop of tiles stand assignments alone.")

    def _check_carried(self, before: list[ast.stmt], loop: ast.For) -> None:
        """What an iteration makes for itself it sets before it reads it."""
        if breaks := [n for s in loop.body for n in _outer(s) if isinstance(n, ast.Break)]:
            self.module.refuse(breaks[0], "a break ends all the iterations that follow.")
        given = {self.tile, *self.names, *(n.id for s in before for n in ast.walk(s)
                                           if isinstance(n, ast.Name))}  # fmt: skip
        for name in unset(loop.body, given):
            self.module.refuse(
                name, f"{name.id} may still have the value of an iteration before: set it in each, "
                "on every path.",
            )  # fmt: skip
        for statement in before:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if not isinstance(target, ast.Name) or not _is_empty(statement, target.id):
                continue
            if (first := kept(loop.body, target.id)) is not None:
                self.module.refuse(
                    first, f"{target.id} may still hold what an iteration before wrote: write its "
                    "elements first, in each.",
                )  # fmt: skip

    def _check_apart(self, loop: ast.For) -> None:
        """Every array that is written is touched at the tile's own place along some axis."""
        for name, use in self.uses.items():
            if use.writes and not set.intersection(*use.writes, *use.reads):
                self.module.refuse(
                    loop,
                    f"{name} is not written at `{self.tile}` alone: iterations are not seen to be "
                    f"apart. Index one of its dimensions by {self.tile} in every place.",
                )

    def mode(self, name: str) -> str:
        """What the tiles do with an array: "read", "write" or "update"."""
        use = self.uses[name]
        return "read" if not use.writes else "update" if use.reads else "write"

    def stored(self, name: str) -> str:
        """An array's storage type."""
        return STORED[self.uses[name].kind.dtype]

    # The other texts.

    def _helper(self, function: ast.FunctionDef) -> str:
        """A function of the file that the body calls, under a name of the op's."""
        if any(
            isinstance(n, ast.Subscript | ast.Attribute) and _is_array(n)
            for n in ast.walk(function)
        ):
            self.module.refuse(function, f"{function.name} takes an array: pass it numbers.")
        refuse_loose(self.module, function)
        own = own_names(function)
        refuse_foreign(self.module, function, own)
        copied = ast.parse(ast.unparse(function)).body[0]
        assert isinstance(copied, ast.FunctionDef)
        for node in ast.walk(copied):
            if isinstance(node, ast.Name) and node.id in own:
                continue
            if isinstance(node, ast.Name) and node.id in self.module.functions:
                if node.id not in self.helpers:
                    self.module.refuse(function, f"{function.name} calls {node.id}: inline it.")
                node.id = f"{self.node.name}_{node.id}"
            if isinstance(node, ast.Name) and node.id in self.module.constants:
                node.id = repr(self.module.constants[node.id])
        copied.name = f"{self.node.name}_{function.name}"
        copied.decorator_list = [ast.Name("body", ast.Load())]
        return ast.unparse(copied)

    def _op(self, sizes: Mapping[str, tuple[str, int]], count: str) -> str:
        name = self.node.name
        args, accesses, modes = [], [], {"immutable": 0, "read": 0, "write": 0, "update": 0}
        for arg in self.names:
            if arg in self.scalars:
                args.append(f'        {self.scalars[arg]}("{arg}", "argument of {name}"),')
                continue
            use = self.uses[arg]
            dtype = self.stored(arg)
            args.append(f'        tensor("{arg}", "{dtype}", "{use.kind.ndim} dimensions"),')
            mode = self.mode(arg)
            modes[mode] += 1
            own = set.intersection(*use.writes, *use.reads) if use.writes or use.reads else set()
            first, step = self.place
            place = "tile" if self.place == ("0", "1") else f"{first} + tile * {step}"
            box = ", ".join(
                f"({place}, {place} + 1)" if axis in own
                else f"(0, a.{arg}.shape[{axis}])"
                for axis in range(use.kind.ndim)
            )  # fmt: skip
            accesses.append(f'    yield {mode}("{arg}", {box})')
        args += [f'        integer("{size}", "size {axis} of {array}"),'
                 for size, (array, axis) in sizes.items()]  # fmt: skip
        kinds = {line.split("(")[0].strip() for line in args} | {m for m, n in modes.items() if n}
        checks = [
            f"    if a.{size} != a.{array}.shape[{axis}]:\n"
            f'        yield f"{size} is {{a.{size}}}, but size {axis} of {array} is '
            f'{{a.{array}.shape[{axis}]}}"'
            for size, (array, axis) in sizes.items()
        ]
        if not self.place[0].isdigit():
            checks.append(
                f"    if ({self.place[0]}) < 0:\n"
                f'        yield "tiles are counted from 0 up, and the first is below that"'
            )
        checks = checks or ["    return ()"]
        return "\n".join([
            f'"""The op {name}, ported from {self.module.path.name}."""', "",
            "from pathlib import Path", "",
            f"from mkport.declare import {', '.join(['Op', *sorted(kinds)])}", "", "",
            "def access(a, tile):", '    """What tile number `tile` touches."""', *accesses, "", "",
            "def valid(a):", '    """What the arguments must satisfy."""', *checks, "", "",
            "OP = Op(", f'    name="{name}",', f'    doc="{_first_line(self.node)}",',
            "    args=(", *args, "    ),", f"    tiles=lambda a: {count},", "    access=access,",
            "    valid=valid,", '    order="that of the function it was ported from",',
            "    folder=Path(__file__).parent,", ")", "",
        ])  # fmt: skip


def _outer(node: ast.stmt) -> Iterator[ast.AST]:
    """A statement and what stands in it, without the loops in it."""
    yield node
    if not isinstance(node, ast.For | ast.While):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from _outer(child)


class _Continued(ast.NodeTransformer):
    """`continue` of the loop of tiles ends the tile."""

    def visit_For(self, node: ast.For) -> ast.AST:
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return node

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return ast.copy_location(ast.Return(None), node)


def _ended(statement: ast.stmt) -> ast.stmt:
    ended = _Continued().visit(statement)
    assert isinstance(ended, ast.stmt)
    return ended


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_empty(node: ast.stmt, name: str) -> bool:
    """`name = np.empty(...)`: nobody relies on what it holds."""
    return (
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        and isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith(".empty")
    )  # fmt: skip


def _is_array(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Attribute) and node.attr == "shape"
    )


def _named(text: str, name: str, new: str) -> str:
    class Renamer(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.parse(new, mode="eval").body if node.id == name else node

    return ast.unparse(Renamer().visit(ast.parse(text, mode="eval")))


def _first_line(node: ast.FunctionDef) -> str:
    text = (ast.get_docstring(node) or node.name).split("\n")[0]
    return text.replace("\\", "/").replace('"', "'")
