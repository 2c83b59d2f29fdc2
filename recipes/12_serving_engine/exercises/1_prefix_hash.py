"""A chained hash of a prefix.

A block is a full page of tokens. Its key must stand for the block's tokens *and all tokens before
it*: the same page of text behind another beginning has other keys and values. So the key of a
block is a hash of the key of the block before it and its own tokens. An unfinished page at the
end has no key.

Then count how many leading blocks of a text are in a set of known keys: the first one that is
missing ends the prefix, whatever comes behind.
"""


def keys(tokens: list[int], page: int) -> list[int]:
    """The keys of the full blocks of a text, in order; the first follows 0."""
    found: list[int] = []
    before = 0
    # blank: full blocks only, each with the key before it
    for first in range(0, len(tokens) - page + 1, page):
        before = hash((before, tuple(tokens[first : first + page])))
        found.append(before)
    # end
    return found


def common(tokens: list[int], page: int, known: set[int]) -> int:
    """How many leading blocks are known."""
    # blank
    count = 0
    for key in keys(tokens, page):
        if key not in known:
            break
        count += 1
    return count
    # end


# === check
HINT = "hash((before, tuple(tokens[first:first + page]))), and before becomes that."
READ = "The prefix cache"
WRONG = ("hash((before, tuple", "hash((0, tuple")


def check(yours, report):
    """Prefixes, shifted texts, unfinished pages."""
    text = [5, 6, 7, 8, 5, 6, 7, 8, 9, 9]
    mine = yours.keys(text, 4)
    report.equal("full blocks of ten tokens, pages of four", len(mine), 2)
    report.equal("of eight", len(yours.keys(text[:8], 4)), 2)
    report.equal("of eleven", len(yours.keys([*text, 1], 4)), 2)
    report.holds(
        "a page has another key behind another beginning", mine[0] != mine[1], f"both are {mine[0]}"
    )
    report.equal("the same beginning", yours.keys(text[:8] + [1, 2, 3, 4], 4)[:2], mine)
    known = set(mine)
    report.equal("both blocks known", yours.common(text, 4, known), 2)
    report.equal(
        "a known page behind an unknown one", yours.common([1, 2, 3, 4] + text, 4, known), 0
    )
    report.equal("nothing known", yours.common(text, 4, set()), 0)
