"""A CUDA kernel: scale rows.

Write a CUDA kernel whose block scales one row of a matrix by the row's own factor. It is compiled
by your C++ compiler and run on a CPU, with several block sizes, its threads in random orders; no
GPU is needed.
"""

HINT = "for (int i = threadIdx.x; i < n; i += blockDim.x), from blockIdx.x * n on."
READ = "The kernel"
WRONG = ("i += blockDim.x", "i += blockDim.x + 1")


def check(file, report):
    """Several block sizes; y starts as memory that nobody has filled."""
    import numpy as np

    from mkport.learn.cuda import run_cuda

    rng = np.random.default_rng(0)
    for rows, n, threads in ((3, 100, 32), (5, 17, 64)):
        x = rng.standard_normal((rows, n), np.float32)
        factors = rng.standard_normal(rows, np.float32)
        y = np.full((rows, n), np.nan, np.float32)
        ran = run_cuda(file, report, "scale_rows", rows, threads, x=x, factors=factors, y=y, n=n)
        truth = x.astype(np.float64) * factors[:, None]
        what = f"{rows} rows of {n}, {threads} threads"
        report.array(what, ran["y"], truth, x * factors[:, None], (1, n))
