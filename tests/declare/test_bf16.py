"""bfloat16 bits convert as PyTorch converts them."""

import numpy as np
import pytest

from mkport.declare.case import from_bf16, to_bf16


def test_rounding_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    # every exponent, with the low halves that tie, just miss and just pass a tie
    high = np.arange(0, 1 << 16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    values = (high[:, None] | low).view(np.float32)
    values = np.concatenate([values.ravel(), draw.standard_normal(10000, dtype=np.float32)])
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    ours = to_bf16(values)
    nan = np.isnan(values)
    np.testing.assert_array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(from_bf16(ours[nan])).all()


def test_reading_back_is_exact() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = from_bf16(bits)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(to_bf16(values)[numbers], bits[numbers])
