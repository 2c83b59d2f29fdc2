"""How tiles are spread over work of which nobody knows beforehand which part there will be."""

from math import gcd


def spread_step(count: int) -> int:
    """How many of `count` pieces on the next tile is: near the golden section of all, without a
    divisor of `count`, so that there is a tile for every piece.

    The pieces in use lie side by side (the first slots of experts, the splits of a window). With
    this step every run of tiles, and every choice of tiles at equal distances, holds its fair share
    of them, so workers that are dealt equally many get equal work. Source: Knuth, "The Art of
    Computer Programming" 3, 6.4, on multiples of the golden section.
    """
    step = max(1, round(0.618 * count))
    while gcd(step, count) > 1:
        step += 1
    return step
