"""Kernels as people write them, ported unchanged: one build of the originals, one of all ports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.machines.host.build import compiler
from mkport.port import check
from mkport.port.fill.op import OP as FILL
from mkport.port.geometry import Geometry
from mkport.port.original import run_original
from mkport.port.port import port_file
from mkport.port.report import Report
from mkport.port.unit import device_text

FILE = Path(__file__).with_name("styles.cu")
rng = np.random.default_rng(7)
pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")


def f32(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def ints(low: int, high: int, *shape: int, dtype: type = np.int32) -> np.ndarray:
    return rng.integers(low, high, shape).astype(dtype)


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


HALF = np.float16
# grid, block, bytes of dynamic shared memory, arguments
LAUNCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, list[Any]]] = {
    "matmul": ((3, 2), (16, 16), 0, [f32(30, 40), f32(40, 45), zeros(30, 45), 30, 45, 40]),
    "softmax": ((5,), (128,), 512, [f32(5, 300), zeros(5, 300), 4, 300]),
    "rmsnorm_half": (
        (3,), (64,), 0,
        [f32(3, 96).astype(HALF), f32(96).astype(HALF), zeros(3, 96, dtype=HALF), 96, 1e-5],
    ),
    "row_max": ((4,), (64,), 0, [f32(4, 100), zeros(4), 100]),
    "saxpy": ((3,), (640,), 0, [1900, 0.5, f32(1900), f32(1900)]),
    "maxout": ((2,), (96,), 0, [f32(500, 3), zeros(500), 500, 3]),
    "transpose": ((2, 3), (32, 8), 0, [zeros(50, 70), f32(70, 50), 50, 70]),
    "gemv": ((5,), (32, 4), 0, [f32(18, 40), f32(40), zeros(18), 18, 10]),
    "gemv_int8": ((5,), (96,), 0, [ints(-99, 99, 13, 70, dtype=np.int8), f32(13), f32(70),
                                   zeros(13), 13, 70]),
    "scan": ((1,), (128,), 1024, [ints(0, 9, 100), zeros(100, dtype=np.int32), 100]),
    "histogram": ((3,), (256,), 0, [ints(0, 256, 2000, dtype=np.uint8),
                                    zeros(256, dtype=np.int32), 2000]),
    "votes": ((2,), (160,), 0, [ints(0, 4, 160), zeros(2, dtype=np.int32)]),
    "reversed": ((3,), (128,), 0, [f32(384), zeros(384)]),
    "relu": ((2,), (50,), 0, [f32(333), zeros(333), 333]),
    "weigh": ((3,), (70,), 0, [f32(200, 2).view(np.uint8), zeros(200, dtype=np.float64), 200, 1]),
    "totals": ((3,), (64,), 256, [f32(192), zeros(192)]),
}  # fmt: skip
INSTANCES = {"softmax": "softmax<float, 128>"}


def size(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def port_of(kernel: str) -> Report:
    grid, block, shared, _ = LAUNCHES[kernel]
    return port_file(
        FILE, kernel, grid=size(grid), block=size(block), shared=shared,
        instantiate=INSTANCES.get(kernel), name=f"my_{kernel}", run=False, compile=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {kernel: port_of(kernel) for kernel in LAUNCHES}


@pytest.fixture(scope="module")
def program(reports: dict[str, Report]) -> CudaProgram:
    ops = [report.op for report in reports.values() if report.op is not None]
    return compose_cuda([FILL, *ops], "f32", "f32", rows=1)


def bound(report: Report, kernel: str) -> dict[str, Any]:
    assert report.op is not None
    grid, _, _, given = LAUNCHES[kernel]
    names = [arg.name for arg in report.op.args]
    return dict(zip(names, [*given, *grid], strict=False))


@pytest.fixture(scope="module")
def outputs(reports: dict[str, Report]) -> dict[str, list[np.ndarray]]:
    """What the originals leave, all in one build: by kernel, the distinct arrays in order."""
    launches = []
    for kernel, (grid, block, shared, given) in LAUNCHES.items():
        port = _request(kernel)
        arguments = dict(zip((p.name for p in port.kernel.params), given, strict=True))
        launch = Geometry(size(grid), size(block), shared)
        launches.append(
            check.original_launch(port.kernel, port.kernel.call, launch, arguments, shared)
        )
    source = device_text(FILE.read_text().replace("#include <cuda_fp16.h>", "", 1))
    done = run_original("#include <cuda_fp16.h>\n" + source, launches, seeds=3)
    assert done.well_defined, done.findings
    left = list(done.outputs)
    return {
        kernel: [left.pop(0) for a in given if isinstance(a, np.ndarray)]
        for kernel, (_, _, _, given) in LAUNCHES.items()
    }


def _request(kernel: str) -> Any:
    from mkport.port.kernel import parse_instance
    from mkport.port.port import Port
    from mkport.port.scanned import Request

    _, instance = parse_instance(INSTANCES.get(kernel, kernel))
    port = Port(Request(FILE, kernel, instance=instance))
    port._scan()
    return port


@pytest.mark.parametrize("kernel", LAUNCHES)
def test_a_port_has_the_bits_of_its_original(
    kernel: str,
    reports: dict[str, Report],
    program: CudaProgram,
    outputs: dict[str, list[np.ndarray]],
) -> None:
    report = reports[kernel]
    assert report.verdict == "ported", [str(f) for f in report.refusals]
    assert report.op is not None
    arguments = bound(report, kernel)
    arrays = [name for name, value in arguments.items() if isinstance(value, np.ndarray)]
    wanted = dict(zip(arrays, outputs[kernel], strict=True))
    assert any(not np.array_equal(wanted[n], arguments[n]) for n in arrays)
    orders = ((1, 0), (2, 1), (7, 2))
    assert not check.compare(report.op, arguments, wanted, orders=orders, program=program)


def test_other_bits_are_seen(
    reports: dict[str, Report], program: CudaProgram, outputs: dict[str, list[np.ndarray]]
) -> None:
    report = reports["saxpy"]
    assert report.op is not None
    arguments = bound(report, "saxpy")
    wanted = {"x": outputs["saxpy"][0], "y": outputs["saxpy"][1].copy()}
    wanted["y"][17] = np.nextafter(wanted["y"][17], np.float32(9))
    (one, two) = check.compare(report.op, arguments, wanted, orders=((1, 0),), program=program)
    assert one.startswith("y: 1 elements differ, first [17]")


def test_what_tiles_do_is_found_out(reports: dict[str, Report]) -> None:
    lines = {kernel: "\n".join(report.steps[4].lines) for kernel, report in reports.items()}
    assert "A: read\n" in lines["matmul"] and "C: written" in lines["matmul"]
    assert "y: read and written" in lines["saxpy"]
    assert "bins: read and written" in lines["histogram"]
    assert "out: written" in lines["weigh"] and "y: written" in lines["softmax"]


def test_the_text_is_the_users_but_for_the_lines_that_must_change(
    reports: dict[str, Report],
) -> None:
    task = reports["matmul"].files["task.cuh"]
    for line in FILE.read_text().split("\n")[27:38]:  # the loop of matmul
        assert line in task
    assert "__restrict__" not in task and "softmax" not in task and "torch" not in task
    assert [f.code for f in reports["histogram"].findings] == ["MK301"]


def test_argument_names_that_the_record_needs_itself_are_changed(tmp_path: Path) -> None:
    path = tmp_path / "names.cu"
    path.write_text(
        "__global__ void names(float* head, int grid_x, int unused) { *head = grid_x; }"
    )
    report = port_file(path, block=(1, 1, 1), run=False, compile=False)
    assert report.op is not None
    assert [a.name for a in report.op.args] == ["head_", "grid_x_", "unused_", "grid_x"]
    assert "a.head_" in report.files["task.cuh"]
