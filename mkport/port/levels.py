"""How far a value is the same for neighbouring threads: all of a block, a warp's, or none.

A value may also be known as a linear form of the thread's indices plus something uniform, so that
`threadIdx.x / 32` is seen to be one number a warp. Nothing here reads a program.
"""

import math
from dataclasses import dataclass, replace

BLOCK, WARP, LANE = range(3)
WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of an expression's value.

    `form` holds the factors of threadIdx.x, y and z where the value is such a sum plus a uniform
    rest; that rest is a multiple of `step`. `const` is the value itself where it is a number.
    `memory` says that it was read from memory, which other threads may write.
    """

    level: int
    form: tuple[int, int, int] | None = (0, 0, 0)
    step: int = 1
    const: int | None = None
    memory: bool = False


UNIFORM = Value(BLOCK)
ANY_WARP = Value(WARP, None)
ANY_LANE = Value(LANE, None)


def number(value: int) -> Value:
    """A constant."""
    return Value(BLOCK, (0, 0, 0), abs(value), value)


def join(a: Value | None, b: Value | None) -> Value:
    """What holds for both; None stands for nothing known yet."""
    if a is None or b is None:
        return a or b or UNIFORM
    return Value(
        max(a.level, b.level),
        a.form if a.form == b.form else None,
        math.gcd(a.step, b.step),
        a.const if a.const == b.const else None,
        a.memory or b.memory,
    )


def under(value: Value, control: Value) -> Value:
    """The value as assigned where only some threads may come."""
    if control.level == BLOCK:
        return replace(value, memory=value.memory or control.memory)
    level = max(value.level, control.level)
    return Value(level, None, 1, None, value.memory or control.memory)


def mixed(*values: Value) -> Value:
    """The value of a function of others."""
    level = max((v.level for v in values), default=BLOCK)
    memory = any(v.memory for v in values)
    return Value(level, (0, 0, 0) if level == BLOCK else None, 1, None, memory)


@dataclass(frozen=True)
class Block:
    """The launch's block, and arithmetic on values within it."""

    x: int
    y: int = 1
    z: int = 1

    def index(self, axis: int) -> Value:
        """threadIdx.x, y or z."""
        if (self.x, self.y, self.z)[axis] == 1:
            return number(0)
        form = [0, 0, 0]
        form[axis] = 1
        return self._of((form[0], form[1], form[2]), 0, None, False)

    def _of(self, form: tuple[int, int, int], step: int, const: int | None, memory: bool) -> Value:
        if form == (0, 0, 0):
            return Value(BLOCK, form, step if const is None else abs(const), const, memory)
        lanes_differ = (
            form[0] != 0
            or (form[1] != 0 and self.x % WARP_SIZE != 0)
            or (form[2] != 0 and self.x * self.y % WARP_SIZE != 0)
        )
        return Value(LANE if lanes_differ else WARP, form, step, None, memory)

    def linear(self, value: Value) -> bool:
        """True for the thread's number in the block plus a uniform multiple of a warp."""
        wanted = [1, self.x, self.x * self.y]
        for axis, size in enumerate((self.x, self.y, self.z)):
            if size == 1:
                wanted[axis] = 0
        return value.form == tuple(wanted) and value.step % WARP_SIZE == 0

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """The value of `a op b`."""
        memory = a.memory or b.memory
        const = _folded(op, a.const, b.const)
        if op in ("+", "-") and a.form is not None and b.form is not None:
            sign = 1 if op == "+" else -1
            x, y, z = (p + sign * q for p, q in zip(a.form, b.form, strict=True))
            step = math.gcd(a.step, b.step)
            if op == "-" and (x, y, z) != (0, 0, 0) and b.const != 0:
                step = 1  # the rest may be negative, and division rounds towards zero
            return self._of((x, y, z), step, const, memory)
        if op == "<<" and b.const is not None and 0 <= b.const < 32:
            return self.binary("*", a, number(1 << b.const))
        if op == "*":
            for one, other in ((a, b), (b, a)):
                if one.const is not None and other.form is not None:
                    x, y, z = (f * one.const for f in other.form)
                    return self._of((x, y, z), other.step * abs(one.const), const, memory)
            if a.level == b.level == BLOCK:
                return Value(BLOCK, (0, 0, 0), a.step * b.step, const, memory)
        shift = {">>": 1 << b.const} if b.const is not None and 0 <= b.const < 32 else {}
        divisor = b.const if op == "/" else shift.get(op)
        if op in ("/", ">>") and divisor and divisor % WARP_SIZE == 0 and self.linear(a):
            return Value(WARP, None, 1, None, memory)
        if op in ("<", ">=", ">", "<=") and self._at_a_warp(op, a, b):
            return Value(WARP, None, 1, None, memory)
        if const is not None:
            return replace(number(const), memory=memory)
        return mixed(a, b)

    def _at_a_warp(self, op: str, a: Value, b: Value) -> bool:
        """Whether a comparison turns between two warps."""
        if self.linear(b) and a.level == BLOCK and not self.linear(a):
            mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
            return self._at_a_warp(mirrored[op], b, a)
        if not self.linear(a) or b.level != BLOCK:
            return False
        if op in ("<", ">="):
            return b.step % WARP_SIZE == 0
        return b.const is not None and (b.const + 1) % WARP_SIZE == 0


def _folded(op: str, a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    if op in ("/", "%"):
        if b == 0 or a < 0 or b < 0:
            return None
        return a // b if op == "/" else a % b
    if op in ("<<", ">>"):
        if not 0 <= b < 32:
            return None
        return a << b if op == "<<" else a >> b
    simple = {
        "+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b, "<": int(a < b),
        ">": int(a > b), "<=": int(a <= b), ">=": int(a >= b), "==": int(a == b),
        "!=": int(a != b), "&&": int(bool(a and b)), "||": int(bool(a or b)),
    }  # fmt: skip
    return simple.get(op)
