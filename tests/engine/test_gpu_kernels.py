"""The table of the kernels' races: what it says of a result, without a GPU."""

from copy import deepcopy
from typing import Any

import pytest

from mkport.engine.bench.gpu_kernels import line, right, table

RESULT: dict[str, Any] = {
    "kernel": "gemm", "shape": "q 4096 x 2048", "rows": 8, "bytes": 2 * 4096 * 2048,
    "verdicts": {
        "gemm": {"error": 0.001, "allowed": 0.01, "law": True, "ported": True, "solo": True},
        "pytorch": {"difference": 0.004, "near": True},
    },
    "bar": 0.95, "best": "matmul", "median_s": {"mkport": 8e-6, "matmul": 7.7e-6}, "speed": 0.9625,
    "samples_s": {"mkport": [8e-6] * 3, "matmul": [7.7e-6] * 3},
}  # fmt: skip


def test_a_row_has_times_bandwidths_and_the_verdict() -> None:
    assert line(RESULT) == (
        "| gemm | q 4096 x 2048 | 8 | 8.0 | 2.10 | 7.7 | 2.18 | matmul | 0.96 | 0.95 | equal |"
    )


def test_a_race_below_its_bar_says_so() -> None:
    assert "**misses**" in line(RESULT | {"speed": 0.94})


@pytest.mark.parametrize(
    ("part", "word", "value"),
    [
        ("gemm", "law", False), ("gemm", "ported", False), ("gemm", "solo", "Stuck: ..."),
        ("pytorch", "near", False),
    ],
)  # fmt: skip
def test_one_bad_verdict_spoils_the_row(part: str, word: str, value: object) -> None:
    wrong = deepcopy(RESULT)
    wrong["verdicts"][part][word] = value
    assert right(RESULT) and not right(wrong)
    assert "WRONG" in line(wrong)


def test_the_table_names_machine_versions_and_commit() -> None:
    data = {
        "gpu": "NVIDIA H200", "commit": "abc1234", "date": "2026-01-02", "results": [RESULT],
        "driver and clocks": "580, 1980 MHz", "versions": {"torch": "2.11", "nvrtc": "13.0"},
    }  # fmt: skip
    text = table(data)
    for word in ("NVIDIA H200", "torch 2.11", "nvrtc 13.0", "abc1234", "medians of 3 samples"):
        assert word in text
    assert line(RESULT) in text
