"""PyTorch with sums one term after the other has the textbook's bits, which the law allows."""

import numpy as np
import pytest
import torch

from mkport.testing.in_order import InOrder
from mkport.testing.law import EPS, measure

K = 4096


@pytest.fixture
def factors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((5, K), np.float32), rng.standard_normal((7, K), np.float32)


def textbook(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b^T, one sum for each output."""
    found = np.zeros((len(a), len(b)), np.float32)
    for k in range(a.shape[1]):
        found += a[:, k : k + 1] * b[:, k]
    return found


def test_products_and_sums_have_the_textbook_s_bits(
    factors: tuple[np.ndarray, np.ndarray],
) -> None:
    a, b = map(torch.from_numpy, factors)
    wanted = textbook(*factors)
    with InOrder():
        products = [a @ b.T, torch.nn.functional.linear(a, b), torch.einsum("ik,jk->ij", a, b),
                    (a[None] @ b.T[None])[0], torch.addmm(torch.zeros(()), a, b.T)]  # fmt: skip
        assert (a @ b[0]).numpy().tobytes() == wanted[:, 0].tobytes()
        assert torch.dot(a[0], b[0]).item() == wanted[0, 0]
        sums = a.sum(dim=1, keepdim=True), a.sum(dim=(0, 1)), a.mean(dim=-1), a.sum(), a.mean()
    for found in products:
        assert found.numpy().tobytes() == wanted.tobytes()
    rows = textbook(factors[0], np.ones((1, K), np.float32))
    assert sums[0].numpy().tobytes() == rows.tobytes() and sums[0].shape == (5, 1)
    assert sums[2].numpy().tobytes() == (rows[:, 0] / np.float32(K)).tobytes()
    assert sums[1] == sums[3] and sums[4] == sums[3] / (5 * K)


def test_other_types_keep_their_order(factors: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = (torch.from_numpy(x).double() for x in factors)
    plain = a @ b.T
    with InOrder():
        assert torch.equal(a @ b.T, plain)
        assert torch.arange(7).sum().item() == 21


def test_an_ordinary_kernel_s_sum_is_lawful_on_every_processor(
    factors: tuple[np.ndarray, np.ndarray],
) -> None:
    a, b = map(torch.from_numpy, factors)
    truth = (a.double() @ b.double().T).numpy()
    with InOrder():
        plain = (a @ b.T).numpy()
    assert measure(textbook(*factors), truth, plain, EPS["float32"]).ok
    wrong = textbook(factors[0].astype(np.float16).astype(np.float32), factors[1])
    assert not measure(wrong, truth, plain, EPS["float32"]).ok
