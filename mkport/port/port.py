"""Ports a CUDA kernel in twelve steps, or says which line is the reason that it cannot be.

The steps are layers: `scanned.py`, `fitted.py`, `written.py`, `tried.py`; the verdict stands here.
Nothing is written unless a folder is given.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkport.errors import UserError
from mkport.port.finding import Finding, RefusedPort
from mkport.port.geometry import Three
from mkport.port.kernel import parse_instance
from mkport.port.report import Report
from mkport.port.scanned import Request
from mkport.port.tried import Tried

LACKING = ("MK101", "MK103", "MK122", "MK161")  # what a header that is not there may cause


def port_file(
    path: Path | str,
    kernel: str | None = None,
    *,
    grid: Three | None = None,
    block: Three | None = None,
    shared: int | None = None,
    instantiate: str | None = None,
    immutable: Sequence[str] = (),
    define: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | Sequence[str] | None = None,
    name: str | None = None,
    out: Path | None = None,
    run: bool = True,
    compile: bool = True,
    machine: str = "host",
    include: Sequence[Path] = (),
) -> Report:
    """Ports one kernel of a file.

    `kernel` may be left out where the file has one. `grid`, `block` (x, y, z) and `shared` (bytes)
    are the launch, `instantiate` a template's arguments ("softmax<float, 4>"), `immutable` the
    parameters that nothing writes during a step. `arguments` are what original and port run on, by
    parameter or as texts ("x=f32[8,512]"); made-up ones are tried when they are left out. `name` is
    the op's, the kernel's when left out. The port's files go to `out`/name if `out` is given and
    the port succeeds; `include` are folders of headers. Raises UserError for wrong use; all else is
    in the report.
    """
    if machine not in ("host", "cuda"):
        raise UserError(f"A port is run on the machines host and cuda, not on {machine!r}.")
    instance: tuple[str, ...] = ()
    if instantiate:
        named, instance = parse_instance(instantiate)
        if named and kernel and named != kernel:
            raise UserError(f"--instantiate is for {named}, but the kernel is {kernel}.")
        kernel = named or kernel
    defines = tuple((define or {}).items())
    return Port(
        Request(
            Path(path), kernel, grid, block, shared, instance, tuple(immutable), defines,
            arguments, name, out, run, compile, machine, tuple(include),
        )
    ).run()  # fmt: skip


class Port(Tried):
    """One port on its way through the steps."""

    def prepare(self) -> None:
        """The steps up to the port's text; the text is not made of a kernel that was refused.

        Raises RefusedPort where later steps cannot be made.
        """
        self._scan()
        self._geometry()
        self._libraries()
        self._fit()
        self._control()
        self._memory()
        self._synchronisation()
        self._effects()
        if not self.steps.refused:
            self._emit()

    def run(self) -> Report:
        """All steps, as far as they can be made."""
        try:
            self.prepare()
            if not self.steps.refused:
                self._compile()
            if not self.steps.refused:
                self._run()
        except RefusedPort as refused:
            step = next((s for s in reversed(self.steps.all) if s.state != "skipped"), None)
            self.steps.found(step or self.steps.all[0], [refused.finding])
        return self._result()

    # 12. The verdict.

    def _result(self) -> Report:
        findings = tuple(self._placed(f) for f in self.steps.findings)
        for one in self.steps.all:
            one.lines = [self._replaced(line, findings) for line in one.lines]
        folder = self.request.out / self.name if self.request.out is not None else None
        verdict = self.steps.result(findings, self.ran, self.little, folder, self.files)
        name = self.kernel.name if hasattr(self, "kernel") else (self.request.kernel or self.name)
        return Report(
            self.request.path.name, name, verdict, findings, tuple(self.steps.all), self.files,
            self.launch, self.op if verdict == "ported" else None, self.ran,
        )  # fmt: skip

    def _placed(self, finding: Finding) -> Finding:
        """The finding with its own file and line, where the file was made of several."""
        if not finding.line:
            return replace(finding, file=self.request.path.name)
        file, line = self.merged.place(finding.line)

        def named(found: re.Match[str]) -> str:
            there = [self.merged.place(int(n)) for n in re.findall(r"\d+", found[2])]
            other = "" if all(name == file for name, _ in there) else f" of {there[0][0]}"
            return f"{found[1]} {', '.join(str(n) for _, n in there)}{other}"

        lines = re.compile(r"\b(lines?) (\d+(?:, \d+)*)")
        cause, fix = (lines.sub(named, text) for text in (finding.cause, finding.fix))
        if finding.code in LACKING and self.merged.missing:
            fix = (
                f"Headers are not here ({', '.join(self.merged.missing)}): give their folders "
                + (f"with -I DIR. {fix}")
            )
        if finding.code == "MK201" and file in self.merged.libraries:
            fix = "Put __syncthreads() between two uses of the same storage."
        return replace(finding, file=file, line=line, cause=cause, fix=fix)

    def _replaced(self, line: str, findings: Sequence[Finding]) -> str:
        for before, after in zip(self.steps.findings, findings, strict=True):
            if line == str(before):
                return str(after)
        return line
