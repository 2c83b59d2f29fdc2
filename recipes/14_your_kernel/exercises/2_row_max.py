"""A CUDA kernel: the largest of a row.

The threads of a block have to work together: each has looked at some columns, and the block must
join what they found, through shared memory and with barriers. A barrier inside a branch that some
threads do not take hangs on a GPU; a missing one reads what is not there yet. Here the threads
run in random orders, so a missing barrier shows.
"""

HINT = "for (int half = 32; half > 0; half /= 2) { __syncthreads(); if (threadIdx.x < half) ... }"
READ = "The kernel"
WRONG = ("    __syncthreads();\n    if (threadIdx.x < half)", "    if (threadIdx.x < half)")


def check(file, report):
    """Rows of several lengths; each launch runs under four orders of the threads."""
    import numpy as np

    from mkport.learn.cuda import run_cuda

    rng = np.random.default_rng(0)
    for rows, n in ((4, 200), (6, 5)):
        x = rng.standard_normal((rows, n), np.float32)
        y = np.full(rows, np.nan, np.float32)
        ran = run_cuda(file, report, "row_max", rows, 64, x=x, y=y, n=n)
        report.array(f"{rows} rows of {n}", ran["y"], x.max(axis=1).astype(np.float64))
