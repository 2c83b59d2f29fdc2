"""The kernels' races without a GPU: what the table says of a result, and that every race's
launches can be made."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mkport.engine.bench import kernel_races
from mkport.engine.bench.gpu_kernels import graph_of, line, right, table
from mkport.machines.cpu.memory import NUMPY
from mkport.models import family_of, parse_config
from mkport.models.sizes import FULL
from mkport.models.step import StepShape
from mkport.plan import deal
from mkport.testing.cuda_forms import standalone_source
from mkport.testing.parts import load_part
from mkport.verify import verify

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


class Thin(np.ndarray):
    """An array of any size that takes no memory, with what a CuPy array has."""

    def get(self) -> np.ndarray:
        return np.array(self)


def thin(tensor: Any) -> Thin:
    """In place of a tensor that PyTorch only imagines."""
    dtype = "uint16" if str(tensor.dtype) == "torch.bfloat16" else str(tensor.dtype).split(".")[1]
    return np.broadcast_to(np.zeros((), dtype), tensor.shape).view(Thin)


class Noted:
    """Notes launches instead of making them."""

    multiprocessors = 132
    shared_bytes = 232448
    calls: list[str] = []

    def __init__(self, source: str) -> None:
        self.source = source

    def __call__(self, kernel: str, blocks: int, threads: int, shared: int, *args: Any) -> None:
        assert f" {kernel}(" in self.source
        assert blocks > 0 and shared <= self.shared_bytes
        self.calls.append(kernel)


def test_every_race_can_be_run_as_a_kernel_and_as_a_megakernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_races, "DEVICE", "meta")
    monkeypatch.setattr(kernel_races, "_cupy", thin)
    monkeypatch.setattr(kernel_races, "_device", lambda array: array.view(Thin))
    monkeypatch.setattr(kernel_races, "GpuLaunch", Noted)
    found = 0
    for race in kernel_races.races():
        for use in race.uses[0]:
            Noted.calls.clear()
            use.call()()
            assert Noted.calls, race.shape
            for workers in (1, Noted.multiprocessors):
                verify(deal(graph_of(use)[0], workers, share="strided"))
        found += 1
    assert found == 2 * 7 + 2 * 2 + 6


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("family", FULL)
def test_every_published_model_s_step_can_be_launched_kernel_by_kernel(
    family: str, rows: int
) -> None:
    """What each launch asks of a GPU, an H200's shared memory above all, is there."""
    shape = StepShape(rows=rows, context=8192, sequences=rows, logits=rows)
    graph = family_of(FULL[family]).build(parse_config(dict(FULL[family])), shape)
    for node in graph.nodes:
        args = {name: value for name, value in node.args.items() if value is not None}
        for arg in node.op.tensors:
            if arg.name in args:
                spec = graph.tensors[args[arg.name]]
                args[arg.name] = np.broadcast_to(np.zeros((), NUMPY[spec.dtype]), spec.shape)
        args |= {"count": np.array([rows], np.int32)} if "count" in args else {}
        Noted.calls.clear()
        launch = Noted(standalone_source(node.op))
        load_part(node.op, "oracle").call_standalone_cuda(launch, SimpleNamespace(**args))
        assert Noted.calls, node.label
