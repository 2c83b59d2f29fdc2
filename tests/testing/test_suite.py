"""Which checks there are for which op, and what a port's difference counts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mkport.errors import UserError
from mkport.inventory import inventory
from mkport.kernels.gemm.op import OP as GEMM
from mkport.testing import FORMS
from mkport.testing.ported import port_diff
from mkport.testing.suite import has_form, run_unit, units


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Path]:
    """A folder that gemm seems to live in, without any file."""
    yield tmp_path


def test_an_op_is_checked_in_the_forms_it_has_files_for(bare: Path) -> None:
    op = replace(GEMM, folder=bare)
    assert units([op]) == []
    (bare / "oracle.py").touch()
    assert units([op]) == []
    (bare / "standalone.py").touch()
    assert [(u.form, u.dtype) for u in units([op])] == [
        ("standalone", "bf16"),
        ("standalone", "f32"),
    ]
    (bare / "task.py").touch()
    assert [u.form for u in units([op], dtypes=["f32"])] == list(FORMS)


def test_an_op_of_no_models_step_has_no_step_form() -> None:
    stranger = replace(GEMM, name="stranger")
    assert has_form(stranger, "solo") and not has_form(stranger, "step")
    assert has_form(GEMM, "step")


def test_unknown_forms_and_dtypes_are_refused() -> None:
    with pytest.raises(UserError, match="'liquid'.*standalone"):
        units([GEMM], ["liquid"])
    with pytest.raises(UserError, match="'f8'.*bf16"):
        units([GEMM], dtypes=["f8"])


def test_a_unit_gives_one_verdict_a_shape() -> None:
    (unit,) = units([GEMM], ["standalone"], ["f32"])
    verdicts = run_unit(unit, [GEMM])
    assert len(verdicts) == 8 and all(v.ok and v.form == "standalone" for v in verdicts)


def test_a_ports_difference_counts_its_lines(bare: Path) -> None:
    (bare / "standalone.py").write_text("same\nold\nolder\n")
    (bare / "task.py").write_text("same\nnew\n")
    diff = port_diff(replace(GEMM, folder=bare))
    assert (diff.op, diff.kept, diff.removed, diff.added) == ("gemm", 1, 2, 1)
    assert diff.text.splitlines()[3:] == [" same", "-old", "-older", "+new"]


def test_the_inventory_looks_at_the_files(bare: Path) -> None:
    (bare / "ladder").mkdir()
    for name in ("standalone.py", "task.cuh", "ladder/2_b.py", "ladder/1_a.py"):
        (bare / name).touch()
    (entry,) = inventory([replace(GEMM, folder=bare)])
    assert (entry.op, entry.ladder) == ("gemm", ("1_a", "2_b"))
    assert (entry.standalone, entry.cuda, entry.oracle, entry.cpu) == (True, True, False, False)
    assert entry.tiles == "A tile for each (block, 16 output columns)."
