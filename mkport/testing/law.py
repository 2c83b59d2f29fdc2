"""The tolerance law: PyTorch's own error decides what a kernel's may be; there is no knob.

In float32 how far off PyTorch is depends on the processor: it adds in as many sums as fit there, an
ordinary kernel in one. So a kernel may also be off as PyTorch is with one term after the other
(`in_order`).
"""

from dataclasses import dataclass

import numpy as np

EPS = {"float32": 2.0**-23, "uint16": 2.0**-8}  # of the stored output: float32, bfloat16


@dataclass(frozen=True)
class Measured:
    """A kernel's worst error beside what the law allows; `where` is the worst element."""

    error: float
    allowed: float
    scale: float
    where: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """True when the error is within the law; a NaN never is."""
        return self.error <= self.allowed


def measure(got: np.ndarray, truth: np.ndarray, plain: np.ndarray, eps: float) -> Measured:
    """max |got - truth| against 2 max |plain - truth| + eps max |truth|.

    `got`, `truth` and `plain` have one shape, whichever. `truth` is the oracle in float64, `plain`
    the oracle in the precision of the kernel, `eps` the rounding of the output's type. Where the
    truth is NaN (an operand was, or nobody writes there) NaN is right and anything else is wrong;
    where it is infinite, the same infinity.

    Source: after the tests of flash-attention (Dao-AILab/flash-attention), which allow twice the
    error of PyTorch in the same type; the last term is for a plain result that happens to be exact.
    """
    nan, infinite = np.isnan(truth), np.isinf(truth)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - truth)
    error[nan & np.isnan(got)] = 0.0
    error[infinite] = np.where(got[infinite] == truth[infinite], 0.0, np.inf)
    if not error.size:
        return Measured(0.0, 0.0, 0.0, ())
    unknown = nan | infinite
    known = np.where(unknown, 0.0, truth)
    scale = float(np.max(np.abs(known)))
    noise = np.where(unknown, 0.0, np.abs(plain.astype(np.float64) - known))
    allowed = 2.0 * float(np.max(noise)) + eps * scale
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    where = tuple(int(i) for i in np.unravel_index(worst, error.shape))
    return Measured(float(error.flat[worst]), allowed, scale, where)
