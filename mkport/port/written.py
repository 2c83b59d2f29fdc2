"""Steps eight to ten of a port: its text, and what compilers make of it and of the original."""

from collections.abc import Mapping
from pathlib import Path

from mkport.declare import Op
from mkport.files import write_text
from mkport.port import compile as compiling
from mkport.port import edits, emit, ptx
from mkport.port.decided import Plan
from mkport.port.edits import user_section
from mkport.port.finding import Finding, RefusedPort
from mkport.port.fitted import Fitted
from mkport.port.includes import CUB_NAMES, DEVICE_PARTS
from mkport.port.lexer import blanked
from mkport.port.prelude import HEADERS, PRELUDE, STANDARD
from mkport.port.scanned import RECORDED, recorded
from mkport.port.unit import host_ranges


class Written(Fitted):
    """A port that has its text."""

    # 8. The text.

    def _emit(self) -> None:
        step = self.steps.begin("emit")
        assert self.launch is not None
        plan = Plan(
            self.name, self.kernel, self.launch, self.layout, tuple(self.items), self.macros,
            self.merged.system, frozenset(self.request.immutable), self.modes, self.meets,
            self.drains, self.asserts, self.request.path.name,
        )  # fmt: skip
        arguments = " ".join(self.kernel.arguments)
        self.original = blanked(self.unit.text, host_ranges(self.unit, [self.item], arguments))
        self.files = {
            "op.py": emit.op_text(plan),
            "task.cuh": emit.task_text(self.unit, plan),
            "standalone.cu": self.merged.own(self.merged.text, keep=False),
            RECORDED: recorded(self.request, self.kernel, self.launch),
        }
        before = "\n".join(line for line in self.original.splitlines() if line.strip())
        text = user_section(self.unit, plan)
        after = "\n".join(line for line in text.splitlines() if line.strip())
        if word := edits.left_over(text, self.request.immutable):
            raise RefusedPort(
                Finding(
                    "MK101", self.kernel.line, 1,
                    f"`{word}` stands where it was not understood.",
                    "The port would not be the task that it is taken for.",
                    "Write in plain C++ what a macro makes there.",
                )
            )  # fmt: skip
        diff, removed, added = emit.changed(before, after, self.request.path.name)
        step.say(f"{removed} lines changed or gone, {added} in their place")
        step.say(*diff.splitlines()[2:])
        self.op = load_op(self.files, self.request.out, self.name)

    # 9 and 10. What the GPU's compiler says.

    def _compile(self) -> None:
        step, machine = self.steps.begin("compile"), self.steps.begin("machine code")
        if not self.request.compile:
            step.state = machine.state = "skipped"
            step.say("not asked for")
            return
        assert self.op is not None
        built = compiling.compile_port(
            self.op, self.kernel, self._full_name() if self.kernel.arguments else "",
            self._original_for_gpu(), bool(self.request.immutable), bool(self.merged.libraries),
        )  # fmt: skip
        if built.skipped:
            step.state = machine.state = "skipped"
            step.say(built.skipped)
        for code in built.codes:
            spills = f"{code.spills} bytes spilled" if code.spills >= 0 else "spills unknown"
            step.say(f"  {code.what}: {code.registers} registers, {spills}")
            constant = "" if code.constant < 0 else f", {code.constant} LDG.CONSTANT"
            constant += f", {code.tables} of constant tables" if code.tables else ""
            machine.say(f"  {code.what}: {code.noncoherent} ld.global.nc{constant}")
        ports = next((c.noncoherent for c in built.codes if c.what == "the port alone"), -1)
        if ports >= 0:
            machine.say(
                "the megakernel reads its own records and tables by ld.global.nc, which nothing "
                f"writes during a step; {ports or 'none'} of these loads "
                + ("are" if ports > 1 else "is") + " the port's"
            )  # fmt: skip
        if built.note:
            step.say(built.note)
        if built.version:
            step.say(built.version)
        self.steps.found(step, [f for f in built.findings if f.code != "MK170"])
        self.steps.found(machine, [f for f in built.findings if f.code == "MK170"])

    def _original_for_gpu(self) -> str:
        kept = [
            f"#include <{header}>" for name in dict.fromkeys(self.merged.system)
            if name in HEADERS or f"<{name}>" in self.merged.libraries
            for header in DEVICE_PARTS.get(name, (name,))
        ]  # fmt: skip
        return "\n".join(
            [
                *kept,
                PRELUDE,
                *self._standard(),
                CUB_NAMES,
                "#line 1",
                self.merged.own(self.original),
            ]
        )

    def _standard(self) -> list[str]:
        return [STANDARD] if "std::" in self.original else []

    def _full_name(self) -> str:
        return self.kernel.qualified(self.unit)

    def _original_for_host(self) -> str:
        kept = [f"#include <{name}>" for name in self.merged.system if name in HEADERS]
        text, translated = ptx.translated(self.original)
        kept += [f'#include "{ptx.HEADER}"'] if translated else []
        lines = text.split("\n")
        if kept:
            lines[0] = lines[0] if lines[0].strip() else ""
            return "\n".join(kept) + "\n#line 1\n" + "\n".join(lines)
        return text


def load_op(files: Mapping[str, str], out: Path | None, name: str) -> Op:
    """The op of a port's files, from a folder of the cache: the port's own are written last."""
    import hashlib

    from mkport.cache import cache_dir
    from mkport.testing.parts import load_file

    digest = hashlib.sha256("\0".join(files.values()).encode()).hexdigest()[:16]
    folder = cache_dir("port", digest, name)
    for file, text in files.items():
        write_text(folder / file, text)
    op: Op = load_file(folder / "op.py").OP
    return op
