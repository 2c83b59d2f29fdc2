"""The guided report of a port: twelve steps, what was found, and the verdict."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mkport.declare import Op
from mkport.files import make_folder, write_text
from mkport.port.finding import Finding
from mkport.port.geometry import Geometry

Verdict = Literal["ported", "refused", "undefined"]
STEPS = (
    "scan", "geometry", "fit", "control flow", "memory", "synchronisation", "side effects", "emit",
    "compile", "machine code", "run", "result",
)  # fmt: skip
EXIT = {"ported": 0, "refused": 3, "undefined": 4}


@dataclass
class Step:
    """One step: what it found, in lines. `state` is "ok", "warned", "refused" or "skipped"."""

    number: int
    name: str
    state: str = "ok"
    lines: list[str] = field(default_factory=list)

    def say(self, *lines: str) -> None:
        """Adds lines."""
        self.lines += lines


@dataclass(frozen=True)
class Report:
    """The outcome of a port.

    `files` are the port's files by name, written nowhere unless that was asked for; `op` is the
    ported op where they were written or could be loaded, `ran` says that the original and the port
    were run and left the same bits.
    """

    file: str
    kernel: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]
    files: dict[str, str]
    launch: Geometry | None
    op: Op | None = None
    ran: bool = False

    @property
    def exit_code(self) -> int:
        """0 ported, 3 refused, 4 the original is not well defined."""
        return EXIT[self.verdict]

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """The findings that decided against the port."""
        return tuple(f for f in self.findings if f.severity != "warning")

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "file": self.file,
            "kernel": self.kernel,
            "verdict": self.verdict,
            "ran": self.ran,
            "findings": [asdict(f) | {"title": f.title} for f in self.findings],
            "steps": [asdict(step) for step in self.steps],
            "launch": asdict(self.launch) if self.launch else None,
            "files": self.files,
        }


class Steps:
    """The twelve steps, filled one after another."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.all = [Step(number, name, "skipped") for number, name in enumerate(STEPS, 1)]
        self.findings: list[Finding] = []

    def begin(self, name: str) -> Step:
        """A step, begun."""
        step = self.all[STEPS.index(name)]
        step.state = "ok"
        return step

    def found(self, step: Step, findings: Iterable[Finding]) -> None:
        """Notes findings in a step."""
        for finding in findings:
            if finding in self.findings:
                continue
            self.findings.append(finding)
            step.say(str(finding))
            if finding.severity == "warning":
                step.state = "warned" if step.state == "ok" else step.state
            else:
                step.state = "refused"

    @property
    def refused(self) -> bool:
        """True when some finding decided against the port."""
        return any(f.severity != "warning" for f in self.findings)

    def result(
        self,
        findings: Sequence[Finding],
        ran: bool,
        little: str,
        folder: Path | None,
        files: Mapping[str, str],
    ) -> Verdict:
        """The last step: the verdict that the findings give, and `files`, by name, written to the
        folder if there is one and it is "ported". `ran` says whether the port was run, `little`
        on what, if that tells not much."""
        step = self.begin("result")
        decisive = [finding for finding in findings if finding.severity != "warning"]
        if decisive:
            undefined = all(finding.severity == "undefined" for finding in decisive)
            verdict: Verdict = "undefined" if undefined else "refused"
            step.state = "refused"
            step.say(f"{verdict}: {', '.join(dict.fromkeys(one.code for one in decisive))}")
            return verdict
        told = "" if ran else ", but not run here"
        step.say("ported" + (", but run on nothing that tells much" if little else told))
        if folder is not None:
            make_folder(folder)
            for name, text in files.items():
                write_text(folder / name, text)
            step.say(f"written to {folder}")
        return "ported"
