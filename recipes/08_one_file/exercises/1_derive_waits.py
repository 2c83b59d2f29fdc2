"""Derive who waits for whom.

A step is a list of nodes in program order. Each node reads some tensors and writes some. Node n
depends on an earlier node e when one of these meets: n reads what e wrote last; n writes what e
reads or wrote. Return for each node the set of *all* earlier nodes it depends on directly, of
whole tensors.

A write covers the whole tensor: what came before the latest write of a tensor does not matter for
it any more, as that write waited for it already.
"""

Node = tuple[set[str], set[str]]  # what it reads, what it writes


def depends(nodes: list[Node]) -> list[set[int]]:
    """For each node the earlier ones it must wait for."""
    writer: dict[str, int] = {}  # who wrote a tensor last
    readers: dict[str, set[int]] = {}  # who has read it since
    found: list[set[int]] = []
    for n, (reads, writes) in enumerate(nodes):
        needs: set[int] = set()
        # blank: what a read needs, and what a write needs
        for name in reads | writes:
            if name in writer:
                needs.add(writer[name])
        for name in writes:
            needs |= readers.get(name, set())
        # end
        for name in reads:
            readers.setdefault(name, set()).add(n)
        for name in writes:
            writer[name], readers[name] = n, set()
        found.append(needs - {n})
    return found


# === check
HINT = "A read needs the last writer. A write needs the last writer and everyone who read since."
READ = "Dependencies, derived"
WRONG = ("needs |= readers.get(name, set())", "needs |= set()")


def check(yours, report):
    """A layer whose scratch is used twice."""
    layer = [
        (set(), {"x"}),  # 0 embed
        ({"x"}, {"h"}),  # 1 norm
        ({"h"}, {"q"}),  # 2 queries
        ({"h"}, {"k"}),  # 3 keys
        ({"q", "k"}, {"a"}),  # 4 attention
        ({"a", "x"}, {"x"}),  # 5 x += product
        ({"x"}, {"h"}),  # 6 norm, into the same h
        ({"h"}, {"q"}),  # 7 and the same q
    ]
    wanted = [set(), {0}, {1}, {1}, {2, 3}, {0, 1, 4}, {1, 2, 3, 5}, {2, 4, 6}]
    got = yours.depends(layer)
    for n, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        report.equal(f"node {n} waits for", mine, right)
