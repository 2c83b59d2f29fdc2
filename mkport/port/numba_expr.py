"""Expressions of a Numba kernel as CUDA C++, each with its type and whether it may be negative."""

import ast
import math
from dataclasses import dataclass
from typing import Any

from numba import types

from mkport.port.numba_file import Module, Scope
from mkport.port.numba_types import (
    C_NAMES,
    OPERATORS,
    is_integer,
    resolve,
)

SYMBOLS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "BitAnd": "&", "BitOr": "|", "BitXor": "^",
    "LShift": "<<", "RShift": ">>", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==",
    "NotEq": "!=", "USub": "-", "UAdd": "+", "Invert": "~",
}  # fmt: skip
KEEP_SIGN = {"Add", "Mult", "FloorDiv", "Mod", "BitAnd", "BitOr", "RShift", "Div"}
INDICES = {"threadIdx", "blockIdx", "blockDim", "gridDim"}


@dataclass(frozen=True)
class Value:
    """C++ text with Numba's type; None while the type of a variable in it is unknown."""

    code: str
    kind: Any
    negative: bool = True  # may be below zero

    def cast(self, kind: Any) -> str:
        """The text in another type."""
        if kind is None or kind == self.kind:
            return self.code
        return f"({C_NAMES[kind]})({self.code})"


class Expressions:
    """Translates expressions of one kernel. What has no exact counterpart raises NumbaRefused, with
    its line."""

    def __init__(self, module: Module, scope: Scope) -> None:
        self.module, self.scope = module, scope
        self.functions = ""  # device functions that were called, as C++
        self._made: dict[tuple[Any, ...], tuple[str, Any] | None] = {}  # None: on its way

    def value(self, node: ast.expr) -> Value:
        """Any expression."""
        method = getattr(self, f"of_{type(node).__name__}", None)
        if method is None:
            self.module.refuse(node, f"`{ast.unparse(node)}` has no counterpart in a kernel.")
        found: Value = method(node)
        return found

    def kind(self, node: ast.expr) -> Any:
        """An expression's type alone."""
        return self.value(node).kind

    def truth(self, node: ast.expr) -> str:
        """An expression as a condition."""
        return self.value(node).code

    def of_Constant(self, node: ast.Constant) -> Value:
        """A number or a truth value: integers are int64, floats float64, as Numba has it."""
        value = node.value
        if isinstance(value, bool):
            return Value(str(value).lower(), types.boolean, False)
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                self.module.refuse(node, f"{value} is no int64.")
            return Value(
                f"{value}ll" if abs(value) >= 2**31 else str(value), types.int64, value < 0
            )
        if isinstance(value, float):
            return self._number(value)
        self.module.refuse(node, f"{value!r} has no counterpart in a kernel.")

    def _number(self, value: float) -> Value:
        if math.isinf(value) or math.isnan(value):
            text = "__longlong_as_double(0x7ff0000000000000ll)"
            if math.isnan(value):
                text = "__longlong_as_double(0x7ff8000000000000ll)"
            return Value(f"-{text}" if value < 0 else text, types.float64)
        return Value(repr(value), types.float64)

    def of_Name(self, node: ast.Name) -> Value:
        """A variable, or a number of the file; an array has no value of its own."""
        if node.id in self.scope.types:
            kind = self.scope.types[node.id]
            below = node.id in self.scope.negative and getattr(kind, "signed", True)
            return Value(node.id, kind, below)
        if node.id in self.module.constants:
            return self.of_Constant(
                ast.copy_location(ast.Constant(self.module.constants[node.id]), node)
            )
        if node.id in self.scope.arrays or node.id in self.scope.local:
            self.module.refuse(node, f"the array {node.id} is used whole; take its elements.")
        if node.id in self.scope.assigned:
            return Value(node.id, None)  # assigned further down, in a loop
        self.module.refuse(node, f"{node.id} is neither a variable nor a number of the file.")

    def of_BinOp(self, node: ast.BinOp) -> Value:
        """Arithmetic in the types of Numba's own signature; `//` and `%` round down as Python's."""
        name = type(node.op).__name__
        left = self.value(node.left)
        if name == "Pow":
            return self._power(node, left)
        right = self.value(node.right)
        if left.kind is None or right.kind is None:
            return Value("0", None)
        signature = resolve(OPERATORS[name], (left.kind, right.kind)) if name in OPERATORS else None
        if signature is None or signature.return_type not in C_NAMES:
            self.module.refuse(node, f"`{ast.unparse(node)}` has no counterpart for these types.")
        kind = signature.return_type
        sides = (kind, kind) if name == "Div" else signature.args  # a quotient is never an integer
        a, b = (v.cast(k) for v, k in zip((left, right), sides, strict=True))
        below = left.negative or right.negative or name not in KEEP_SIGN
        if name in ("FloorDiv", "Mod"):
            if not is_integer(kind):
                self.module.refuse(node, f"`{ast.unparse(node)}` divides with a floor in floats.")
            if not below:
                return Value(f"({a} {'/' if name == 'FloorDiv' else '%'} {b})", kind, False)
            return Value(f"{'numba_div' if name == 'FloorDiv' else 'numba_mod'}({a}, {b})", kind)
        return Value(f"({a} {SYMBOLS[name]} {b})", kind, below)

    def _power(self, node: ast.BinOp, base: Value) -> Value:
        if base.kind is None:
            return Value("0", None)
        times = {"2": 2, "3": 3}.get(ast.unparse(node.right))
        if times is None:
            self.module.refuse(node, "only powers 2 and 3 have an exact counterpart: multiply.")
        if is_integer(base.kind):
            base = Value(base.cast(types.int64), types.int64, base.negative)
        if not isinstance(node.left, ast.Name | ast.Subscript):
            self.module.refuse(node, "give what is squared a name first.")
        return Value(f"({' * '.join([base.code] * times)})", base.kind, base.negative)

    def of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        """A sign, `~` or `not`."""
        given = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return Value(f"(!{given.code})", types.boolean, False)
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return Value(f"(-{given.code})", given.kind)
        if given.kind is None:
            return Value("0", None)
        name = type(node.op).__name__
        signature = resolve(OPERATORS[name], (given.kind,))
        if signature is None:
            self.module.refuse(node, f"`{ast.unparse(node)}` has no counterpart.")
        text = f"({SYMBOLS[name]}{given.cast(signature.args[0])})"
        return Value(text, signature.return_type)

    def of_Compare(self, node: ast.Compare) -> Value:
        """A comparison; of a chain each pair, joined."""
        parts = []
        values = [self.value(item) for item in [node.left, *node.comparators]]
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            name = type(op).__name__
            if name not in SYMBOLS:
                self.module.refuse(node, f"`{ast.unparse(node)}` has no counterpart.")
            if left.kind is None or right.kind is None:
                parts.append("true")
                continue
            signature = resolve(OPERATORS[name], (left.kind, right.kind))
            if signature is None:
                self.module.refuse(node, f"`{ast.unparse(node)}` has no counterpart.")
            a, b = (v.cast(k) for v, k in zip((left, right), signature.args, strict=True))
            parts.append(f"{a} {SYMBOLS[name]} {b}")
        return Value(f"({' && '.join(parts)})", types.boolean, False)

    def of_BoolOp(self, node: ast.BoolOp) -> Value:
        """`and`, `or` of conditions alone: of numbers they would give one of them."""
        values = [self.value(item) for item in node.values]
        if any(v.kind not in (None, types.boolean) for v in values):
            self.module.refuse(node, "`and` and `or` of what is no condition give an operand.")
        symbol = " && " if isinstance(node.op, ast.And) else " || "
        return Value(f"({symbol.join(v.code for v in values)})", types.boolean, False)

    def of_IfExp(self, node: ast.IfExp) -> Value:
        """`a if c else b`, where both are of one type, or floats: then of the wider, as Numba has
        it."""
        first, second = self.value(node.body), self.value(node.orelse)
        if first.kind is None or second.kind is None:
            return Value("0", first.kind or second.kind)
        floats = isinstance(first.kind, types.Float) and isinstance(second.kind, types.Float)
        if first.kind != second.kind and not floats:
            self.module.refuse(node, f"one side is {first.kind}, the other {second.kind}.")
        text = f"({self.truth(node.test)} ? {first.code} : {second.code})"
        kind = max(first.kind, second.kind, key=lambda k: k.bitwidth) if floats else first.kind
        return Value(text, kind, first.negative or second.negative)

    def of_Attribute(self, node: ast.Attribute) -> Value:
        """A place in the grid (`cuda.threadIdx.x`), a number of `math`, the size of a vector."""
        text = ast.unparse(node)
        first, _, rest = text.removeprefix("cuda.").partition(".")
        if first in INDICES and rest in ("x", "y", "z"):
            return Value(f"(int){first}.{rest}", types.int32, False)
        if text in ("cuda.warpsize",):
            return Value("32", types.int32, False)
        if text == "cuda.laneid":
            self.module.refuse(node, "cuda.laneid: write threadIdx.x % 32.")
        if text in ("math.pi", "math.e", "math.inf", "math.nan", "np.inf", "np.nan", "np.pi"):
            return self._number(getattr(math, node.attr))
        if node.attr == "size" and isinstance(node.value, ast.Name):
            dims = self.scope.arrays.get(node.value.id)
            if dims is not None and dims.ndim == 1:
                return self.size(node.value, 0)
        self.module.refuse(node, f"`{text}` has no counterpart in a kernel.")

    def size(self, array: ast.expr, axis: int) -> Value:
        """x.shape[axis]."""
        name = ast.unparse(array)
        if name in self.scope.local:
            return Value(str(self.scope.local[name][1][axis]), types.int64, False)
        kind = self.scope.arrays.get(name)
        if kind is None or not 0 <= axis < kind.ndim:
            self.module.refuse(array, f"{name} has no size {axis}.")
        self.scope.sizes.add((name, axis))
        return Value(f"(long long){name}_{axis}", types.int64, False)

    def grid(self, called: str, axis: int) -> Value:
        """One component of cuda.grid or cuda.gridsize."""
        x = "xyz"[axis]
        block = f"(long long)block{'Idx' if called == 'cuda.grid' else 'Dim'}.{x}"
        if called == "cuda.grid":
            return Value(f"({block} * blockDim.{x} + threadIdx.{x})", types.int64, False)
        return Value(f"({block} * gridDim.{x})", types.int64, False)

    def of_Subscript(self, node: ast.Subscript) -> Value:
        """An element that is read, or one of a shape's sizes."""
        shape = node.value
        if isinstance(shape, ast.Attribute) and shape.attr == "shape":
            if not isinstance(node.slice, ast.Constant) or not isinstance(node.slice.value, int):
                self.module.refuse(node, "a shape is indexed by a number.")
            return self.size(shape.value, node.slice.value)
        return self.element(node, written=False)

    def element(self, node: ast.Subscript, written: bool) -> Value:
        """An element of an array; negative indices count from the end, as Numba has it."""
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        base = node.value
        while isinstance(base, ast.Subscript):  # x[i][j]
            more = base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]
            indices, base = [*more, *indices], base.value
        name = ast.unparse(base)
        if name in self.scope.local:
            kind, dims, _ = self.scope.local[name]
            sizes = [str(dim) for dim in dims]
        elif name in self.scope.arrays:
            kind = self.scope.arrays[name].dtype
            sizes = [f"{name}_{axis}" for axis in range(self.scope.arrays[name].ndim)]
        else:
            self.module.refuse(node, f"{name} is no array that the kernel has.")
        if len(indices) != len(sizes):
            self.module.refuse(
                node, f"{name} has {len(sizes)} dimensions, {len(indices)} are given."
            )
        at = ""
        for axis, index in enumerate(indices):
            value = self.value(index)
            if value.kind is not None and not is_integer(value.kind):
                self.module.refuse(index, f"an index of type {value.kind}.")
            code = value.cast(types.int64)
            if value.negative:
                code = f"numba_at({code}, {sizes[axis]})"
            if name in self.scope.arrays and (axis or value.negative):
                self.scope.sizes.add((name, axis))
            at = f"({at}) * {sizes[axis]} + {code}" if at else code
        if written:
            self.scope.written.add(name)
        return Value(f"{name}[{at}]", kind, getattr(kind, "signed", True))
