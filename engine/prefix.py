"""The prefix cache: which pages hold the keys and values of which tokens, found by the tokens.

A tree of blocks. A block is a full page of tokens behind one particular prefix, so a path from the
root spells a text; each step of a look-up hashes a block's tokens and compares them all. Where a
text leaves the tree in the middle of a block, what that shares with it can be copied. A block
knows its page in each pool, or that it has none there any more. Pages count as cached from the
moment their step has completed; who holds them and who is evicted is the pools' business.
"""

from collections.abc import Sequence

from mkport.engine.pool import Pool

NONE = -1  # no page


class Block:
    """A full page of tokens behind a prefix."""

    __slots__ = ("children", "heads", "live", "pages", "parent", "tokens")

    def __init__(self, parent: "Block | None", tokens: tuple[int, ...], pools: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.children: dict[tuple[int, ...], Block] = {}
        self.heads: dict[tuple[int, ...], Block] = {}  # the latest child, by its first tokens
        self.pages = [NONE] * pools
        self.live = True  # still a part of the tree


class PrefixCache:
    """Blocks of `page` tokens over pools of `sizes` (pages, window in keys or 0) each.

    Source: pages after Kwon et al., "PagedAttention", SOSP 2023; the tree after SGLang's
    RadixAttention, Zheng et al. 2024, with whole pages as its edges.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], page: int) -> None:
        self.page = page
        self.head = -(-page // 4)  # so many tokens at least are copied
        self.pools = [
            Pool(pages, window, lambda block, pool=pool: self._evicted(block, pool))  # type: ignore[misc]
            for pool, (pages, window) in enumerate(sizes)
        ]
        self.root = Block(None, (), len(self.pools))

    def match(self, tokens: Sequence[int], limit: int) -> list[Block]:
        """The longest cached prefix of `tokens` [ids] that a run can go on from, at most `limit`
        blocks, each as many tokens as a page.

        Pools without a window must have all its pages, the others those that the next position
        sees; where one is missing the prefix is shortened.
        """
        found: list[Block] = []
        runs = [0] * len(self.pools)  # blocks up to here that have a page without a gap
        usable, block = 0, self.root
        for count in range(1, limit + 1):
            after = block.children.get(tuple(tokens[(count - 1) * self.page : count * self.page]))
            if after is None:
                break
            block = after
            found.append(block)
            for pool in range(len(self.pools)):
                runs[pool] = runs[pool] + 1 if block.pages[pool] != NONE else 0
            if any(run < count for run, p in zip(runs, self.pools, strict=True) if not p.window):
                break
            needed = [count - self.first_seen(pool, count * self.page) for pool in self.pools]
            if all(run >= need for run, need in zip(runs, needed, strict=True)):
                usable = count
        return found[:usable]

    def begun(self, block: Block, tokens: Sequence[int]) -> tuple[Block, int] | None:
        """A block behind `block` that begins as `tokens` [ids] do, and for how many of them. It has
        a page in every pool."""
        child = block.heads.get(tuple(tokens[: self.head]))
        if child is None or NONE in child.pages:
            return None
        same = zip(child.tokens, tokens, strict=False)
        count = next((at for at, (a, b) in enumerate(same) if a != b), None)
        return child, min(len(tokens), self.page) if count is None else count

    def first_seen(self, pool: Pool, position: int) -> int:
        """The first block of which a token at `position` sees a key."""
        return max(position - pool.window + 1, 0) // self.page if pool.window else 0

    def enter(self, parent: Block, tokens: Sequence[int], pages: Sequence[int]) -> Block:
        """Notes a block of `tokens` [page] whose step has completed, with its `pages` [pools]
        (NONE: has none in that pool).

        `parent` is live. A pool in which the block is known already keeps the page it has.
        """
        assert len(tokens) == self.page, "a block enters the cache when it is full"
        assert min(tokens) >= 0, "a block enters the cache when its tokens are known"
        key = tuple(tokens)
        block = parent.children.get(key)
        if block is None:
            block = parent.children[key] = Block(parent, key, len(self.pools))
            parent.heads[key[: self.head]] = block
        for pool, page in enumerate(pages):
            if page != NONE and block.pages[pool] == NONE:
                block.pages[pool] = page
                self.pools[pool].enter(page, block)
        return block

    def reset(self) -> None:
        """Forgets all blocks. Pages that sequences hold stay theirs."""
        stack = [self.root]
        while stack:
            block = stack.pop()
            block.live = block is self.root
            stack += block.children.values()
            block.children.clear()
            block.heads.clear()
            for pool, page in enumerate(block.pages):
                if page != NONE:
                    self.pools[pool].leave(page)
                    block.pages[pool] = NONE

    def _evicted(self, block: Block, pool: int) -> None:
        """A pool gave the block's page away; what nothing is left of goes from the tree."""
        block.pages[pool] = NONE
        while (
            block.parent is not None
            and not block.children
            and all(page == NONE for page in block.pages)
        ):
            if block.live:
                del block.parent.children[block.tokens]
                if block.parent.heads.get(block.tokens[: self.head]) is block:
                    del block.parent.heads[block.tokens[: self.head]]
                block.live = False
            block = block.parent
