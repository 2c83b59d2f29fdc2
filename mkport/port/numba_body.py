"""The body of an `@njit` function as the CPU machine's: element reads and writes, sizes, numbers.

Which loop becomes the tiles, and the op's files, stand in `numba_tiles.py`.
"""

import ast
from dataclasses import dataclass, field
from typing import Any

from numba import types

from mkport.port.numba_file import Module, split_types
from mkport.port.numba_types import array_type, is_float, is_integer

STORED = {types.float32: "f32", types.int32: "i32"}
FAST = "fast" + "math"  # the option that is refused
BODY_NAMES = ("a", "tile", "arena")  # the parameters of a body


@dataclass
class _Use:
    """How the tiles touch an array: the axes at which the tile's variable stands, in all places."""

    kind: Any
    reads: list[set[int]] = field(default_factory=list)
    writes: list[set[int]] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)


class NjitBody(ast.NodeTransformer):
    """One function's statements on their way. Raises NumbaRefused with a line."""

    tile: str  # the variable of the loop whose iterations are the tiles

    def __init__(self, module: Module, node: ast.FunctionDef, signature: str) -> None:
        self.module, self.node = module, node
        refuse_loose(module, node)
        names, parts = [arg.arg for arg in node.args.args], split_types(signature)
        if len(names) != len(parts):
            module.refuse(
                node,
                f"{node.name} has {len(names)} arguments and {len(parts)} types are given: name "
                'them all, as in "float32[:,:], float32[:], int32".',
            )
        self.uses: dict[str, _Use] = {}
        self.scalars: dict[str, str] = {}
        for name, text in zip(names, parts, strict=True):
            try:
                kind = array_type(text)
            except ValueError as error:
                module.refuse(node, f"the type of {name}: {error}.")
            self._argument(name, kind)
        self.names = names
        self.primitives = {"body"}
        self.helpers: dict[str, ast.FunctionDef] = {}
        self.inside = False
        self.own = own_names(node)
        self.tile_counts = True  # from 0 up

    def _argument(self, name: str, kind: Any) -> None:
        if isinstance(kind, types.Array):
            if kind.dtype not in STORED:
                self.module.refuse(
                    self.node, f"{name} holds {kind.dtype}; the CPU machine has float32 and int32."
                )
            self.uses[name] = _Use(kind)
        elif is_integer(kind):
            self.scalars[name] = "integer"
        elif is_float(kind) and kind.bitwidth == 32:
            self.scalars[name] = "real"
        else:
            self.module.refuse(
                self.node, f"{name} is a {kind}; a record carries int32 and float32."
            )

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An element of an argument becomes a load by its place in memory, rows first; a size of a
        shape an argument of the op. Raises NumbaRefused for slices and elements of elements."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            axis = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return self._size(node, ast.unparse(node.value.value), axis)
        name = ast.unparse(node.value)
        if name not in self.uses:
            if isinstance(node.value, ast.Subscript):
                self.module.refuse(node, "write x[i, j], not x[i][j].")
            return self.generic_visit(node)
        use = self.uses[name]
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != use.kind.ndim or any(isinstance(i, ast.Slice) for i in indices):
            self.module.refuse(node, f"{name} has {use.kind.ndim} dimensions; take one element.")
        own = {k for k, i in enumerate(indices) if isinstance(i, ast.Name) and i.id == self.tile}
        (use.writes if isinstance(node.ctx, ast.Store) else use.reads).append(own)
        if not self.inside and isinstance(node.ctx, ast.Store):
            self.module.refuse(node, "an array is written before the loop of tiles.")
        at: ast.expr | None = None
        for axis, index in enumerate(indices):
            place = self.visit(index)
            if not self._is_counter(index):
                size = self._size(node, name, axis)
                test = ast.parse(f"{ast.unparse(place)} < 0", mode="eval").body
                wrapped = ast.BinOp(place, ast.Add(), size)
                place = ast.IfExp(test, wrapped, place)
            if at is not None:
                at = ast.BinOp(at, ast.Mult(), self._size(node, name, axis))
            at = place if at is None else ast.BinOp(at, ast.Add(), place)
        letter = "f32" if use.kind.dtype == types.float32 else "i32"
        self.primitives.add(f"get_{letter}")
        call = ast.parse(f"get_{letter}(a.{name}, 0)", mode="eval").body
        assert isinstance(call, ast.Call) and at is not None
        call.args[1] = at
        return call

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """An assignment to an element becomes a store, one from a shape one from its sizes. Raises
        NumbaRefused where several elements are assigned at once."""
        target = node.targets[0]
        value = node.value
        if isinstance(value, ast.Attribute) and value.attr == "shape":
            array = ast.unparse(value.value)
            count = self.uses[array].kind.ndim if array in self.uses else 0
            sizes = [self._size(value, array, k) for k in range(count)]
            return ast.Assign(node.targets, ast.Tuple(sizes, ast.Load()), lineno=node.lineno)
        if isinstance(target, ast.Tuple) and any(isinstance(t, ast.Subscript) for t in target.elts):
            self.module.refuse(node, "assign one element at a time.")
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in self.uses:
            return self._set(target, self.visit(value))
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """`x[i] += v` becomes a load and a store."""
        if isinstance(node.target, ast.Subscript) and ast.unparse(node.target.value) in self.uses:
            load = ast.Subscript(node.target.value, node.target.slice, ast.Load())
            old = self.visit(ast.copy_location(load, node))
            return self._set(node.target, ast.BinOp(old, node.op, self.visit(node.value)))
        return self.generic_visit(node)

    def _set(self, target: ast.Subscript, value: ast.expr) -> ast.AST:
        get = self.visit(target)
        assert isinstance(get, ast.Call) and isinstance(get.func, ast.Name)
        name = get.func.id.replace("get", "set")
        self.primitives.add(name)
        return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [*get.args, value], []))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`len` of an argument becomes its size; a function of the file is taken along, under a
        name that no other op's file has."""
        called = ast.unparse(node.func)
        if called in self.own and called in self.module.functions:
            self.module.refuse(node, f"{called} is a variable here and a function of the file.")
        if called == "len" and node.args and ast.unparse(node.args[0]) in self.uses:
            return self._size(node, ast.unparse(node.args[0]), 0)
        if called in self.module.functions:
            self.helpers[called] = self.module.functions[called]
            node = ast.Call(ast.Name(f"{self.node.name}_{called}", ast.Load()), node.args, [])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A number of the file by its value. Raises NumbaRefused for an array as a whole."""
        if node.id in self.uses:
            self.module.refuse(node, f"the array {node.id} is used whole; take its elements.")
        constant = node.id in self.module.constants and node.id not in self.own
        if constant and isinstance(node.ctx, ast.Load):
            return ast.Constant(self.module.constants[node.id])
        return ast.Name(self.safe(node.id), node.ctx)

    def safe(self, name: str) -> str:
        """What a variable of the function is called in the body."""
        if name not in BODY_NAMES or name not in self.own or name in self.uses:
            return name
        while name in self.own or name in BODY_NAMES:
            name += "_"
        return name

    def _size(self, node: ast.AST, name: str, axis: Any) -> ast.expr:
        if name not in self.uses or not isinstance(axis, int) or axis >= self.uses[name].kind.ndim:
            self.module.refuse(node, f"{name} has no size {axis}.")
        self.uses[name].sizes.add(axis)
        return ast.parse(f"a.{name}_{axis}", mode="eval").body

    def _is_counter(self, node: ast.expr) -> bool:
        """Whether an index is never below zero: counters of loops from 0 up, sums of such."""
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int) and node.value >= 0
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self._is_counter(node.left) and self._is_counter(node.right)
        if not isinstance(node, ast.Name):
            return False
        if node.id == self.tile:
            return self.tile_counts
        return self._counts_up(node.id)

    def _counts_up(self, name: str) -> bool:
        stores = [n for n in ast.walk(self.node) if is_stored(n) and n.id == name]  # type: ignore[attr-defined]
        loops = [
            n for n in ast.walk(self.node)
            if isinstance(n, ast.For) and isinstance(n.target, ast.Name) and n.target.id == name
            and isinstance(n.iter, ast.Call) and len(n.iter.args) <= 2
            and (len(n.iter.args) == 1 or self._is_counter(n.iter.args[0]))
        ]  # fmt: skip
        return bool(loops) and len(stores) == len(loops)


def is_stored(node: ast.AST) -> bool:
    """Whether a node is a name that is assigned to."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def own_names(function: ast.FunctionDef) -> set[str]:
    """A function's parameters and variables, which hide the file's names."""
    stored = {n.id for n in ast.walk(function) if is_stored(n)}  # type: ignore[attr-defined]
    return stored | {arg.arg for arg in function.args.args}


def refuse_loose(module: Module, function: ast.FunctionDef) -> None:
    """Raises NumbaRefused for a function whose sums may be taken in any order."""
    for decorator in function.decorator_list:
        if FAST in ast.unparse(decorator):
            module.refuse(decorator, f"with {FAST} Numba promises no bits: leave it out.")
