"""One pool of cache pages: which are free, which are held and how often, which are kept for later.

A page is a number here; what it holds lives in the machine's memory. A model whose layers all see
everything has one pool, one with windows has another for those layers. Who keeps a page for later,
and under which tokens it is found again, is the prefix cache's business.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Pool:
    """`pages` pages, all free at first. `window` is in keys, 0 when its layers see everything.

    A page is in one of three states: free; held by at least one sequence; kept, which is cached and
    held by nobody. The page that was kept longest is given away first, which `forget` is told with
    the owner that was named when the page entered the cache.
    """

    def __init__(self, pages: int, window: int, forget: Callable[[Any], None]) -> None:
        self.pages = pages
        self.window = window
        self.held = 0  # pages that sequences hold
        self._forget = forget
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._owners: list[Any] = [None] * pages  # of cached pages, held or kept
        self._kept: OrderedDict[int, None] = OrderedDict()  # the longest kept first

    @property
    def available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._kept)

    def is_kept(self, page: int) -> bool:
        """Whether the page is cached and held by nobody."""
        return page in self._kept

    def holders(self, page: int) -> int:
        """How often the page is held."""
        return self._holders[page]

    def take(self) -> int:
        """A page that nobody else holds, with whatever it held before."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._kept.popitem(last=False)
            self._disown(page)
        self._holders[page] = 1
        self.held += 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page that is held or kept."""
        if self._holders[page] == 0:
            del self._kept[page]
            self.held += 1
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; the last one leaves the page kept when it is cached, else free."""
        assert self._holders[page] > 0, f"page {page} is released more often than held"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self.held -= 1
            if self._owners[page] is None:
                self._free.append(page)
            else:
                self._kept[page] = None

    def enter(self, page: int, owner: Any) -> None:
        """A held page enters the cache; `owner` says what it is."""
        assert self._holders[page] > 0 and self._owners[page] is None
        self._owners[page] = owner

    def leave(self, page: int) -> None:
        """A cached page leaves the cache, without a word to `forget`."""
        self._owners[page] = None
        if page in self._kept:
            del self._kept[page]
            self._free.append(page)

    def _disown(self, page: int) -> None:
        owner, self._owners[page] = self._owners[page], None
        self._forget(owner)

    def check(self) -> None:
        """Asserts that every page is in exactly one state: free + kept + held = all."""
        held = {page for page, count in enumerate(self._holders) if count}
        free, kept = set(self._free), set(self._kept)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & held and not kept & held and not free & kept, "a page has two states"
        assert len(free) + len(kept) + len(held) == self.pages, "a page is lost"
        assert self.held == len(held), "held pages are counted wrong"
        assert all(self._owners[page] is not None for page in kept), "a kept page has no owner"
        assert all(self._owners[page] is None for page in free), "a free page is cached"
