"""Spread the used slots.

Of `slots` slots the first few are used and the rest are empty; how many is not known in advance.
Workers are dealt equal blocks of neighbouring tiles. Choose which slot tile t belongs to, so that
every block gets its fair share of the used ones, however many there are: the busiest worker
should have at most one used slot more than the idlest.

Walk through the slots with a fixed step that has no common divisor with their number, so that
every slot gets its tile. A step near 0.618 of the number spreads well.
"""

from math import gcd


def slot_of(tile: int, slots: int) -> int:
    """The slot of a tile; tiles are 0 to slots - 1, and so are slots."""
    # blank: a step without a common divisor, near 0.618 slots
    step = max(1, round(0.618 * slots))
    while gcd(step, slots) > 1:
        step += 1
    return tile * step % slots
    # end


# === check
HINT = "Begin with round(0.618 * slots) and add 1 while gcd(step, slots) > 1."
READ = "Spreading the used slots"
WRONG = ("while gcd(step, slots) > 1", "while False")


def check(yours, report):
    """Every slot has a tile; 64 slots on 8 workers, for any number of used ones."""
    for slots in (1, 2, 8, 13, 20, 64, 128):
        order = [yours.slot_of(t, slots) for t in range(slots)]
        report.equal(f"{slots} slots: every one has a tile", sorted(order), list(range(slots)))
    order = [yours.slot_of(t, 64) for t in range(64)]
    worst = 0
    for used in range(1, 65):
        share = [sum(s < used for s in order[8 * w : 8 * w + 8]) for w in range(8)]
        worst = max(worst, max(share) - min(share))
    told = f"one worker has {worst} more than another"
    report.holds("a fair share for everybody", worst <= 2, told)
    report.score("unfairness", worst, "slots", 2)
