"""Translates a Numba `@cuda.jit` kernel into CUDA C++, statement by statement, line for line.

The file is read, never imported. Types are Numba's own (`numba_types.py`); what has no exact
counterpart is refused with its line. Each statement stands on the line that it has in the Python
file, so that whatever is found in the text later is found there.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numba import types

from mkport.port.numba_calls import Calls
from mkport.port.numba_expr import Value
from mkport.port.numba_file import Module, Scope, constant, read_module, signature_of, split_types
from mkport.port.numba_types import C_NAMES, array_type, is_integer, merged

HELPERS = """\
__device__ inline long long numba_at(long long i, long long n) { return i < 0 ? i + n : i; }
__device__ inline long long numba_div(long long a, long long b) { long long q = a / b; return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }
__device__ inline long long numba_mod(long long a, long long b) { long long r = a % b; return r && (r < 0) != (b < 0) ? r + b : r; }
"""  # noqa: E501
PASSES = 12  # over a kernel until its variables' types stand still


@dataclass(frozen=True)
class Parameter:
    """A parameter of the CUDA kernel: an argument of the Python one, or a size of an array."""

    name: str
    array: str = ""  # for a size: whose
    axis: int = 0


@dataclass(frozen=True)
class Translated:
    """A CUDA file with one kernel, and what its parameters are."""

    kernel: str
    text: str
    parameters: tuple[Parameter, ...]

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The CUDA kernel's arguments from the Python kernel's: arrays bring their sizes."""
        return {
            p.name: int(given[p.array].shape[p.axis]) if p.array else given[p.name]
            for p in self.parameters
        }


def translate(path: Path, kernel: str | None = None, signature: str | None = None) -> Translated:
    """Translates a kernel of a Python file.

    `kernel` is the function's name, which may be left out where the file has one. `signature`
    gives the argument types, such as "float32[:,:], float32[:,:], int32", unless the decorator
    does; arrays are contiguous, rows first. Raises UserError, and NumbaRefused with a line.
    """
    module = read_module(path)
    function = module.kernel(kernel)
    return _Kernel(module, function, signature or signature_of(function) or "").translated()


class _Kernel:
    def __init__(self, module: Module, function: ast.FunctionDef, signature: str) -> None:
        self.module, self.function = module, function
        self.names = [arg.arg for arg in function.args.args]
        parts = split_types(signature)
        if len(parts) != len(self.names):
            module.refuse(
                function,
                f"{function.name} has {len(self.names)} arguments and {len(parts)} types are "
                'given: name them all, as in "float32[:,:], float32[:], int32".',
            )
        self.scope = Scope()
        for name, text in zip(self.names, parts, strict=True):
            try:
                kind = array_type(text)
            except ValueError as error:
                module.refuse(function, f"the type of {name}: {error}.")
            where = self.scope.arrays if isinstance(kind, types.Array) else self.scope.types
            where[name] = kind
        self.scalars = dict(self.scope.types)
        self.scope.negative = set(self.scalars)
        self.scope.assigned = {
            n.id for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }  # fmt: skip
        self.lines: dict[int, str] = {}
        self.changed = True

    def translated(self) -> Translated:
        """Passes over the body until the variables' types stand still, then the text."""
        for _ in range(PASSES):
            self.lines, self.changed = {}, False
            self.expressions = Calls(self.module, self.scope)
            self.body(self.function.body)
            if not self.changed:
                break
        unknown = [name for name, kind in self.scope.types.items() if kind is None]
        if unknown:
            self.module.refuse(self.function, f"the type of {unknown[0]} cannot be told.")
        parameters, declared = self._parameters()
        head = f'extern "C" __global__ void {self.function.name}({", ".join(declared)}) {{'
        first = self.function.lineno
        variables = {n: k for n, k in self.scope.types.items() if n not in self.scalars}
        local = [
            f"{where}{C_NAMES[kind]} {name}[{' * '.join(map(str, shape))}];"
            for name, (kind, shape, where) in self.scope.local.items()
        ]
        local += [f"{C_NAMES[kind]} {name};" for name, kind in variables.items()]
        helpers = self.expressions.functions + HELPERS.replace("\n", " ")
        text = [helpers.strip() + f"  // translated from {self.module.path.name}"]
        last = max([*self.lines, first])
        for line in range(2, last + 1):
            if line == first:
                text.append(f"{head} {' '.join(local)}".rstrip())
            else:
                text.append(self.lines.get(line, "") if line > first else "")
        return Translated(self.function.name, "\n".join(text) + " }\n", tuple(parameters))

    def _parameters(self) -> tuple[list[Parameter], list[str]]:
        parameters, declared = [], []
        for name in self.names:
            parameters.append(Parameter(name))
            if name not in self.scope.arrays:
                declared.append(f"{C_NAMES[self.scalars[name]]} {name}")
                continue
            kind = self.scope.arrays[name]
            const = "" if name in self.scope.written else "const "
            declared.append(f"{const}{C_NAMES[kind.dtype]}* {name}")
            for axis in range(kind.ndim):
                if (name, axis) in self.scope.sizes:
                    parameters.append(Parameter(f"{name}_{axis}", name, axis))
                    declared.append(f"int {name}_{axis}")
        return parameters, declared

    # Statements.

    def put(self, node: ast.AST, text: str) -> None:
        line = node.lineno  # type: ignore[attr-defined]
        indent = " " * node.col_offset if line not in self.lines else " "  # type: ignore[attr-defined]
        self.lines[line] = self.lines.get(line, "") + indent + text

    def close(self) -> None:
        self.lines[max(self.lines)] += " }"

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            method = getattr(self, f"do_{type(statement).__name__}", None)
            if method is None:
                word = type(statement).__name__
                self.module.refuse(statement, f"a {word} statement has no counterpart in a kernel.")
            method(statement)

    def do_Pass(self, node: ast.Pass) -> None:
        self.put(node, ";")

    def do_Break(self, node: ast.Break) -> None:
        self.put(node, "break;")

    def do_Continue(self, node: ast.Continue) -> None:
        self.put(node, "continue;")

    def do_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.module.refuse(node, "a kernel returns nothing.")
        self.put(node, "return;")

    def do_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return
        value = self.expressions.value(node.value)
        self.put(node, f"{value.code};")

    def do_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            self.module.refuse(node, "assign one name at a time.")
        target = node.targets[0]
        if isinstance(target, ast.Tuple):
            self._tuple(node, target)
        elif not self._array(target, node.value):
            self._store(node, target, self.expressions.value(node.value), node.value)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.module.refuse(node, "an annotation has no meaning for Numba here: leave it out.")

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        load = ast.copy_location(ast.parse(ast.unparse(node.target), mode="eval").body, node)
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        ast.fix_missing_locations(value)
        self._store(node, node.target, self.expressions.value(value), value)

    def do_If(self, node: ast.If) -> None:
        test = self.expressions.truth(node.test)
        self.put(node, f"if ({test}) {{")
        self.body(node.body)
        if node.orelse:
            self.lines[max(self.lines)] += " } else {"
            self.body(node.orelse)
        self.close()

    def do_While(self, node: ast.While) -> None:
        if node.orelse:
            self.module.refuse(node, "a while with an else has no counterpart.")
        self.put(node, f"while ({self.expressions.truth(node.test)}) {{")
        self.body(node.body)
        self.close()

    def do_For(self, node: ast.For) -> None:
        call = node.iter
        if (
            node.orelse or not isinstance(node.target, ast.Name) or not isinstance(call, ast.Call)
            or ast.unparse(call.func) != "range" or not 1 <= len(call.args) <= 3 or call.keywords
        ):  # fmt: skip
            self.module.refuse(node, "only `for NAME in range(...)` has a counterpart.")
        name = node.target.id
        if name in self.scope.loops:
            self.module.refuse(node, f"the loop around this one counts with {name} too.")
        given = [self.expressions.value(arg) for arg in call.args]
        if any(v.kind is not None and not is_integer(v.kind) for v in given):
            self.module.refuse(node, "a range of numbers that are no integers.")
        step = constant(call.args[2], self.module.constants) if len(given) == 3 else 1
        first = given[0].cast(types.int64) if len(given) > 1 else "0"
        stop = given[min(len(given) - 1, 1)].cast(types.int64)
        below = (len(given) > 1 and given[0].negative) or not (
            (step is not None and step > 0) or (len(given) == 3 and not given[2].negative)
        )
        self._assigned(node, name, Value("", types.int64, negative=below), False)
        n = f"{name}_{len(self.scope.loops)}"
        by = str(step) if step is not None else given[2].cast(types.int64)
        test = f"{n} < {n}_stop" if step is None or step > 0 else f"{n} > {n}_stop"
        if step is None and given[2].negative:
            test = f"({n}_step > 0 ? {n} < {n}_stop : {n} > {n}_stop)"
        self.put(
            node,
            f"for (long long {n} = {first}, {n}_stop = {stop}, {n}_step = {by}; {test}; "
            f"{n} += {n}_step) {{ {name} = {n};",
        )
        self.scope.loops.append(name)
        self.body(node.body)
        self.scope.loops.pop()
        self.close()

    def _tuple(self, node: ast.Assign, target: ast.Tuple) -> None:
        names = target.elts
        grid = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in (
            "cuda.grid",
            "cuda.gridsize",
        )
        if grid:
            for axis, name in enumerate(names):
                which = ast.unparse(node.value.func)  # type: ignore[attr-defined]
                self._store(node, name, self.expressions.grid(which, axis), None)
            return
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            for axis, name in enumerate(names):
                self._store(node, name, self.expressions.size(node.value.value, axis), None)
            return
        self.module.refuse(node, "assign one name at a time, but for cuda.grid(n) and x.shape.")

    def _array(self, target: ast.expr, value: ast.expr) -> bool:
        """`s = cuda.shared.array(shape, dtype)`: whether it is one."""
        if not isinstance(value, ast.Call) or not isinstance(target, ast.Name):
            return False
        called = ast.unparse(value.func)
        if called not in ("cuda.shared.array", "cuda.local.array"):
            return False
        given = dict(zip(("shape", "dtype"), value.args, strict=False))
        given |= {k.arg: k.value for k in value.keywords if k.arg}
        shape = given.get("shape")
        dims = shape.elts if isinstance(shape, ast.Tuple) else [shape]
        sizes = [None if d is None else constant(d, self.module.constants) for d in dims]
        try:
            kind = array_type(ast.unparse(given["dtype"]))
        except (KeyError, ValueError):
            self.module.refuse(value, "an array needs a dtype such as float32.")
        if not all(type(size) is int and size > 0 for size in sizes):
            self.module.refuse(
                value,
                "an array needs a shape of constants; shared memory of dynamic size has none.",
            )
        where = "__shared__ " if "shared" in called else ""
        self.scope.local[target.id] = (kind, tuple(int(s) for s in sizes if s is not None), where)
        self.put(value, "")
        return True

    def _store(
        self, node: ast.stmt, target: ast.expr, value: Value, source: ast.expr | None
    ) -> None:
        if isinstance(target, ast.Subscript):
            place = self.expressions.element(target, written=True)
            self.put(node, f"{place.code} = {value.cast(place.kind)};")
            return
        if not isinstance(target, ast.Name):
            self.module.refuse(node, "only names and elements are assigned.")
        literal = source is not None and type(constant(source, {})) is int
        self._assigned(node, target.id, value, literal)
        self.put(node, f"{target.id} = {value.cast(self.scope.types[target.id])};")

    def _assigned(self, node: ast.AST, name: str, value: Value, literal: bool) -> None:
        """Notes a variable's type and sign."""
        if name in self.scope.arrays or name in self.scope.local:
            self.module.refuse(node, f"{name} is an array and is assigned a number.")
        if name in self.scope.loops:
            self.module.refuse(node, f"{name} counts the loop around this and is assigned in it.")
        before = self.scope.types.get(name)
        kind = before if value.kind is None else merged(before, value.kind, literal)
        if kind is None and before is not None and literal is False and is_integer(before):
            kind = self._from_literal(name, value.kind)
        if kind is None and before is not None:
            self.module.refuse(
                node,
                f"{name} is {before} elsewhere and {value.kind} here: Numba keeps two variables "
                "of that name apart. Give them two names, or the first the type of the second.",
            )
        if name in self.scalars and kind != self.scalars[name]:
            self.module.refuse(node, f"the argument {name} becomes a {kind}: use another name.")
        if kind != before or (value.negative and name not in self.scope.negative):
            self.changed = True
        self.scope.types[name] = kind
        if value.negative:
            self.scope.negative.add(name)

    def _from_literal(self, name: str, kind: Any) -> Any | None:
        """The float type of a variable that was only ever given integers written as such."""
        for node in ast.walk(self.function):
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == name for t in node.targets
            ):
                if (
                    type(constant(node.value, {})) is not int
                    and self.expressions.kind(node.value) != kind
                ):
                    return None
        return kind if kind in (types.float32, types.float64) else None
