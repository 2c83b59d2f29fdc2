"""The CUDA gemm in the host build: the law, and the same bits whatever the interleaving."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.kernels.gemm.op import OP as GEMM
from mkport.kernels.gemm.oracle import standalone_bytes
from mkport.testing import check_op
from mkport.testing.check import Form
from mkport.testing.cuda_forms import HostLaunch, run_standalone
from tests.cuda.worlds import exact, gemm_case, solo

pytestmark = pytest.mark.usefixtures("host")

SHAPES: Mapping[str, Mapping[str, Any]] = {
    **{f"k = {k}": {"tokens": 8, "rows": 5, "n": 24, "k": k} for k in (16, 64, 96, 576, 768)},
    **{f"k = {k}": {"tokens": 2, "rows": 2, "n": 20, "k": k} for k in (1024, 1040, 2048)},
    **{f"n = {n}": {"tokens": 3, "rows": 3, "n": n, "k": 48} for n in (15, 16, 17, 33)},
    "n = 1": {"tokens": 8, "rows": 8, "n": 1, "k": 48},  # of 3 outputs PyTorch's may be exact
}


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("form", ["standalone", "ported", "solo"])
def test_every_form_is_lawful_and_has_the_standalone_s_bits(form: Form, dtype: str) -> None:
    for shapes in (None, SHAPES):
        for verdict in check_op(GEMM, "host", form, shapes, dtype=dtype, workers=3):
            assert verdict.ok, verdict


@pytest.mark.slow
def test_a_long_row() -> None:
    shapes = {"k = 4096": {"tokens": 8, "rows": 8, "n": 64, "k": 4096}}
    assert all(v.ok for v in check_op(GEMM, "host", "solo", shapes, workers=4))


@pytest.mark.parametrize("k", [64, 1040])
def test_nothing_is_rounded_but_the_inputs(k: int) -> None:
    """Against float64 over bfloat16 inputs only float32 sums are in error."""
    case = gemm_case(tokens=8, rows=7, n=40, k=k, residual=True)
    wanted = exact(case)
    assert np.abs(solo(case)[:7] - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_twenty_interleavings_of_several_workers_give_the_same_bits() -> None:
    case = gemm_case(tokens=4, rows=3, n=9 * 16 + 3, k=1056, residual=True, in_place=True)
    alone = solo(case, workers=1)
    for seed in range(20):
        workers = 1 + seed % 5
        assert solo(case, workers=workers, seed=seed).tobytes() == alone.tobytes(), seed


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_row_has_the_same_bits_in_any_batch(dtype: str) -> None:
    case = gemm_case(dtype, tokens=8, rows=8, n=20, k=608)
    whole = solo(case, dtype)
    for rows in range(1, 9):
        case.arrays["count"][0] = rows
        y = solo(case, dtype, seed=rows)
        assert y[:rows].tobytes() == whole[:rows].tobytes()
        assert np.isnan(y[rows:]).all()
    assert run_standalone(GEMM, case, "host")["y"].tobytes() == whole.tobytes()


@pytest.mark.parametrize("k", [16, 1040, 2048, 3088, 4112, 6160])
def test_rows_that_are_staged_in_pieces_have_the_same_bits(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = gemm_case(tokens=8, rows=7, n=75, k=k, residual=True)
    whole = solo(case) if k > 4112 else run_standalone(GEMM, case, "host")["y"]
    monkeypatch.setattr(HostLaunch, "shared_bytes", standalone_bytes(2048))
    launched = []
    monkeypatch.setattr(
        "mkport.testing.cuda_forms.check_shared", lambda launch, name, size: launched.append(name)
    )
    assert run_standalone(GEMM, case, "host")["y"].tobytes() == whole.tobytes()
    assert launched == ["gemm_long_bf16" if k > 2048 else "gemm_bf16"]


def test_rows_of_every_model_fit_the_standalone_kernel() -> None:
    case = gemm_case(tokens=8, rows=8, n=20, k=8192, residual=True)
    assert standalone_bytes(8192) > HostLaunch.shared_bytes
    assert run_standalone(GEMM, case, "host")["y"].tobytes() == solo(case).tobytes()


def test_a_row_that_does_not_fit_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostLaunch, "shared_bytes", 100_000)
    with pytest.raises(UserError, match="gemm_long_bf16 needs 182,400 bytes"):
        run_standalone(GEMM, gemm_case(tokens=1, rows=1, n=20, k=4096), "host")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_stays_alone(bad: float) -> None:
    case = gemm_case(tokens=8, rows=8, n=20, k=608)
    whole = solo(case)
    case.arrays["x"][3, 5] = bad
    broken = solo(case)
    others = np.arange(8) != 3
    assert broken[others].tobytes() == whole[others].tobytes()
    assert not np.isfinite(broken[3]).all()


def test_no_rows_leave_the_output_alone() -> None:
    case = gemm_case(tokens=2, rows=1, n=20, k=64)
    case.arrays["count"][0] = 0
    assert np.isnan(solo(case)).all()
