"""What a check refuses, in words that say what to do."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mkport.compose import compose_cpu
from mkport.compose.cuda import compose_cuda
from mkport.errors import UserError
from mkport.library import find_op
from mkport.testing import check_op

SELECT = find_op("select")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"machine": "tpu"}, "no machine 'tpu'; the machines are cpu, "),
        ({"form": "liquid"}, "no form 'liquid'; the forms are standalone, "),
        ({"form": "standalone", "dtype": "f16"}, "no dtype 'f16'; the dtypes are bf16, f32"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_op(SELECT, **options)


def test_a_program_that_does_not_fit_is_refused() -> None:
    other = compose_cpu([find_op("gemm")], "bf16", "bf16")
    with pytest.raises(UserError, match="op select does not hold it, but gemm; compose"):
        check_op(SELECT, program=other)
    with pytest.raises(UserError, match="op gemm is a Program, .*'host' does not run"):
        check_op(find_op("gemm"), "host", program=other)
    with pytest.raises(UserError, match="op select is a CudaProgram, .*'cpu' does not run"):
        check_op(SELECT, program=compose_cuda([SELECT], "bf16", "bf16"))


def test_an_oracle_without_an_output_is_named(tmp_path: Path) -> None:
    for file in ("oracle.py", "standalone.py"):
        shutil.copy(SELECT.folder / file, tmp_path)
    oracle = tmp_path / "oracle.py"
    oracle.write_text(oracle.read_text().replace('return {"y":', 'return {"z":'))
    with pytest.raises(UserError, match=r"Op select: .*oracle\.py .* output 'y', .* returns z;"):
        check_op(replace(SELECT, folder=tmp_path), form="standalone")
