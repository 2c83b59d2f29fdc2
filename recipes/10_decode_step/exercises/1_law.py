"""The tolerance law.

A kernel's result is compared with the truth, which was computed in float64. How far may it be
off? Not by a number that somebody chose: by twice as much as plain float32 arithmetic is off,
plus one rounding (2 to the power of -23) of the largest value of the truth. NaN is never right
where the truth is a number.

Compute the kernel's largest error and what is allowed, and say whether the kernel is lawful.
"""

import numpy as np


def judge(got: np.ndarray, truth: np.ndarray, plain: np.ndarray) -> tuple[float, float, bool]:
    """(error, allowed, lawful). `truth` is float64, `got` and `plain` are float32."""
    # blank: the two errors, then the verdict; a NaN in got must not pass
    error = float(np.abs(got - truth).max())
    allowed = 2 * float(np.abs(plain - truth).max()) + 2.0**-23 * float(np.abs(truth).max())
    return error, allowed, bool(error <= allowed)
    # end


# === check
HINT = "A comparison with NaN is False: `error <= allowed` is right, `not error > allowed` is not."
READ = "The oracle's verdict"
WRONG = ("bool(error <= allowed)", "not error > allowed")


def check(yours, report):
    """A good kernel, a bad one, one with NaN."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 300)), rng.standard_normal((7, 300))
    truth = x.astype(np.float32).astype(np.float64) @ w.astype(np.float32).T.astype(np.float64)
    plain = x.astype(np.float32) @ w.astype(np.float32).T
    bad = plain.copy()
    bad[2, 3] += 1e-3
    lost = plain.copy()
    lost[0, 0] = np.nan
    for name, got, lawful in (("plain", plain, True), ("a slip", bad, False), ("NaN", lost, False)):
        error, allowed, verdict = yours.judge(got, truth, plain)
        near = np.isclose(allowed, judge(got, truth, plain)[1])
        report.holds(f"{name}: allowed {allowed:.2e}", near, "2 x plain's error + 2**-23 x scale")
        report.equal(f"{name}: lawful", verdict, lawful)
    zero = np.zeros(3)
    exact = yours.judge(zero.astype(np.float32), zero, zero.astype(np.float32))
    report.equal("no error where none is allowed", tuple(exact), (0.0, 0.0, True))
