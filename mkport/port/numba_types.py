"""Numba's own typing rules for the translation of its kernels: operators, functions, variables.

Each rule is asked of Numba's typing context, never written down again, so that a translated kernel
computes in the types that Numba would compute in.
"""

import builtins
import math
import operator
from typing import Any

from numba import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

C_NAMES = {
    types.boolean: "bool", types.int8: "signed char", types.uint8: "unsigned char",
    types.int16: "short", types.uint16: "unsigned short", types.int32: "int",
    types.uint32: "unsigned", types.int64: "long long", types.uint64: "unsigned long long",
    types.float32: "float", types.float64: "double",
}  # fmt: skip
BY_NAME = {
    name: kind
    for kind in C_NAMES
    for name in {str(kind)}
} | {"bool_": types.boolean, "bool": types.boolean, "intp": types.int64, "uintp": types.uint64,
     "f4": types.float32, "f8": types.float64, "i4": types.int32, "i8": types.int64,
     "float": types.float64, "int": types.int64}  # fmt: skip
OPERATORS = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "BitAnd": operator.and_,
    "BitOr": operator.or_, "BitXor": operator.xor, "LShift": operator.lshift,
    "RShift": operator.rshift, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
    "GtE": operator.ge, "Eq": operator.eq, "NotEq": operator.ne, "USub": operator.neg,
    "UAdd": operator.pos, "Invert": operator.invert,
}  # fmt: skip


def resolve(function: Any, arguments: tuple[Any, ...]) -> Any | None:
    """Numba's signature of a function for these argument types; None where it has none."""
    context = cpu_target.typing_context
    context.refresh()
    try:
        return context.resolve_function_type(function, arguments, {})
    except NumbaError:
        return None


def function_of(module: str, name: str) -> Any | None:
    """The function that `math.sqrt` or the builtin `max` is."""
    return getattr({"math": math, "": builtins}[module], name, None)


def is_float(kind: Any) -> bool:
    """float32 or float64."""
    return isinstance(kind, types.Float)


def is_integer(kind: Any) -> bool:
    """A signed or unsigned integer."""
    return isinstance(kind, types.Integer)


def merged(known: Any, other: Any, literal: bool) -> Any | None:
    """The type of a variable that is assigned both types; None where that is two variables.

    `literal`: the other is an integer written as such, which any number type holds exactly.
    Integers of one sign take the wider type. Two float types are never merged: what is computed
    in one of them would change.
    """
    if known is None or known == other:
        return other
    if is_float(known) and is_integer(other) and literal:
        return known
    same_sign = is_integer(known) and is_integer(other) and known.signed == other.signed
    return max(known, other, key=lambda kind: kind.bitwidth) if same_sign else None


def array_type(text: str) -> Any:
    """The type that a signature's part names: "float32[:,:]", "int32".

    Raises ValueError for anything else.
    """
    name, _, rest = text.strip().partition("[")
    kind = BY_NAME.get(name.split(".")[-1].strip())
    if kind is None or (rest and set(rest) - set(":,]1 ")):
        raise ValueError(f"{text.strip()!r} is no type: write float32[:,:], int32 or the like")
    return kind if not rest else types.Array(kind, rest.count(":") - rest.count("::"), "C")
