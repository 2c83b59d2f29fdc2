"""The prefix cache finds the longest prefix that a run can go on from, and gives pages away in the
order in which they became idle."""

import random

import pytest

from mkport.engine.pool import Pool
from mkport.engine.prefix import NONE, Block, PrefixCache

PAGE = 2


def longest(cache: PrefixCache, tokens: list[int], limit: int) -> int:
    """Blocks of the longest usable prefix, by the definition."""
    path: list[Block] = []
    block = cache.root
    for at in range(0, limit * PAGE, PAGE):
        child = block.children.get(tuple(tokens[at : at + PAGE]))
        if child is None:
            break
        path.append(child)
        block = child
    for count in range(len(path), 0, -1):
        first = [
            max(count * PAGE - p.window + 1, 0) // PAGE if p.window else 0 for p in cache.pools
        ]
        if all(
            path[i].pages[pool] != NONE
            for pool in range(len(first))
            for i in range(first[pool], count)
        ):
            return count
    return 0


@pytest.mark.parametrize("windows", [(0,), (5,), (0, 5), (0, 1), (0, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_a_look_up_is_as_long_as_can_be(windows: tuple[int, ...], seed: int) -> None:
    draw = random.Random(seed)
    cache = PrefixCache([(12, window) for window in windows], PAGE)
    seen = set()
    for _ in range(400):
        tokens = [draw.randrange(2) for _ in range(14)]
        block = cache.root
        for at in range(0, draw.randrange(14), PAGE):  # as a sequence enters them, with holes
            pages = [pool.take() for pool in cache.pools]
            given = [page if draw.random() < 0.9 else NONE for page in pages]
            block = cache.enter(block, tokens[at : at + PAGE], given)
            for pool, page in zip(cache.pools, pages, strict=True):
                pool.release(page)
        tokens = [draw.randrange(2) for _ in range(14)]
        limit = draw.randrange(8)
        found = cache.match(tokens, limit)
        assert len(found) == longest(cache, tokens, limit)
        assert [list(b.tokens) for b in found] == [
            tokens[at : at + PAGE] for at in range(0, len(found) * PAGE, PAGE)
        ]
        seen.add(len(found))
        for pool in cache.pools:
            pool.check()
    assert len(seen) > 2
    cache.reset()
    assert cache.match(tokens, 7) == [] and not cache.root.children


def test_the_page_that_was_idle_longest_goes_first() -> None:
    gone: list[str] = []
    pool = Pool(4, 0, gone.append)
    pages = {name: pool.take() for name in "abcd"}
    for name, page in pages.items():
        pool.enter(page, name)
    for name in "bdac":
        pool.release(pages[name])
    pool.hold(pages["d"])  # found again
    pool.release(pages["d"])
    assert [pool.take() for _ in range(4)] == [pages[name] for name in "bacd"]
    assert gone == list("bacd")


def test_a_block_that_is_not_full_is_no_block() -> None:
    cache = PrefixCache([(4, 0)], PAGE)
    with pytest.raises(AssertionError, match="when it is full"):
        cache.enter(cache.root, [1], [cache.pools[0].take()])


def test_blocks_of_equal_tokens_behind_different_prefixes_are_different() -> None:
    cache = PrefixCache([(8, 0)], PAGE)
    one, two = cache.pools[0].take(), cache.pools[0].take()
    first = cache.enter(cache.root, [1, 1], [one])
    cache.enter(first, [7, 7], [two])
    assert cache.match([7, 7], 1) == []
    assert [b.pages for b in cache.match([1, 1, 7, 7], 2)] == [[one], [two]]


def test_the_beginning_of_a_block_is_found() -> None:
    """Of the latest block that begins so, up to where it differs; not of one without a page, nor of
    one that is gone."""
    cache = PrefixCache([(4, 0), (4, 5)], 8)  # two tokens at least
    pools = cache.pools

    def entered(tokens: list[int]) -> Block:
        return cache.enter(cache.root, tokens, [pool.take() for pool in pools])

    first = entered([1, 2, 3, 4, 5, 6, 7, 8])
    second = entered([1, 2, 3, 9, 9, 9, 9, 9])
    assert cache.begun(cache.root, [1, 2, 3, 4, 5]) == (second, 3)
    assert cache.begun(cache.root, [1, 2, 3, 9, 9, 9, 9, 9, 5, 5]) == (second, 8)
    assert cache.begun(cache.root, [1, 2]) == (second, 2)
    assert cache.begun(cache.root, [1]) is None and cache.begun(cache.root, [2, 2, 3]) is None
    assert cache.begun(first, [1, 2, 3]) is None
    for block in (first, second):
        for pool, page in zip(pools, block.pages, strict=True):
            pool.release(page)
    taken = [pools[1].take() for _ in range(4)]  # the windows' pages are given away
    assert cache.begun(cache.root, [1, 2, 3]) is None
    taken += [pools[0].take() for _ in range(4)]
    assert not cache.root.heads and not cache.root.children
    for page in taken[:4]:
        pools[1].release(page)
    for page in taken[4:]:
        pools[0].release(page)
    third = entered([5, 5, 5, 5, 5, 5, 5, 5])
    assert cache.begun(cache.root, [5, 5, 5]) == (third, 3)
    cache.reset()
    assert cache.begun(cache.root, [5, 5, 5]) is None
