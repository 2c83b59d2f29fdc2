"""What the assembler made of steps of published models' shapes."""

import re
import subprocess
from bisect import bisect_right
from pathlib import Path

import pytest

from mkport.compose.fixed import compose_cuda_for
from mkport.machines.cuda.nvrtc import Nvrtc
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import flagged_for
from mkport.plan.flagged import ROWS

LOADS = {"mk_computer": (4, 4), "mk_stager": (8, 16)}  # under way in staging: flagged, or not


def source_of(family: str, rows: int) -> str:
    """The composed file of a step of so many rows."""
    config = config_of(family, "full")
    shape = StepShape(rows=rows, context=8192, sequences=rows, logits=rows, stage=66048)
    graph = sampled(family_of(config).build(parse_config(config), shape))
    return compose_cuda_for(flagged_for(graph, rows), "bf16", "bf16", rows).source


def targets_of(listing: str, source: str, within: str) -> dict[str, list[str]]:
    """The registers that vectors of 16 bytes are loaded to in the function `within`, by role;
    `listing` is nvdisasm's, with the lines that an instruction was inlined from."""
    begins = [
        (number, found[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (found := re.match(r"MK_DEVICE inline \w+ (mk_\w+)\(", line))
    ]
    functions = [name for _, name in begins]
    targets: dict[str, list[str]] = {role: [] for role in LOADS}
    chain: list[str] = []
    places = False
    for text in listing.splitlines():
        if "//##" in text:
            numbers = map(int, re.findall(r"line (\d+)", text))
            names = [functions[bisect_right(begins, (n, "~")) - 1] for n in numbers]
            chain = chain + names if places else names
        places = "//##" in text
        load = re.search(r"\bLDG\.E\.128\S* (R\d+),", text)
        if load and within in chain:
            for role in LOADS.keys() & chain:
                targets[role].append(load[1])
    return targets


@pytest.mark.parametrize(
    ("family", "rows"),
    [("cohere2_moe", 1), ("cohere2_moe", 2), ("cohere2_moe", 8), ("qwen3_moe", 1), ("llama", 1)],
)
def test_nothing_is_spilled_and_staging_has_its_loads_under_way_side_by_side(
    nvrtc: Nvrtc, nvdisasm: str, family: str, rows: int, tmp_path: Path
) -> None:
    """Where registers are short the assembler gives all loads one target, and each waits for the
    one before it, which took 13 % of a step."""
    source = source_of(family, rows)
    code = nvrtc.compile(source, "sm_90a", lines=True)
    assert set(code.spills.values()) == {0}
    (tmp_path / "code.cubin").write_bytes(code.cubin)
    command = [nvdisasm, "-gi", "-c", str(tmp_path / "code.cubin")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for role, found in targets_of(listing, source, "mk_gather").items():
        assert len(found) == len(set(found)) == LOADS[role][rows > ROWS], (role, found)
