"""The pages of refusals say what a port says today, and every code has one."""

import re
from pathlib import Path
from typing import Any

import pytest

from mkport.machines.host.build import compiler
from mkport.port.finding import TITLES
from mkport.testing.parts import load_file

FOLDER = Path(__file__).parents[2] / "docs/refusals"
MAKE: Any = load_file(FOLDER / "make.py")
RUN = [code for code in TITLES if code.startswith("MK2")]


@pytest.mark.parametrize("code", [code for code in TITLES if code not in RUN])
def test_a_page_says_what_a_port_says(code: str) -> None:
    said = MAKE.message(code)
    assert MAKE.case_of(code) is None or said.startswith(code)
    written, wanted = (FOLDER / f"{code}.md").read_text(), MAKE.page(code, said)
    if code == "MK120":  # the budget is the machine's
        written, wanted = (re.sub(r"\d{5,}", "N", text) for text in (written, wanted))
    assert written == wanted, "run docs/refusals/make.py"


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("code", RUN)
def test_a_page_says_what_the_original_did(code: str) -> None:
    """Which thread is first may differ between processors; code, line and kind do not."""
    said, page = MAKE.message(code), (FOLDER / f"{code}.md").read_text()
    if MAKE.case_of(code) is None:
        assert page == MAKE.page(code, said)
        return
    head = " ".join(said.split()[:3])  # MK201 MK201.cu:4: Race:
    assert said.startswith(code) and f"> {head}" in page


def test_the_index_has_every_code_and_no_page_is_left_over() -> None:
    assert (FOLDER / "README.md").read_text() == MAKE.index()
    assert {path.stem for path in FOLDER.glob("MK*.md")} == set(TITLES)
    kernels = {path.stem for path in (FOLDER / "kernels").glob("MK*.*")}
    assert kernels <= set(TITLES)
