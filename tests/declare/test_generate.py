"""The C header says what Python says: a compiled reader finds every field where Python wrote it."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mkport.declare import RECORD, RECORD_WORDS, Op
from mkport.declare.generate import c_header, op_table, record_table, struct_name
from mkport.library import all_ops
from mkport.reference import PAGE, record_page

OPS = list(all_ops().values())


def values_of(op: Op) -> dict[str, object]:
    """Distinct values for every argument: tensors by name, ints and floats by position."""
    values: dict[str, object] = {}
    for place, arg in enumerate(op.args):
        values[arg.name] = {"tensor": arg.name, "int": 1000 + place, "float": 0.25 + place}[
            arg.kind
        ]
    return values


def reader(ops: list[Op]) -> str:
    lines = [
        "#define MK_DEVICE",
        "#include <cstdio>",
        "typedef unsigned short mk_weight;",
        "typedef unsigned short mk_kv;",
        '#include "ops.h"',
        "int main() {",
        "  int32_t record[MK_RECORD_WORDS]; int64_t table[64];",
        "  for (int i = 0; i < 64; i++) table[i] = 4096 + 64 * i;",
    ]
    for op in ops:
        lines.append("  if (fread(record, 4, MK_RECORD_WORDS, stdin) != MK_RECORD_WORDS) return 1;")
        lines.append(f"  {{ auto a = {struct_name(op)}::load(record, table);")
        for arg in op.args:
            value = (
                f"(double)(int64_t)a.{arg.name}"
                if arg.kind == "tensor"
                else f"(double)a.{arg.name}"
            )
            lines.append(f'    printf("%.9g\\n", {value});')
        lines.append("  }")
    return "\n".join([*lines, "}"])


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_a_compiled_reader_finds_every_argument(tmp_path: Path) -> None:
    (tmp_path / "ops.h").write_text(c_header(OPS))
    (tmp_path / "reader.cc").write_text(reader(OPS))
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Werror", "-o", "reader", "reader.cc"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    records, wanted = [], []
    for op in OPS:
        tensors = {arg.name: place for place, arg in enumerate(op.tensors)}
        values = values_of(op)
        record = np.zeros(RECORD_WORDS, np.int32)
        words = op.encode(values, tensors)
        first = RECORD["args"].first
        record[first : first + len(words)] = words
        records.append(record)
        for arg in op.args:
            value = values[arg.name]
            wanted.append(4096.0 + 64 * tensors[arg.name] if arg.kind == "tensor" else value)
    run = subprocess.run(
        [tmp_path / "reader"], input=np.stack(records).tobytes(), capture_output=True, check=True
    )
    assert [float(line) for line in run.stdout.split()] == wanted


def test_an_absent_tensor_is_null() -> None:
    gemm = all_ops()["gemm"]
    words = gemm.encode(
        values_of(gemm) | {"residual": None, "norm_w": None, "norm_y": None},
        dict.fromkeys("count x w y".split(), 3),
    )
    place = [arg.name for arg in gemm.args].index("residual")
    assert words[place] == -1


def test_the_record_table_covers_every_word() -> None:
    rows = [line.split("|")[1].strip() for line in record_table().splitlines()[2:]]
    words: list[int] = []
    for row in rows:
        first, _, last = row.partition("-")
        words += range(int(first), int(last or first) + 1)
    flags = RECORD["flags"].first  # has two names
    assert words == sorted([*range(RECORD_WORDS), flags])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_op_table_names_every_argument(op: Op) -> None:
    table = op_table(op)
    assert all(f"`{arg.name}`" in table for arg in op.args)
    assert len(table.splitlines()) == 2 + len(op.args)


def test_the_committed_reference_page_is_the_generated_one() -> None:
    page = Path(__file__).parents[2] / PAGE
    assert page.read_text() == record_page(), "run python -m mkport.reference"
