"""Many kernels of one file, their originals run in one build, and their ports in one megakernel."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.port import check
from mkport.port.fill.op import OP as FILL
from mkport.port.geometry import Geometry
from mkport.port.includes import merge
from mkport.port.kernel import parse_instance
from mkport.port.original import run_original
from mkport.port.port import Port, port_file
from mkport.port.report import Report
from mkport.port.scanned import Request
from mkport.port.unit import device_text

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """A kernel's launch and its arguments, by parameter."""

    grid: Size
    block: Size
    given: dict[str, Any]
    instance: str = ""
    shared: int = 0


class Kernels:
    """The kernels of one file that are tested, each by its case."""

    def __init__(self, file: Path, cases: dict[str, Case]) -> None:
        self.file = file
        self.cases = cases
        self.reports = {kernel: self._report(kernel) for kernel in cases}

    def _report(self, kernel: str) -> Report:
        case = self.cases[kernel]
        return port_file(
            self.file, kernel, grid=case.grid, block=case.block, shared=case.shared or None,
            instantiate=case.instance or None, run=False, compile=False,
        )  # fmt: skip

    def prepared(self, kernel: str) -> Port:
        """A port as far as its text."""
        case = self.cases[kernel]
        _, instance = parse_instance(case.instance or kernel)
        shared = case.shared or None
        port = Port(Request(self.file, kernel, case.grid, case.block, shared, instance))
        port.prepare()
        return port

    def program(self) -> CudaProgram:
        """All ports that there are."""
        ops = [report.op for report in self.reports.values() if report.op is not None]
        return compose_cuda([FILL, *ops], "f32", "f32", rows=1)

    def originals(self) -> dict[str, dict[str, np.ndarray]]:
        """What the originals leave, by kernel and argument."""
        launches = []
        for name, case in self.cases.items():
            port = self.prepared(name)
            launch = Geometry(case.grid, case.block, case.shared)
            full = port.kernel.qualified(port.unit)
            launches.append(
                check.original_launch(port.kernel, full, launch, case.given, case.shared)
            )
        also = " ".join(case.instance for case in self.cases.values())
        done = run_original(device_text(merge(self.file).text, also), launches, seeds=3)
        assert done.well_defined, done.findings
        left = list(done.outputs)
        return {
            kernel: {
                name: left.pop(0)
                for name, value in case.given.items()
                if isinstance(value, np.ndarray)
            }
            for kernel, case in self.cases.items()
        }

    def differences(
        self, kernel: str, outputs: dict[str, np.ndarray], program: CudaProgram
    ) -> list[str]:
        """Where a port's bits are not its original's, in a sandwich of others' tasks."""
        case, report = self.cases[kernel], self.reports[kernel]
        assert report.op is not None, [str(finding) for finding in report.refusals]
        sizes = {f"grid_{axis}": size for axis, size in zip("xyz", case.grid, strict=True)}
        bound = {a.name: case.given.get(a.name, sizes.get(a.name)) for a in report.op.args}
        orders = ((1, 0), (7, 2))
        return check.compare(report.op, bound, outputs, orders=orders, program=program)
