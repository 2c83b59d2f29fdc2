"""The twelve steps of a port for an `@njit` function, which becomes an op of the CPU machine.

A step that asks what only a GPU has says so. How the function is rewritten is `numba_tiles.py`'s,
and how both are run `numba_trials.py`'s.
"""

import ast
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkport.errors import UserError
from mkport.port import emit
from mkport.port.arguments import read_arguments
from mkport.port.finding import Finding
from mkport.port.kernel import Kernel, Param
from mkport.port.numba_cpu import function_of, njit_port
from mkport.port.numba_file import NumbaRefused, signature_of
from mkport.port.numba_tiles import NjitPort, PortedNjit
from mkport.port.numba_trials import Ran, first_run
from mkport.port.report import Report, Step, Steps
from mkport.port.scanned import RECORDED, absolute
from mkport.testing.parts import load_file

Given = Mapping[str, Any] | Sequence[str]
FIX = "Write it in the part of Python that docs/decisions/numba_port.md describes."


JUDGED = ("geometry", "fit", "control flow", "memory", "synchronisation", "side effects")


class NjitReport:
    """One `@njit` function on its way through the steps."""

    def __init__(
        self, path: Path, function: str | None, types: str | None, given: Given | None,
        out: Path | None, run: bool,
    ) -> None:  # fmt: skip
        self.path, self.function, self.types = path, function, types
        self.given, self.out, self.asked = given, out, run
        self.steps = Steps(path.name)
        self.ran = False
        self.little = ""
        self.ported: PortedNjit | None = None

    def report(self) -> Report:
        """All steps, as far as they can be made. Raises UserError for wrong use."""
        scan = self.steps.begin("scan")
        node = function_of(self.path, self.function)
        self.name, self.before = node.name, ast.unparse(node)
        scan.say(f"{self.path.name}: porting the @njit function {node.name} to the CPU machine")
        try:
            port = njit_port(self.path, node, self.types)
        except NumbaRefused as refused:
            return self._refused(scan, refused)
        for name in port.names:
            kind = f"{port.uses[name].kind}" if name in port.uses else port.scalars[name]
            scan.say(f"  {name}: {kind}")
        try:
            self.ported = port.ported()
        except NumbaRefused as refused:
            self._until(port.stage)
            return self._refused(self.steps.begin(port.stage), refused)
        self._judged(port)
        self._emitted(port, node)
        self._compared(port)
        return self._result()

    def _until(self, stage: str) -> None:
        """The steps before the one that refuses, which found nothing."""
        for step in self.steps.all:
            if step.name == stage:
                return
            step.state = "ok"

    def _refused(self, step: Step, refused: NumbaRefused) -> Report:
        self.steps.found(step, [Finding(
            "MK107", refused.line, 1, f"Numba: {str(refused).split(': ', 1)[1]}",
            "A translation that computes something else would be worse than none.", FIX,
            "refusal", self.path.name,
        )])  # fmt: skip
        return self._result()

    # 2 to 7. What the function is as an op.

    def _judged(self, port: NjitPort) -> None:
        say = {name: self.steps.begin(name) for name in JUDGED}
        say["fit"].state = say["synchronisation"].state = "skipped"
        line = port.loop.lineno
        say["geometry"].say(
            f"a tile is an iteration of the loop over {port.tile} in line {line}; there are "
            f"{port.count.replace('a.', '')}", "grid and block do not apply on a CPU",
        )  # fmt: skip
        say["fit"].say(
            "does not apply: a tile is one thread's, which has no memory to share and as many "
            "registers as its compiler gives it"
        )
        say["control flow"].say(
            "no iteration sets what another reads, and none ends those that follow"
        )
        words = {"read": "read", "write": "written", "update": "read and written"}
        for name in port.uses:
            say["memory"].say(f"  {name}: {words[port.mode(name)]}")
        say["memory"].say(f"what is written is touched at {port.tile} alone")
        say["synchronisation"].say(
            "does not apply: one thread runs a tile, so that there is no barrier; tiles that read "
            "what another op writes wait for it"
        )
        model = any("error_model" in ast.unparse(d) for d in port.node.decorator_list)
        say["side effects"].say("none")
        if not model and any(isinstance(n, ast.Div | ast.FloorDiv | ast.Mod)
                             for n in ast.walk(port.loop)):  # fmt: skip
            say["side effects"].say(
                "where the function would raise for a division by zero, the port goes on with "
                "what the division gives"
            )

    # 8 to 10. The text, and what a compiler makes of it.

    def _emitted(self, port: NjitPort, node: ast.FunctionDef) -> None:
        assert self.ported is not None
        step = self.steps.begin("emit")
        given = self.given
        texts = (
            None if given is None or isinstance(given, Mapping) else [absolute(t) for t in given]
        )
        record = {"function": node.name, "types": self.types or signature_of(node) or "",
                  "arguments": texts}  # fmt: skip
        files = self.ported.files | {RECORDED: json.dumps(record, indent=1) + "\n"}
        self.ported = replace(self.ported, files=files)
        before = "\n".join(line for line in self.before.splitlines() if line.strip())
        body = self.ported.files["task.py"].partition("@body\n")[2]
        diff, removed, added = emit.changed(before, body, self.path.name)
        step.say(f"{removed} lines changed or gone, {added} in their place")
        step.say(*diff.splitlines()[2:])
        for name, why in (
            ("compile", "does not apply: Numba compiles the body when a megakernel with it is "
                        "first run, and has no registers to count"),
            ("machine code", "does not apply: the caches of a CPU are coherent, so that no load "
                             "can be served from before another thread's write"),
        ):  # fmt: skip
            one = self.steps.begin(name)
            one.state = "skipped"
            one.say(why)

    # 11. The bits.

    def _compared(self, port: NjitPort) -> None:
        step = self.steps.begin("run")
        if not self.asked:
            step.state = "skipped"
            step.say("not asked for")
            return
        assert self.ported is not None
        given = read_given(port, self.given)
        with tempfile.TemporaryDirectory() as folder:
            self.ported.write(Path(folder))
            self._told(step, first_run(port, self.ported, given, Path(folder)))

    def _told(self, step: Step, ran: Ran) -> None:
        step.say(*ran.lines)
        if ran.findings:
            self.steps.found(step, ran.findings)
            return
        if ran.skipped:
            step.state = "skipped"
            return
        self.ran, self.little = not ran.little or ran.given, ran.little
        if ran.little:
            step.state = "warned"

    # 12. The verdict.

    def _result(self) -> Report:
        findings = tuple(self.steps.findings)
        files = self.ported.files if self.ported is not None else {}
        folder = self.out / self.name if self.out is not None else None
        verdict = self.steps.result(findings, self.ran, self.little, folder, files)
        op = load_file(folder / "op.py").OP if folder is not None and verdict == "ported" else None
        return Report(
            self.path.name, self.name, verdict, findings, tuple(self.steps.all),
            files, None, op, self.ran,
        )  # fmt: skip


def parameters(port: NjitPort) -> Kernel:
    """The function's own parameters, as those of a kernel."""
    params = []
    for name in port.names:
        if name in port.uses:
            params.append(Param(name, "", "tensor", port.stored(name)))
        else:
            whole = port.scalars[name] == "integer"
            params.append(Param(name, "int" if whole else "float", "int" if whole else "float"))
    return Kernel(None, port.node.name, tuple(params), (), (), None, 0)  # type: ignore[arg-type]


def read_given(port: NjitPort, given: Given | None) -> dict[str, Any] | None:
    """The arguments, by name, from what a user gives. Raises UserError where they do not fit."""
    if given is None:
        return None
    kernel = parameters(port)
    values = dict(given) if isinstance(given, Mapping) else read_arguments(list(given), kernel)
    names = [param.name for param in kernel.params]
    if odd := sorted(set(values) ^ set(names)):
        raise UserError(
            f"The arguments are to be those of {port.node.name}, {', '.join(names)}; {odd[0]!r} is "
            "missing or one too many."
        )
    for name, use in port.uses.items():
        shape = getattr(values[name], "shape", ())
        if len(shape) != use.kind.ndim:
            raise UserError(
                f"{name} has {use.kind.ndim} dimensions in {port.node.name}, and is given with the "
                f"sizes {list(shape)}."
            )
    return values
