"""An op's files are imported under names that stay true when a tree moves."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mkport.errors import UserError
from mkport.library import find_op
from mkport.testing.parts import kernel_of, load_file, load_part

ROOT = Path(__file__).parents[2]
CALL = """
import numpy as np
x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.empty((2, 3), np.float32)
kernel.select(np.array([2, 0], np.int32), x, y)
assert (y == x[[2, 0]]).all()
"""


def test_files_of_the_library_have_their_own_names() -> None:
    gemm = find_op("gemm")
    own = importlib.import_module("mkport.kernels.gemm.standalone")
    assert load_part(gemm, "standalone") is own
    assert load_file(Path(gemm.folder).resolve() / "standalone.py") is own
    assert load_file(gemm.folder / "ladder" / "1_naive.py").__name__ == (
        "mkport.kernels.gemm.ladder.1_naive"
    )


def test_a_file_from_elsewhere_is_imported_once(tmp_path: Path) -> None:
    (tmp_path / "standalone.py").write_text("def other(): ...\n")
    module = load_file(tmp_path / "standalone.py")
    assert load_file(tmp_path / "standalone.py") is module
    with pytest.raises(UserError, match=r"standalone\.py defines no function gemm; the kernel"):
        kernel_of(module, find_op("gemm"))
    with pytest.raises(UserError, match=r"no Python file .*absent\.py; check the path"):
        load_file(tmp_path / "absent.py")


def run(code: str, path: Path, cache: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(path), "MKPORT_CACHE_DIR": str(cache)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code + CALL], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_library_can_be_moved_after_its_kernels_were_compiled(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for name in ("mkport", "kernels"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, before / name, symlinks=True, ignore=skip)
    checked = (
        "from mkport.library import find_op\n"
        "from mkport.testing.parts import load_part\n"
        "kernel = load_part(find_op('select'), 'standalone')\n"
    )
    run(checked, before, tmp_path / "cache")
    before.rename(after)
    run(checked, after, tmp_path / "cache")
    run("import mkport.kernels.select.standalone as kernel\n", after, tmp_path / "cache")


def test_a_kernel_from_elsewhere_can_be_moved_and_imported(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    shutil.copy(ROOT / "kernels" / "select" / "standalone.py", before / "mine.py")
    checked = (
        "from pathlib import Path\n"
        "from mkport.testing.parts import load_file\n"
        "kernel = load_file(Path({!r}))\n"
    )
    run(checked.format(str(before / "mine.py")), ROOT, tmp_path / "cache")
    before.rename(after)
    run(checked.format(str(after / "mine.py")), ROOT, tmp_path / "cache")
    run(f"import sys; sys.path.append({str(after)!r})\nimport mine as kernel\n", ROOT, tmp_path)
    run(checked.format(str(after / "mine.py")), ROOT, tmp_path / "cache")
