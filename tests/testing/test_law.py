"""The tolerance law: what it allows, and how it treats NaN."""

import numpy as np

from mkport.testing.law import measure

TRUTH = np.array([1.0, -2.0, np.nan])


def _ok(*got: float) -> bool:
    plain = np.array([1.0, -2.001, np.nan], np.float32)
    return measure(np.array(got, np.float32), TRUTH, plain, 2.0**-23).ok


def test_twice_the_error_of_plain_arithmetic_is_allowed() -> None:
    assert _ok(1.0019, -2.0, np.nan)
    assert not _ok(1.0021, -2.0, np.nan)


def test_nan_is_right_only_where_the_truth_is() -> None:
    assert not _ok(1.0, -2.0, 3.0)
    assert not _ok(np.nan, -2.0, np.nan)


def test_a_plain_oracle_of_nan_allows_nothing() -> None:
    assert not measure(np.ones(1, np.float32), np.ones(1), np.full(1, np.nan), 1.0).ok
