"""Deal tiles.

Nodes are dealt to workers one after another. A node's tiles go out in blocks of neighbours, as
equal as can be. Part p of P gets the tiles from T p // P up to T (p + 1) // P; P is the number of
workers, or of tiles if there are fewer.

Which worker gets part 0? If that is always worker 0, it also always gets the extra tile of a node
that does not divide evenly, or all of a node with one tile. So each node begins where the last
one ended: after a node with T tiles the next one begins T workers further on, counted round.

Return each worker's list of (node, first tile, number of tiles).
"""


def deal(tiles: list[int], workers: int) -> list[list[tuple[int, int, int]]]:
    """The lists of all workers; `tiles` are the nodes' numbers of tiles, each at least 1."""
    lists: list[list[tuple[int, int, int]]] = [[] for _ in range(workers)]
    cursor = 0  # the worker that gets the next node's part 0
    for node, count in enumerate(tiles):
        parts = min(count, workers)
        # blank: append each part to its worker's list, then move the cursor
        for p in range(parts):
            first, end = count * p // parts, count * (p + 1) // parts
            lists[(cursor + p) % workers].append((node, first, end - first))
        cursor = (cursor + count) % workers
        # end
    return lists


# === check
HINT = "Part p goes to worker (cursor + p) % workers; afterwards cursor += count, modulo workers."
READ = "After: waits that are needed"
WRONG = ("cursor = (cursor + count) % workers", "cursor = 0")


def check(yours, report):
    """Every tile once; the busiest worker; the library's own deal."""
    for tiles, workers in (([5, 3, 1], 2), ([1] * 9, 4), ([7, 7, 7], 3), ([4], 8)):
        lists = yours.deal(tiles, workers)
        found = sorted((n, t) for mine in lists for n, f, c in mine for t in range(f, f + c))
        wanted = [(n, t) for n, count in enumerate(tiles) for t in range(count)]
        report.equal(f"{tiles} on {workers}: every tile once", found, wanted)
        ordered = all(mine == sorted(mine) for mine in lists)
        report.holds("each list follows the order of the nodes", ordered, f"{lists}")
        report.equal("as the library deals", lists, deal(tiles, workers))
    longest = max(sum(c for *_, c in mine) for mine in yours.deal([3] * 6, 2))
    report.score("tiles of the busiest worker, six nodes of three on two", longest, "tiles", 9)
