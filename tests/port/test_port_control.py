"""Which kernels let threads slip out of step, and which do not: the analysis on small programs.

Each program is one kernel body, or a whole file; the code it must be refused with, or none.
"""

from pathlib import Path

import pytest

from mkport.port.control import Control
from mkport.port.kernel import read_kernel
from mkport.port.macros import expand
from mkport.port.uniform import Uniformity
from mkport.port.unit import Unit

HEAD = (
    "__global__ void k(float* x, int n, int* idx) { __shared__ float s[256]; int t = threadIdx.x; "
)


def read_cases(name: str) -> dict[str, tuple[str, str]]:
    """Cases by name: a program, and the code that it is refused with, "" if it is fine."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    found = {}
    for case in text.strip().split("\n\n"):
        head, _, program = case.partition("\n")
        label, _, code = head.partition(": ")
        found[label] = (program, "" if code == "fine" else code)
    return found


BODIES, FILES = read_cases("bodies.txt"), read_cases("files.txt")


def codes(text: str, block: tuple[int, int, int] = (256, 1, 1)) -> set[str]:
    unit = Unit(expand(text, {}))
    item = unit.kernels[0]
    reached, _ = unit.reach([item])
    analysis = Uniformity(unit, read_kernel(unit, item, ()), reached, block)
    return {finding.code for finding in Control(analysis).findings()}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_refused_for_its_reason_alone(name: str) -> None:
    body, wanted = BODIES[name]
    found = codes(HEAD + body + " }")
    assert wanted in found if wanted else not found


@pytest.mark.parametrize("name", FILES)
def test_helpers_lambdas_objects_and_macros_are_followed(name: str) -> None:
    text, wanted = FILES[name]
    found = codes(text)
    assert wanted in found if wanted else not found


@pytest.mark.parametrize(
    ("block", "wanted"), [((32, 4, 1), set()), ((64, 4, 1), set()), ((16, 16, 1), {"MK133"})]
)
def test_rows_of_a_two_dimensional_block_are_warps_if_they_are_wide_enough(
    block: tuple[int, int, int], wanted: set[str]
) -> None:
    body = "if (threadIdx.y >= n) return; x[t] += __shfl_xor_sync(~0u, x[t], 1);"
    assert codes(HEAD + body + " }", block) == wanted


def test_memory_that_decides_about_barriers_is_warned_of() -> None:
    unit = Unit(HEAD + "if (idx[blockIdx.x] > 0) __syncthreads(); }")
    item = unit.kernels[0]
    analysis = Uniformity(unit, read_kernel(unit, item, ()), [item], (256, 1, 1))
    control = Control(analysis)
    assert not control.findings()
    assert [f.code for f in control.memory_conditions()] == ["MK304"]
