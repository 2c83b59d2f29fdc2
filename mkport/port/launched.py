"""The launches of a file's host code as one megakernel: each kernel ported, the ops and their chain
written, and what was found.

What is launched and what waits for what is `several.py`'s, the values of the host's variables
`host_values.py`'s, the ports `launch_ports.py`'s, the comparison of bits `launch_bits.py`'s.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mkport.files import make_folder, write_text
from mkport.machines.host.build import compiler
from mkport.port.chain_file import chain_text
from mkport.port.finding import Finding
from mkport.port.host_values import as_one_chain, read_values, variables
from mkport.port.launch_bits import Compared, compare
from mkport.port.launch_ports import LaunchPorts
from mkport.port.report import EXIT, Report, Verdict
from mkport.port.scanned import Request
from mkport.port.several import HostLaunch, dependencies


@dataclass
class Launched:
    """What became of a file's launches. `reports` are the kernels' own, by op; `same` says that the
    megakernel left the bits of the launches in their order, None that it was not run."""

    path: Path
    launches: list[HostLaunch]
    reports: dict[str, Report] = field(default_factory=dict)
    chain: str = ""
    findings: list[Finding] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    same: bool | None = None

    @property
    def verdict(self) -> Verdict:
        """That of the worst kernel, and of the comparison."""
        verdicts = [report.verdict for report in self.reports.values()]
        verdicts += ["undefined" if f.severity == "undefined" else "refused" for f in self.findings]
        return next((v for v in ("refused", "undefined") if v in verdicts), "ported")

    @property
    def exit_code(self) -> int:
        """As of a port: 0, 3 or 4."""
        return EXIT[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        needs = dependencies(self.launches)
        return {
            "verdict": self.verdict,
            "launches": [
                {"kernel": one.kernel, "line": one.line, "function": one.function,
                 "given": one.given}
                for one in self.launches
            ],
            "dependencies": [
                {"earlier": self.launches.index(need.earlier),
                 "later": self.launches.index(need.later),
                 "variable": need.variable, "why": need.why}
                for need in needs
            ],
            "ops": {name: report.as_dict() for name, report in self.reports.items()},
            "findings": [str(finding) for finding in self.findings],
            "lines": self.lines,
            "same_bits": self.same,
            "chain": self.chain,
        }  # fmt: skip


def port_launches(
    path: Path,
    launches: list[HostLaunch],
    arguments: Sequence[str] = (),
    *,
    define: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    out: Path | None = None,
    run: bool = True,
    compile: bool = True,
    machine: str = "host",
    oracle: Path | None = None,
) -> Launched:
    """Ports what one host function launches, in its order.

    `arguments` give the host's variables as texts ("x=f32[8,512]", "n=512"), and as
    "KERNEL.PARAM=VALUE" what the host computes in a way that is not followed. The ops go to
    `out`/ops, the chain to `out`/NAME.toml, which names the file `oracle`. Raises UserError for
    launches that cannot be made a chain and for values that are missing.
    """
    as_one_chain(path, launches)
    host = read_values(path, launches, arguments)
    request = Request(
        path, defines=tuple((define or {}).items()), include=tuple(include), run=False,
        compile=compile, machine=machine,
    )  # fmt: skip
    made = LaunchPorts(launches, host, request)
    made.run()
    result = Launched(path, launches, made.reports)
    compared = Compared()
    if result.verdict == "ported" and host.given and run and compiler() is not None:
        compared = compare(made, made.tensors())
        result.same = compared.same
        result.findings += compared.findings
        result.lines += compared.lines
    filled = [made.filled(at) for at in range(len(launches))] if host.given else []
    tensors = made.tensors() if host.given else None
    beside = "" if oracle is None else os.path.relpath(oracle, out or Path())
    result.chain = chain_text(path, launches, "ops", filled, tensors, beside, compared.kept)
    if result.verdict != "ported":
        return result
    if not host.given:
        result.lines.append(
            "nothing was composed or run: give the host's variables, as in --arg "
            + " --arg ".join(f"{name}=..." for name in variables(launches))
        )
    elif result.same is None:
        result.lines.append("not run here")
    if out is not None:
        _write(result, out)
    return result


def _write(result: Launched, out: Path) -> None:
    """Writes the ops and their chain."""
    for name, report in result.reports.items():
        folder = make_folder(out / "ops" / name)
        for file, text in report.files.items():
            write_text(folder / file, text)
    write_text(out / f"{result.path.stem}.toml", result.chain)
    result.lines.append(f"written to {out}: ops, and the chain {result.path.stem}.toml")
