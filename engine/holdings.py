"""Which pages each sequence holds: given, shared, released, saved and brought back, in every pool.

Page tables are lists of page numbers here; the contents are moved by whoever runs the plan.
"""

from collections.abc import Sequence as Of

from mkport.engine.pool import Pool
from mkport.engine.prefix import NONE, PrefixCache
from mkport.engine.sequence import Copy, Sequence


class Holdings:
    """The pages of all sequences, over pools of `sizes` (pages, window in keys or 0) each.

    `cached` says whether full blocks enter the prefix cache and are looked up there; `parts`,
    whether the beginnings of blocks are shared too, as copies.
    """

    def __init__(
        self, sizes: Of[tuple[int, int]], page: int, cached: bool = True, parts: bool = False
    ) -> None:
        self.cache = PrefixCache(sizes, page)
        self.page = page
        self.cached, self.parts = cached, parts

    @property
    def pools(self) -> list[Pool]:
        """Of the page tables, in their order."""
        return self.cache.pools

    def begin(self, sequence: Sequence, margin: int) -> list[Copy] | None:
        """Gives a new sequence the cached pages of its prefix, its last token's never, and copies
        of pages that begin as it goes on.

        None, and nothing given, when the pools could not hold all its tokens with `margin` pages
        left over in each.
        """
        tokens = sequence.tokens
        looks = self.cached and not sequence.all_logits
        blocks = self.cache.match(tokens, (len(tokens) - 1) // self.page if looks else 0)
        computed, total = len(blocks) * self.page, -(-len(tokens) // self.page)
        tables = []
        for number, pool in enumerate(self.pools):
            first = self.cache.first_seen(pool, computed)
            shared = [block.pages[number] for block in blocks[first:]]
            tables.append([NONE] * first + shared)
            need = total - len(blocks) + sum(pool.is_kept(page) for page in shared)
            if pool.window:  # what slides out of the window makes room
                need = min(need, window_pages(pool.window, self.page))
            if pool.available < need + margin:
                return None
        for pool, table in zip(self.pools, tables, strict=True):
            for page in table:
                if page != NONE:
                    pool.hold(page)
        sequence.tables = tables
        sequence.block, sequence.entered = (blocks[-1] if blocks else None), len(blocks)
        copies: list[Copy] = []
        if looks and self.parts:
            copies, shared_tokens = self._copied(sequence, tokens[computed:-1], margin)
            computed += shared_tokens
        sequence.computed = sequence.cached = sequence.landed = computed
        return copies

    def _copied(self, sequence: Sequence, tokens: list[int], margin: int) -> tuple[list[Copy], int]:
        """Copies of the pages of a cached block that begins as a sequence's next `tokens` do, and
        for how many of them; none where a page more is too much."""
        found = self.cache.begun(sequence.block or self.cache.root, tokens)
        if found is None or any(pool.available < 2 + margin for pool in self.pools):
            return [], 0
        block, count = found
        copies = []
        for number, (pool, table) in enumerate(zip(self.pools, sequence.tables, strict=True)):
            pool.hold(block.pages[number])  # lest it be the one that is taken
            table.append(pool.take())
            copies.append(Copy(number, block.pages[number], table[-1]))
            pool.release(block.pages[number])
        return copies, count

    def fork(self, sequence: Sequence, donor: Sequence, margin: int) -> list[Copy] | None:
        """Shares the donor's prompt with a new sequence of the same prompt, full pages as they are
        and the last one as a copy; the last token is left to be run again.

        None, and nothing shared, when the donor has no longer all that the last token sees, or the
        pools lack a page.
        """
        last = (sequence.prompt - 1) // self.page
        tables = []
        for pool, table in zip(self.pools, donor.tables, strict=True):
            first = self.cache.first_seen(pool, sequence.prompt - 1)
            if NONE in table[first : last + 1] or pool.available < 1 + margin:
                return None
            tables.append([NONE] * first + table[first:last])
        copies = []
        for number, (pool, table) in enumerate(zip(self.pools, tables, strict=True)):
            for page in table:
                if page != NONE:
                    pool.hold(page)
            table.append(pool.take())
            copies.append(Copy(number, donor.tables[number][last], table[-1]))
        sequence.tables = tables
        sequence.computed = sequence.cached = sequence.landed = sequence.prompt - 1
        return copies

    def room(self, sequence: Sequence, count: int) -> int:
        """How many of `count` more tokens the sequence's pages and the available ones hold."""
        for table, pool in zip(sequence.tables, self.pools, strict=True):
            count = min(count, (len(table) + pool.available) * self.page - sequence.computed)
        return count

    def extend(self, sequence: Sequence, count: int) -> list[tuple[int, int, int]]:
        """Gives pages for `count` more tokens; returns (pool, block, page) of each new one."""
        last = (sequence.computed + count - 1) // self.page
        new = []
        for number, (table, pool) in enumerate(zip(sequence.tables, self.pools, strict=True)):
            while len(table) <= last:
                table.append(pool.take())
                new.append((number, len(table) - 1, table[-1]))
        return new

    def enter(self, sequence: Sequence) -> None:
        """Its blocks that are full of landed tokens enter the prefix cache."""
        if not self.cached:
            return
        block = sequence.block
        if block is None or not block.live:  # the cache has forgotten it
            block, sequence.entered = self.cache.root, 0
        while (end := (sequence.entered + 1) * self.page) <= sequence.landed:
            pages = [table[sequence.entered] for table in sequence.tables]
            block = self.cache.enter(block, sequence.tokens[end - self.page : end], pages)
            sequence.entered += 1
        sequence.block = block

    def slide(self, sequence: Sequence) -> None:
        """Releases the pages that no token from `landed` on sees."""
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            first = end = min(self.cache.first_seen(pool, sequence.landed), len(table))
            while first and table[first - 1] != NONE:
                first -= 1
            for block in range(first, end):
                pool.release(table[block])
                table[block] = NONE

    def release(self, sequence: Sequence) -> None:
        """Gives all pages back; the last one is the first to be evicted."""
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            for page in reversed(table):
                if page != NONE:
                    pool.release(page)
        sequence.tables = []

    def save(self, sequence: Sequence) -> list[list[int]]:
        """Gives all pages back and notes which there were; returns them, [pool]."""
        pages = [[page for page in table if page != NONE] for table in sequence.tables]
        sequence.holes = [[page == NONE for page in table] for table in sequence.tables]
        self.release(sequence)
        sequence.block, sequence.entered = None, 0
        return pages

    def restore(self, sequence: Sequence, margin: int) -> list[list[int]] | None:
        """Takes pages for what was saved; returns them, [pool]. None when there are too few."""
        for pool, holes in zip(self.pools, sequence.holes, strict=True):
            if pool.available < holes.count(False) + margin:
                return None
        sequence.tables = [
            [NONE if hole else pool.take() for hole in holes]
            for pool, holes in zip(self.pools, sequence.holes, strict=True)
        ]
        return [[page for page in table if page != NONE] for table in sequence.tables]


def window_pages(window: int, page: int) -> int:
    """The most pages that the keys of one token's window lie in; both sizes, `window` and `page`,
    are in keys."""
    return -(-(window - 1) // page) + 1
