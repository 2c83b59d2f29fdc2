"""Every standalone CUDA kernel of the library ports, and keeps its bits among others' tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import Op
from mkport.library import all_ops
from mkport.machines.cuda.nvrtc import find, nvrtc
from mkport.machines.host.build import compiler
from mkport.port import check
from mkport.port.fill.op import OP as FILL
from mkport.port.port import port_file
from mkport.testing.cuda_forms import HostLaunch
from mkport.testing.parts import load_part

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")


@dataclass(frozen=True)
class Called:
    """One launch that a case's check makes."""

    op: str
    file: Path
    case: str
    kernel: str
    blocks: int
    threads: int
    shared: int
    args: Sequence[Any]


class Noted:
    """Notes launches instead of making them."""

    multiprocessors = 3
    shared_bytes = 232448

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int, tuple[Any, ...]]] = []

    def __call__(
        self, kernel: str, blocks: int, threads: int, shared_bytes: int, *args: Any
    ) -> None:
        self.calls.append((kernel, blocks, threads, shared_bytes, args))


def launches() -> list[Called]:
    found = []
    for name, op in all_ops().items():
        file = op.folder / "standalone.cu"
        if not file.is_file():
            continue
        oracle = load_part(op, "oracle")
        for dtype in ("bf16", "f32"):
            for case, shape in oracle.SHAPES.items():
                noted = Noted()
                made = oracle.make(np.random.default_rng(0), dtype, dtype, **shape)
                oracle.call_standalone_cuda(noted, made.a)
                found += [
                    Called(name, file, f"{dtype} {case}", *call) for call in noted.calls if call[1]
                ]
    return found


LAUNCHES = launches()
KERNELS = sorted({(called.op, called.kernel) for called in LAUNCHES})


@pytest.fixture(scope="module")
def ports() -> dict[tuple[str, str], Op]:
    """Each kernel's op, for the most shared memory that it is launched with."""
    found = {}
    for op, kernel in KERNELS:
        most = max(
            (c for c in LAUNCHES if (c.op, c.kernel) == (op, kernel)), key=lambda c: c.shared
        )
        report = port_file(
            most.file, kernel, grid=(most.blocks, 1, 1), block=(most.threads, 1, 1),
            shared=most.shared, name=f"ported_{kernel}", run=False, compile=False,
        )  # fmt: skip
        assert report.op is not None, [str(finding) for finding in report.refusals]
        found[op, kernel] = report.op
    return found


@pytest.fixture(scope="module")
def program(ports: dict[tuple[str, str], Op]) -> CudaProgram:
    return compose_cuda([FILL, *ports.values()], "f32", "f32", rows=1)


@pytest.mark.parametrize(("op", "kernel"), KERNELS)
def test_a_standalone_kernel_keeps_its_bits(
    op: str, kernel: str, ports: dict[tuple[str, str], Op], program: CudaProgram
) -> None:
    port = ports[op, kernel]
    names = [arg.name for arg in port.args]
    for called in LAUNCHES:
        if (called.op, called.kernel) != (op, kernel):
            continue
        arguments = dict(zip(names, [*called.args, called.blocks], strict=True))
        copies = {id(a): a.copy() for a in called.args if isinstance(a, np.ndarray)}
        original = HostLaunch(called.file.read_text(encoding="utf-8"))
        given = [copies.get(id(a), a) for a in called.args]
        original(kernel, called.blocks, called.threads, called.shared, *given)
        wanted = {
            name: copies[id(value)]
            for name, value in arguments.items()
            if isinstance(value, np.ndarray)
        }
        differ = check.compare(port, arguments, wanted, orders=((1, 0), (3, 1)), program=program)
        assert not differ, (called.case, differ)


def test_every_file_is_there() -> None:
    files = {op.folder for op in all_ops().values() if (op.folder / "standalone.cu").is_file()}
    assert {called.file.parent for called in LAUNCHES} == files


@pytest.mark.skipif(find() is None, reason="NVRTC is not installed")
def test_all_ports_compile_for_a_gpu_together(program: CudaProgram) -> None:
    assert nvrtc().compile(program.source, "sm_90a").registers["megakernel"] <= 168
