"""Every kernel of the gallery is ported, leaves its own bits, and computes what NumPy does."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mkport.machines.host.build import compiler
from mkport.port.check import port_program
from mkport.port.run import run_port
from mkport.testing.parts import load_file

GALLERY = Path(__file__).parents[2] / "docs/gallery"
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")


def _gallery() -> ModuleType:
    return load_file(GALLERY / "gallery.py")


ENTRIES: tuple[Any, ...] = _gallery().ENTRIES
TOLERANCE = {"silu_mul.cu": 1e-2}  # bfloat16 outputs


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.kernel for entry in ENTRIES])
def test_a_kernel_is_ported_bit_for_bit_and_right(entry: Any, tmp_path: Path) -> None:
    """`port` runs the file itself and its port; here the port also meets the truth."""
    gallery = _gallery()
    report = gallery.port(entry, compile=False, out=tmp_path)
    if entry.refused:
        assert [f.code for f in report.findings if f.severity == "refusal"] == [entry.refused]
        return
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
    given, _ = entry.make(np.random.default_rng(0))
    if entry.types:
        from mkport.port.numba_cuda import translate

        given = translate(GALLERY / "kernels" / entry.file, None, entry.types).arguments(given)
    op = load_file(tmp_path / report.op.name / "op.py").OP
    sizes = {f"grid_{axis}": size for axis, size in zip("xyz", entry.grid, strict=True)}
    named = {arg.name: given.get(arg.name, sizes.get(arg.name)) for arg in op.args}
    outputs = run_port(op, named, "host", workers=3, seed=7, program=port_program(op))
    for name, error in gallery.errors(entry, outputs).items():
        assert error <= TOLERANCE.get(entry.file, 1e-5), name


@pytest.mark.gpu
@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.kernel for entry in ENTRIES])
def test_a_kernel_is_ported_bit_for_bit_on_a_gpu(entry: Any) -> None:
    report = _gallery().port(entry, machine="cuda")
    assert report.verdict == ("refused" if entry.refused else "ported")
    assert report.ran or entry.refused


def test_at_least_eight_files_in_many_styles() -> None:
    files = {entry.file for entry in ENTRIES}
    assert files == {path.name for path in (GALLERY / "kernels").iterdir() if path.is_file()}
    assert len(files) >= 8
    for path in (GALLERY / "kernels").iterdir():
        if path.is_file():
            assert "mkport" not in path.read_text() and "mk_" not in path.read_text()


def test_the_page_is_what_its_script_writes() -> None:
    written = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert written == _gallery().page(), "run python docs/gallery/gallery.py"
