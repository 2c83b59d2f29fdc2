"""Calls in a Numba kernel as CUDA C++: CUDA's own, mathematics, atomics, device functions."""

import ast

from numba import types

from mkport.port.numba_expr import Expressions, Value
from mkport.port.numba_types import (
    BY_NAME,
    C_NAMES,
    function_of,
    is_float,
    is_integer,
    resolve,
)

MATH = set(
    "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan atan2 "
    "fabs floor ceil erf erfc pow".split()
)
WARP = {  # of cuda: the CUDA function, and how many arguments it has
    "shfl_sync": ("__shfl_sync", 3), "shfl_up_sync": ("__shfl_up_sync", 3),
    "shfl_down_sync": ("__shfl_down_sync", 3), "shfl_xor_sync": ("__shfl_xor_sync", 3),
}  # fmt: skip
VOTES = {
    "ballot_sync": ("__ballot_sync", types.uint32), "any_sync": ("__any_sync", types.boolean),
    "all_sync": ("__all_sync", types.boolean),
}  # fmt: skip
BARRIERS = {
    "syncthreads": "__syncthreads()", "syncwarp": "__syncwarp()",
    "threadfence": "__threadfence()",
}  # fmt: skip
ATOMICS = {"add": "atomicAdd", "max": "atomicMax", "min": "atomicMin", "sub": "atomicSub"}


class Calls(Expressions):
    """The layer of calls."""

    def of_Call(self, node: ast.Call) -> Value:
        """A call: of CUDA's own, of a type, of `math`, of a builtin, of a device function."""
        called = ast.unparse(node.func)
        name = called.removeprefix("cuda.")
        if node.keywords:
            self.module.refuse(node, f"`{called}` with keywords has no counterpart.")
        if called in ("cuda.grid", "cuda.gridsize"):
            return self.grid(called, 0)
        if called.startswith("cuda.") and name in BARRIERS:
            return Value(BARRIERS[name], types.void)
        if called.startswith("cuda.atomic."):
            return self._atomic(node, name.partition(".")[2])
        given = [] if called == "len" else [self.value(arg) for arg in node.args]
        if called == "len":
            return self.size(node.args[0], 0)
        if any(value.kind is None for value in given):
            return Value("0", None)
        if called.startswith("cuda."):
            return self._cuda(node, name, given)
        bare = called.removeprefix("np.").removeprefix("numpy.").removeprefix("types.")
        if bare in BY_NAME and len(given) == 1:
            kind = BY_NAME[bare]
            return Value(given[0].cast(kind), kind, given[0].negative)
        if called.startswith("math.") and called[5:] in MATH:
            return self._math(node, called[5:], given)
        if called in ("abs", "min", "max"):
            return self._builtin(node, called, given)
        if called in self.module.functions:
            return self._device(node, called, given)
        self.module.refuse(node, f"`{called}` has no counterpart in a kernel.")

    def _cuda(self, node: ast.Call, name: str, given: list[Value]) -> Value:
        if name in WARP and len(given) == WARP[name][1]:
            mask, x, lane = given
            return Value(
                f"{WARP[name][0]}((unsigned)({mask.code}), {x.code}, (int)({lane.code}))", x.kind
            )
        if name in VOTES and len(given) == 2:
            function, kind = VOTES[name]
            text = f"{function}((unsigned)({given[0].code}), (int)({given[1].code}))"
            return Value(text if kind == types.uint32 else f"({text} != 0)", kind, False)
        if name.startswith("syncthreads_") and len(given) == 1:
            return Value(f"__{name}((int)({given[0].code}))", types.int32, False)
        if name == "popc" and given[0].kind in (types.int32, types.uint32):
            return Value(f"__popc({given[0].code})", types.int32, False)
        if name == "fma" and len({v.kind for v in given}) == 1 and is_float(given[0].kind):
            function = "fmaf" if given[0].kind == types.float32 else "fma"
            return Value(f"{function}({', '.join(v.code for v in given)})", given[0].kind)
        self.module.refuse(node, f"`cuda.{name}` has no counterpart in a task.")

    def _math(self, node: ast.Call, name: str, given: list[Value]) -> Value:
        signature = resolve(function_of("math", name), tuple(v.kind for v in given))
        if signature is None:
            self.module.refuse(node, f"Numba has no math.{name} for these types.")
        single = all(kind == types.float32 for kind in signature.args)
        args = ", ".join(v.cast(k) for v, k in zip(given, signature.args, strict=True))
        text = f"{name}{'f' if single else ''}({args})"
        kind = signature.return_type
        return Value(f"({C_NAMES[kind]})({text})" if is_integer(kind) else text, kind)

    def _builtin(self, node: ast.Call, name: str, given: list[Value]) -> Value:
        if name == "abs" and is_integer(given[0].kind):
            a = Value(given[0].cast(types.int64), types.int64).code
            return Value(f"(({a}) < 0 ? -({a}) : ({a}))", types.int64, False)
        if name == "abs":
            single = given[0].kind == types.float32
            return Value(f"fabs{'f' if single else ''}({given[0].code})", given[0].kind, False)
        value = given[0]
        for other in given[1:]:
            signature = resolve(function_of("", name), (value.kind, other.kind))
            if signature is None:
                self.module.refuse(node, f"Numba has no {name} for these types.")
            kind = signature.return_type
            a, b = value.cast(kind), other.cast(kind)
            if is_float(kind):
                text = f"f{name}{'f' if kind == types.float32 else ''}({a}, {b})"
            else:
                text = f"{name}({a}, {b})"
            below = (
                (value.negative and other.negative)
                if name == "max"
                else (value.negative or other.negative)
            )
            value = Value(text, kind, below)
        return value

    def _atomic(self, node: ast.Call, name: str) -> Value:
        if name not in ATOMICS or len(node.args) != 3:
            self.module.refuse(node, f"`cuda.atomic.{name}` has no counterpart.")
        place = ast.copy_location(ast.Subscript(node.args[0], node.args[1], ast.Load()), node)
        target = self.element(place, written=True)
        value = self.value(node.args[2])
        kind = target.kind
        pointer = f"&{target.code}"
        if kind == types.int64:
            self.module.refuse(node, "atomics on int64 arrays: use int32 or uint64.")
        return Value(f"{ATOMICS[name]}({pointer}, {value.cast(kind)})", kind)

    def _device(self, node: ast.Call, name: str, given: list[Value]) -> Value:
        """A function of the file, for these argument types: one `return` of an expression."""
        function = self.module.functions[name]
        body = [s for s in function.body if not isinstance(s, ast.Expr)]
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            self.module.refuse(function, f"{name} is more than one `return EXPRESSION`: inline it.")
        names = [arg.arg for arg in function.args.args]
        key = (name, *(v.kind for v in given))
        if key in self._made and self._made[key] is None:
            self.module.refuse(node, f"{name} calls itself.")
        if key not in self._made:
            self._made[key] = None
            inner = type(self.scope)()
            inner.types = dict(zip(names, (v.kind for v in given), strict=True))
            inner.negative = set(names)
            expressions = Calls(self.module, inner)
            expressions._made = self._made
            result = expressions.value(body[0].value)
            made = f"{name}_{len(self._made)}"
            args = ", ".join(f"{C_NAMES[k]} {n}" for n, k in inner.types.items())
            self.functions += expressions.functions
            self.functions += (
                f"__device__ inline {C_NAMES[result.kind]} {made}({args}) "
                f"{{ return {result.code}; }} "
            )
            self._made[key] = (made, result.kind)
        known = self._made[key]
        assert known is not None
        made, kind = known
        return Value(f"{made}({', '.join(v.code for v in given)})", kind)
