"""Account for pages.

A pool has `pages` pages. A page can be held by several sequences, when they share a prefix.
`take` gives a page that nobody holds; `hold` adds a holder; `release` takes one away, and a page
without holders is free again. Every page is free or held, never both, never lost.

Mistakes must be noticed at once, not a thousand steps later: releasing a page that nobody holds,
or holding a free one, raises an AssertionError.
"""


class Pool:
    """Pages with holders."""

    def __init__(self, pages: int) -> None:
        self.free = list(range(pages))
        self.holders = [0] * pages

    def take(self) -> int | None:
        """A free page with one holder, or None when there is none."""
        # blank
        if not self.free:
            return None
        page = self.free.pop()
        self.holders[page] = 1
        return page
        # end

    def hold(self, page: int) -> None:
        """One more holder of a page that is held."""
        # blank
        assert self.holders[page] > 0, f"page {page} is free"
        self.holders[page] += 1
        # end

    def release(self, page: int) -> None:
        """One holder less."""
        # blank
        assert self.holders[page] > 0, f"page {page} is released more often than held"
        self.holders[page] -= 1
        if self.holders[page] == 0:
            self.free.append(page)
        # end


# === check
HINT = "Count holders in self.holders; append the page to self.free when the count becomes 0."
READ = "Pages"
WRONG = ("if self.holders[page] == 0:\n            self.free", "if True:\n            self.free")


def check(yours, report):
    """A thousand random moves, counted beside."""
    import random

    dice = random.Random(0)
    pool, held = yours.Pool(5), []
    for move in range(1000):
        kind = dice.choice(("take", "hold", "release"))
        if kind == "take":
            page = pool.take()
            if len(set(held)) == 5:
                report.equal(
                    f"move {move}: no page is left", page, None
                ) if page is not None else None
            elif page is None or page in held:
                report.holds(f"move {move}: take", False, f"gave {page} while {held} are held")
            else:
                held.append(page)
        elif held:
            page = dice.choice(held)
            getattr(pool, kind)(page)
            held.append(page) if kind == "hold" else held.remove(page)
        right = sorted([*pool.free, *set(held)]) == list(range(5))
        if not right:
            told = f"free {sorted(pool.free)}, held {sorted(set(held))}"
            report.holds(f"move {move}: every page is free or held", False, told)
    report.holds("1,000 moves, no page lost or given twice", True, "")
    for name in ("hold", "release"):
        pool = yours.Pool(2)
        try:
            getattr(pool, name)(0)
        except AssertionError:
            report.holds(f"{name} of a free page is noticed", True, "")
        else:
            report.holds(f"{name} of a free page is noticed", False, "nothing was raised")
