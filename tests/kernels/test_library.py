"""The ops that come with mkport are found by name."""

import pytest

from mkport.errors import UserError
from mkport.library import all_ops, find_op


def test_every_folder_is_found_under_its_op_s_name() -> None:
    ops = all_ops()
    assert {"gemm", "attention", "rmsnorm", "argmax"} <= set(ops)
    assert list(ops) == sorted(ops)
    assert all(op.name == name == op.folder.name for name, op in ops.items())
    assert find_op("gemm") is ops["gemm"]


def test_a_misspelt_op_is_met_with_its_neighbours() -> None:
    with pytest.raises(UserError, match="no op 'rmsnrom' .* did you mean rmsnorm"):
        find_op("rmsnrom")
    with pytest.raises(UserError, match="no op 'x' .* there are: .*gemm, "):
        find_op("x")
