"""The bound.

A model has matrices with so many parameters in bfloat16 (2 bytes each), and a cache that takes so
many bytes for each position of a sequence. A step decodes one token of each of `batch` sequences,
which all are at `positions`. The matrices are read once for the whole batch, the cache by each
sequence.

What is the largest number of tokens a second, of all sequences together, that a memory of so many
bytes a second allows?
"""


def tokens_per_second(
    parameters: float, cache_bytes: float, positions: int, batch: int, bandwidth: float
) -> float:
    """An upper bound on the decode speed of all sequences together."""
    # blank: bytes of a step, then tokens a second
    step = 2 * parameters + batch * positions * cache_bytes
    return batch * bandwidth / step
    # end


# === check
HINT = "A step gives `batch` tokens and takes bytes / bandwidth seconds."
READ = "The bound"
WRONG = ("return batch * bandwidth", "return bandwidth")


def check(yours, report):
    """A few models."""
    for args, wanted in (
        ((135e6, 0.0, 1, 1, 27e9), 100.0),
        ((1e9, 1e5, 10_000, 4, 6e12), 4000.0),
        ((1e9, 1e5, 10_000, 1, 3e12), 1000.0),
    ):
        got = yours.tokens_per_second(*args)
        parameters, cache, positions, batch, bandwidth = args
        what = f"{parameters:.3g} parameters, {cache:.3g} bytes of cache a position, "
        what += f"{positions:,} positions, batch {batch}, {bandwidth:.3g} bytes/s"
        near = abs(got - wanted) < 1e-6 * wanted
        report.holds(what, near, f"yours is {got:.1f}, wanted {wanted:.1f} tokens/s")
