"""How many experts does a batch read?

In a layer with `experts` experts every token picks `top` different ones, at random. Experts that
several tokens pick are read once. How many distinct experts do `batch` tokens read, on average?

One token leaves a given expert out with probability 1 - top / experts; think about what all of
them do.
"""


def distinct(experts: int, top: int, batch: int) -> float:
    """Expected number of distinct experts."""
    # blank
    return experts * (1 - (1 - top / experts) ** batch)
    # end


# === check
HINT = "An expert is read unless all `batch` tokens leave it out, independently of each other."
READ = "A large model with experts"
WRONG = ("** batch)", "* batch)")


def check(yours, report):
    """Against a simulation."""
    import numpy as np

    rng = np.random.default_rng(0)
    for experts, top, batch in ((128, 8, 1), (128, 8, 8), (8, 2, 4)):
        draws = [
            len({e for _ in range(batch) for e in rng.permutation(experts)[:top]})
            for _ in range(400)
        ]
        got, seen = yours.distinct(experts, top, batch), float(np.mean(draws))
        report.holds(
            f"{batch} tokens, {top} of {experts}",
            abs(got - seen) < 0.03 * seen,
            f"yours is {got:.2f}, 400 random batches read {seen:.2f} on average",
        )
