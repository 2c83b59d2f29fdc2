"""What the solo form starts from: memory that holds nothing is NaN, what the case gave is kept."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mkport.library import find_op
from mkport.testing import Form, check_op
from mkport.testing.forms import graph_of
from mkport.testing.parts import load_part

SHAPE = {"small": {"tokens": 6, "rows": 4, "selected": 3, "k": 48}}


def kinds(name: str, shape: str) -> dict[str, str]:
    """The kinds of a case's tensors, those that the op writes."""
    op = find_op(name)
    oracle = load_part(op, "oracle")
    case = oracle.make(np.random.default_rng(0), "bf16", "bf16", **oracle.SHAPES[shape])
    graph, _ = graph_of(op, case, [op])
    return {name: s.kind for name, s in graph.tensors.items() if s.kind in ("output", "state")}


def test_old_contents_that_an_op_needs_are_kept() -> None:
    assert kinds("gemm", "residual") == {"y": "output"}
    assert kinds("gemm", "in place") == {"residual": "state"}
    assert set(kinds("moe_combine", "batch of 5 in 8").values()) == {"state"}
    assert set(kinds("attention", "heads of 112").values()) == {"state"}


@pytest.mark.parametrize("form", ["ported", "solo"])
def test_a_body_that_reads_its_arena_first_is_found(form: Form, tmp_path: Path) -> None:
    own = find_op("select")
    for file in ("op.py", "oracle.py", "standalone.py"):
        shutil.copy(own.folder / file, tmp_path)
    task = (own.folder / "task.py").read_text()
    right = "load_f32(a.x, there + i)"
    assert right in task
    (tmp_path / "task.py").write_text(task.replace(right, f"add({right}, load_f32(arena, 0))"))
    (verdict,) = check_op(replace(own, folder=tmp_path), form=form, shapes=SHAPE)
    assert not verdict.ok and verdict.same_bits is False
