"""Every rung of every ladder, the last one too, is within the tolerance law and says so."""

import runpy
import shutil
from pathlib import Path

import pytest

from mkport.errors import UserError
from mkport.library import all_ops
from mkport.testing.rung import check_rung, run_rung

KERNELS = Path(__file__).parents[2] / "kernels"
RUNGS = sorted([*KERNELS.glob("*/ladder/*.py"), *KERNELS.glob("*/standalone.py")])
ENDING = """

if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
"""


def name(path: Path) -> str:
    return path.relative_to(KERNELS).with_suffix("").as_posix()


def test_every_op_has_its_last_rung() -> None:
    assert {path.parent.name for path in RUNGS if path.stem == "standalone"} == set(all_ops())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rung", RUNGS, ids=name)
def test_a_rung_is_within_the_law(rung: Path, dtype: str) -> None:
    for verdict in check_rung(rung, (dtype,)):
        assert verdict.ok, verdict


@pytest.mark.parametrize("rung", RUNGS, ids=name)
def test_a_rung_runs_by_itself(rung: Path) -> None:
    assert rung.read_text(encoding="utf-8").endswith(ENDING)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A copy of the op select in a folder of one's own: its standalone kernel."""
    for file in ("op.py", "oracle.py", "standalone.py"):
        shutil.copy(KERNELS / "select" / file, tmp_path)
    return tmp_path / "standalone.py"


def test_a_right_rung_exits_with_0_and_both_times(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(mine), run_name="__main__")
    assert not done.value.code
    lines = capsys.readouterr().out.splitlines()
    checks, times = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert all(line.startswith("ok") for line in checks)
    for dtype in ("f32", "bf16"):
        assert any(f" us {dtype}" in line and "PyTorch" in line for line in times)


def test_a_wrong_rung_exits_with_1_and_no_time(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(mine.read_text().replace("y[i] = x[index[i]]\n", "y[i] = x[index[i] - 1]\n"))
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(mine), run_name="__main__")
    assert done.value.code == 1
    out = capsys.readouterr().out
    assert "WRONG" in out and "worst y[0, 0]" in out and "PyTorch" not in out


def test_a_rung_without_its_op_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no Python file .*op\.py; check the path"):
        run_rung(tmp_path / "ladder" / "1_naive.py")
