"""The pages of refusals say what a port says today, and every code has one."""

import re
from pathlib import Path
from typing import Any

import pytest

from mkport.machines.cuda.nvrtc import find
from mkport.machines.host.build import compiler
from mkport.port.finding import TITLES
from mkport.port.port import port_file
from mkport.testing.parts import load_file

FOLDER = Path(__file__).parents[2] / "docs/refusals"
MAKE: Any = load_file(FOLDER / "make.py")
RUN = [code for code in TITLES if code.startswith("MK2")]
# Numbers that are the machine's, or a compiler's.
OTHERS = {"MK120": r"\d{5,}", "MK160": r"\d{3} registers"}


@pytest.mark.parametrize("code", [code for code in TITLES if code not in RUN])
def test_a_page_says_what_a_port_says(code: str) -> None:
    if code in MAKE.COMPILED and find() is None:
        pytest.skip("NVRTC is not installed")
    if code in MAKE.COMPARED and compiler() is None:
        pytest.skip("no C++ compiler for the host build")
    said = MAKE.message(code)
    assert said.startswith(code)
    written, wanted = (FOLDER / f"{code}.md").read_text(), MAKE.page(code, said)
    if numbers := OTHERS.get(code):
        written, wanted = (re.sub(numbers, "N", text) for text in (written, wanted))
    assert written == wanted, "run docs/refusals/make.py"


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("code", RUN)
def test_a_page_says_what_the_original_did(code: str) -> None:
    """Which thread is first may differ between processors; code, line and kind do not."""
    said, page = MAKE.message(code), (FOLDER / f"{code}.md").read_text()
    head = " ".join(said.split()[:3])  # MK201 MK201.cu:4: Race:
    assert said.startswith(code) and f"> {head}" in page


def test_the_index_has_every_code_and_no_page_is_left_over() -> None:
    assert (FOLDER / "README.md").read_text() == MAKE.index()
    assert {path.stem for path in FOLDER.glob("MK*.md")} == set(TITLES)
    kernels = {path.stem for path in (FOLDER / "kernels").glob("MK*.*")}
    assert kernels <= set(TITLES)
    assert all(MAKE.case_of(code)[1].is_file() for code in TITLES)


@pytest.mark.skipif(find() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize(("code", "mended"), [
    ("MK160", ("200", "20")), ("MK161", ("of_another_file(", "(2 * ")),
])  # fmt: skip
def test_the_edit_that_the_words_name_mends_it(
    code: str, mended: tuple[str, str], tmp_path: Path
) -> None:
    case, path = MAKE.case_of(code)
    (tmp_path / path.name).write_text(case.text.replace(*mended))
    report = port_file(tmp_path / path.name, **case.options, run=False)
    assert report.verdict == "ported", [str(f) for f in report.findings]


@pytest.mark.skipif(find() is None, reason="NVRTC is not installed")
def test_a_buffer_that_is_named_immutable_may_be_read_so() -> None:
    case, path = MAKE.case_of("MK170")
    report = port_file(path, **case.options, immutable=["x"], run=False)
    assert report.verdict == "ported", [str(f) for f in report.findings]
