"""A wait that survives the wrap.

Counters are 32-bit integers that only grow, and after enough steps they wrap from 2147483647 to
-2147483648. `value >= target` would then be wrong for as long as the two stand on different
sides. Say whether the counter has reached the target, from the two signed 32-bit numbers. They
are never further apart than 2**31 - 1.
"""


def reached(value: int, target: int) -> bool:
    """Whether a counter that shows `value` has got as far as `target`, both int32."""
    # blank: the difference as a signed 32-bit number
    difference = (value - target + 2**31) % 2**32 - 2**31
    return difference >= 0
    # end


# === check
HINT = "Subtract first, reduce modulo 2**32 to the range from -2**31 on, then look at the sign."
READ = "A chain"
WRONG = ("return difference >= 0", "return value >= target")


def check(yours, report):
    """On this side of the wrap, on the other, and across it."""

    def int32(value):
        return (value + 2**31) % 2**32 - 2**31

    for start in (0, 100, 2**31 - 3, 2**32 - 2, 7 * 2**31 - 1):
        for ahead in (-(2**30), -1, 0, 1, 2**30):
            value, target = int32(start + ahead), int32(start)
            got = bool(yours.reached(value, target))
            if got != (ahead >= 0):
                report.holds(f"value {value}, target {target}", False, f"yours says {got}")
    report.holds("right on both sides of the wrap and across it", True, "")
