"""Ports a CUDA kernel in twelve steps, or says which line is the reason that it cannot be.

The order of the steps and what each says stands here; what each finds out stands in a module of its
own. Nothing is written unless a folder is given.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose.cuda_constants import CONSTANTS
from mkport.declare import Op
from mkport.errors import UserError
from mkport.files import make_folder, write_text
from mkport.machines.cpu.memory import NUMPY
from mkport.machines.host.build import HostFault, compiler
from mkport.machines.host.machine import SHARED_BYTES
from mkport.port import check, emit
from mkport.port import compile as compiling
from mkport.port.arguments import check_range, read_arguments, trials
from mkport.port.control import Control
from mkport.port.effects import effects, host_calls, library_names
from mkport.port.finding import Finding, RefusedPort
from mkport.port.geometry import MAX_THREADS, Geometry, Three, geometry
from mkport.port.kernel import MAX_WORDS, Kernel, parse_instance, read_kernel, too_many
from mkport.port.lexer import blanked
from mkport.port.original import NotBuilt
from mkport.port.preprocess import DEVICE_PARTS, GPU, Merged, expand, merge, resolve
from mkport.port.report import Report, Step, Steps, Verdict
from mkport.port.shared import shared_layout
from mkport.port.uniform import Uniformity
from mkport.port.unit import Item, Unit, host_ranges
from mkport.port.usage import modes

COMPUTERS = emit.COMPUTERS
BUDGET = SHARED_BYTES - CONSTANTS["FIXED_BYTES"]  # of a block, in a megakernel of ports alone
BESIDE = BUDGET - 2 * CONSTANTS["CHUNK_BYTES"]  # and beside ops that stream weights
MOST_BLOCKS = (6, 4, 2)  # of a launch on made-up arguments


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    path: Path
    kernel: str | None = None
    grid: Three | None = None
    block: Three | None = None
    shared: int | None = None
    instance: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    arguments: Mapping[str, Any] | Sequence[str] | None = None
    name: str | None = None
    out: Path | None = None
    run: bool = True
    compile: bool = True
    machine: str = "host"


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
) -> Report:
    """Ports one kernel of a file.

    `kernel` may be left out where the file has one. `grid`, `block` (x, y, z) and `shared` (bytes)
    are the launch, `instantiate` a template's arguments ("softmax<float, 4>"), `immutable` the
    parameters that nothing writes during a step. `arguments` are what original and port run on, by
    parameter or as texts ("x=f32[8,512]"); made-up ones are tried when they are left out. `name` is
    the op's, the kernel's when left out. The port's files go to `out`/name if `out` is given and
    the port succeeds. Raises UserError for wrong use; all else is in the report.
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
    return _Port(
        Request(
            Path(path), kernel, grid, block, shared, instance, tuple(immutable), defines,
            arguments, name, out, run, compile, machine,
        )
    ).run()  # fmt: skip


class _Port:
    """One port on its way through the steps."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.merged: Merged = merge(request.path)
        self.steps = Steps(request.path.name)
        self.launch: Geometry | None = None
        self.files: dict[str, str] = {}
        self.kernel: Kernel
        self.op: Op | None = None
        self.ran = False
        self.name = request.name or ""

    def run(self) -> Report:
        """All steps, as far as they can be made."""
        try:
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
                self._compile()
            if not self.steps.refused:
                self._run()
        except RefusedPort as refused:
            step = next((s for s in reversed(self.steps.all) if s.state != "skipped"), None)
            self.steps.found(step or self.steps.all[0], [refused.finding])
        return self._result()

    # 1. What is in the file.

    def _scan(self) -> None:
        step = self.steps.begin("scan")
        defines = dict(self.request.defines)
        text = resolve(self.merged.text, defines)
        self.unit = Unit(text)
        expanded = expand(resolve(self.merged.text, defines, {**GPU}), defines)
        self.analysed = Unit(expanded)
        kernels = self.analysed.kernels
        if not kernels:
            raise UserError(
                f"{self.request.path} has no kernel: no `__global__` function with a body was "
                "found in it."
            )
        listed = ", ".join(dict.fromkeys(item.name for item in kernels))
        wanted = self.request.kernel
        if wanted is None and len({item.name for item in kernels}) > 1:
            raise UserError(
                f"{self.request.path} has several kernels: {listed}. Name one, as in "
                f"{self.request.path}:{kernels[0].name}."
            )
        chosen = [item for item in kernels if wanted in (None, item.name)]
        if not chosen:
            raise UserError(f"{self.request.path} has no kernel {wanted!r}; it has {listed}.")
        self.name = self.request.name or chosen[0].name
        step.say(f"{self.request.path.name}: kernels {listed}; porting {chosen[0].name}.")
        self.seen = self._one_of(self.analysed, chosen)
        self.reached, _ = self.analysed.reach([self.seen], " ".join(self.request.instance))
        if found := self.analysed.broken(self.reached):
            raise RefusedPort(self._unread(self.analysed, found[0], "not understood", found[1]))
        self.item, self.items = self._emitted()
        self.kernel = read_kernel(self.unit, self.item, self.request.instance)
        for param in self.kernel.params:
            kind = f"{param.dtype} tensor" if param.kind == "tensor" else param.kind
            if param.boxed:
                kind = f"by value: its {param.nbytes} bytes are read from a tensor"
            step.say(f"  {param.name}: {param.type} ({kind})")
        self._check_names()
        helpers = [item.name for item in self.reached if item.kind == "function"
                   and item != self.seen]  # fmt: skip
        step.say(f"It reaches {len(self.reached) - 1} other pieces of the file"
                 + (f"; functions {', '.join(helpers)}." if helpers else "."))  # fmt: skip

    def _emitted(self) -> tuple[Item, list[Item]]:
        """The kernel in the text that the port is made of: macros expanded only if they must be."""
        defines = dict(self.request.defines)
        written_out = Unit(expand(self.unit.text, defines))
        for unit in (self.unit, written_out):
            special = self.analysed.special(self.seen)
            items = [
                item for item in unit.kernels
                if item.name == self.seen.name and unit.special(item) == special
            ]  # fmt: skip
            if len(items) != 1:
                continue
            reached, macros = unit.reach(items, " ".join(self.request.instance))
            same = sum(i.kind == "function" for i in reached) == sum(
                i.kind == "function" for i in self.reached
            )
            shared = [len(re.findall(r"\b__shared__\b", u.text_of(i)))
                      for u, all_of in ((unit, reached), (self.analysed, self.reached))
                      for i in [*all_of]]  # fmt: skip
            counts = (sum(shared[: len(reached)]), sum(shared[len(reached) :]))
            if unit.broken(reached) is None and (
                unit is written_out or (counts[0] == counts[1] and self._guards_agree(same))
            ):
                self.unit = unit
                self.macros = frozenset(macros)
                return items[0], reached
        raise RefusedPort(self._unread(self.analysed, self.seen, "not understood"))

    def _one_of(self, unit: Unit, chosen: Sequence[Item]) -> Item:
        """The kernel of a name: the template's specialisation for the instance, else the rest."""
        squeezed = tuple("".join(part.split()) for part in self.request.instance)
        plain = []
        for item in chosen:
            special = unit.special(item)
            if special is None:
                plain.append(item)
            elif squeezed == tuple("".join(part.split()) for part in special):
                return item
        if not plain and (kinds := [", ".join(unit.special(item) or ()) for item in chosen]):
            name, listed = chosen[0].name, " and ".join(f"<{kind}>" for kind in kinds)
            raise RefusedPort(
                Finding(
                    "MK102", unit.tree.line(chosen[0].node), unit.tree.column(chosen[0].node),
                    f"The kernel {name} is written out for {listed}, and nothing says which.",
                    "A megakernel holds finished code: there is nothing to put into it.",
                    f'Say which: --instantiate "{name}<{kinds[0]}>".',
                )
            )  # fmt: skip
        if len(plain) != 1:
            raise RefusedPort(self._unread(unit, plain[-1], "one of several kernels of this name"))
        return plain[0]

    def _guards_agree(self, same: bool) -> bool:
        return same or "#if" in self.unit.text

    def _unread(self, unit: Unit, item: Item, what: str, node: Any = None) -> Finding:
        node = node or item.node
        line = " ".join(unit.text.split("\n")[unit.tree.line(node) - 1].split())
        return Finding(
            "MK101", unit.tree.line(node), unit.tree.column(node),
            f"`{line[:80]}` is {what}.",
            "What it does to barriers and memory is not known, and a port would be a guess.",
            "Write it in plain C++; a macro that makes code may be written out.",
        )  # fmt: skip

    def _check_names(self) -> None:
        names = [param.name for param in self.kernel.params]
        tensors = {param.name for param in self.kernel.params if param.kind == "tensor"}
        for name in self.request.immutable:
            if name not in tensors:
                raise UserError(
                    f"--immutable {name}: {self.kernel.name} has no tensor parameter of that name; "
                    f"it has {', '.join(sorted(tensors)) or 'none'}."
                )
        given = self.request.arguments
        self.given: Mapping[str, Any] | None = None
        if isinstance(given, Mapping):
            if odd := sorted(set(given) ^ set(names)):
                raise UserError(
                    f"The arguments are to be those of {self.kernel.name}, {', '.join(names)}; "
                    f"{odd[0]!r} is missing or one too many."
                )
            for param in self.kernel.params:
                if param.kind == "int":
                    check_range(f"{param.name}={given[param.name]}", given[param.name], param)
            boxed = {param.name: param for param in self.kernel.params if param.boxed}
            self.given = {
                name: np.array([value], NUMPY[boxed[name].dtype])
                if name in boxed and not isinstance(value, np.ndarray) else value
                for name, value in given.items()
            }  # fmt: skip
        elif given is not None:
            self.given = read_arguments(given, self.kernel)
        if not re.fullmatch(r"[a-z_]\w*", self.name, re.IGNORECASE) or "__" in self.name:
            raise UserError(f"--name {self.name!r} is no name for an op: use letters, digits, _.")

    # 2. The launch.

    def _geometry(self) -> None:
        step = self.steps.begin("geometry")
        request = self.request
        launch = geometry(self.unit, self.kernel, request.grid, request.block, request.shared)
        self.launch = launch
        if launch.block is None:
            raise RefusedPort(
                Finding(
                    "MK110", self.kernel.line, 1,
                    f"Nothing says how many threads a block of {self.kernel.name} has.",
                    "Its threads would be counted off wrongly.",
                    "Say how many: --block 256, or --block 16,16.",
                )
            )  # fmt: skip
        if launch.threads > MAX_THREADS:
            raise UserError(
                f"A block of {launch.threads} threads: a GPU has {MAX_THREADS} at most."
            )
        x, y, z = launch.block
        step.say(f"block {x} x {y} x {z} = {launch.threads} threads ({launch.sources[1]})")
        if launch.grid is None:
            text = "".join(self.analysed.text_of(item) for item in self.reached)
            deep = bool(re.search(r"\b(?:blockIdx|gridDim)\s*\.\s*z", text))
            wide = bool(re.search(r"\b(?:blockIdx|gridDim)\s*\.\s*y", text)) or deep
            self.launch = launch = replace(
                launch, grid=(4, 3 if wide else 1, 2 if deep else 1),
                sources=("made up for the run", *launch.sources[1:]),
            )  # fmt: skip
        words = len(self.kernel.params) + len(emit.grid_args(launch))
        if words > MAX_WORDS:
            raise RefusedPort(too_many(self.kernel.name, self.kernel.line, words))
        gx, gy, gz = launch.grid or (1, 1, 1)
        step.say(f"grid {gx} x {gy} x {gz} ({launch.sources[0]}); a node of a graph may have "
                 "another one")  # fmt: skip
        if self.kernel.arguments:
            step.say(f"instantiated as {self.kernel.call}")

    def _libraries(self) -> None:
        """What is used of libraries and is not here is said before anything is made of it."""
        found = [f for item in self.reached for f in library_names(self.analysed, item)]
        if found:
            self.steps.found(self.steps.begin("side effects"), found)
            raise RefusedPort(found[0])

    # 3. Does a block fit a worker.

    def _fit(self) -> None:
        step = self.steps.begin("fit")
        assert self.launch is not None
        self.layout = shared_layout(self.unit, self.kernel, self.items, self.launch.shared)
        self.uniformity = Uniformity(
            self.analysed, replace(self.kernel, item=self.seen), self.reached,
            self.launch.block or (1, 1, 1),
        )  # fmt: skip
        self.control = Control(self.uniformity)
        threads = self.launch.threads
        step.say(f"{threads} threads, of a worker's {COMPUTERS}")
        for array in self.layout.arrays:
            size = f"{array.size} bytes" if array.size is not None else "dynamic"
            where = f" in {array.function}" if array.function else ""
            step.say(f"  {array.type} {array.name}{array.dims}: {size} at {array.offset}{where}")
        step.say(f"shared memory {self.layout.total} bytes, of {BUDGET}")
        if BESIDE < self.layout.total <= BUDGET:
            step.say(f"beside ops that stream weights there are {BESIDE}: it fits a megakernel of "
                     "ported kernels")  # fmt: skip
        meets, warps = self.control.meets, self.control.warps
        first = self._first_site()
        if threads > COMPUTERS and meets:
            self.steps.found(step, [Finding(
                "MK111", first[0], first[1],
                f"A block has {threads} threads and barriers.",
                f"A worker has {COMPUTERS} threads for a task: the rest could only run after "
                "these, and never meet them.",
                f"Launch it with {COMPUTERS} threads or fewer, each doing more of the work.",
            )])  # fmt: skip
        if threads % 32 and (meets or warps):
            self.steps.found(step, [Finding(
                "MK112", first[0], first[1],
                f"A block has {threads} threads, which is no whole number of warps, and its "
                "threads work together.",
                "The last warp's other lanes are there in a megakernel, and are waited for.",
                f"Launch it with {-(-threads // 32) * 32} threads, and guard the loads and stores.",
            )])  # fmt: skip
        if threads > COMPUTERS and not meets:
            step.say(
                f"no barriers: {threads} threads run {COMPUTERS} at a time, with the same bits"
            )
        if self.layout.total > BUDGET:
            line = self.layout.arrays[0].line if self.layout.arrays else self.kernel.line
            self.steps.found(step, [Finding(
                "MK120", line, 1,
                f"A block has {self.layout.total} bytes of shared memory.",
                f"Beside its own buffers a worker has {BUDGET}.",
                f"Use {self.layout.total - BUDGET} bytes less: smaller tiles, or fewer stages.",
            )])  # fmt: skip

    def _first_site(self) -> tuple[int, int]:
        for function in self.control.functions:
            for warps in (False, True):
                for site in self.control.sites(function, warps):
                    return self.analysed.tree.line(site), self.analysed.tree.column(site)
        return self.kernel.line, 1

    # 4. Do all threads meet the same barriers.

    def _control(self) -> None:
        step = self.steps.begin("control flow")
        sites = sum(len(self.control.sites(f)) for f in self.control.functions)
        step.say(f"{sites} places where the block meets" if sites else "no barriers")
        self.steps.found(step, self.control.findings())
        self.steps.found(step, self.control.memory_conditions())
        if step.state == "ok":
            step.say("every thread of a block comes to each of them")

    # 5. What is read and written, and how.

    def _memory(self) -> None:
        step = self.steps.begin("memory")
        self.modes = modes(self.uniformity, self.kernel, frozenset(self.request.immutable))
        words = {"read": "read", "write": "written", "update": "read and written",
                 "immutable": "read, and never written during a step"}  # fmt: skip
        for name, mode in self.modes.items():
            step.say(f"  {name}: {words[mode]}")
        text = "".join(self.unit.text_of(item) for item in self.items)
        strips = [word for word in ("__restrict__", "__ldg") if word in text]
        if strips:
            step.say(
                f"{' and '.join(strips)} go: they make loads that may be served from before "
                "another worker's write" + (", except for " + ", ".join(self.request.immutable)
                                            if self.request.immutable else "")
            )  # fmt: skip

    # 6. Barriers and copies.

    def _synchronisation(self) -> None:
        step = self.steps.begin("synchronisation")
        text = "".join(self.unit.text_of(item) for item in self.items)
        self.drains = "cp.async" in text or "copy16" in text
        self.meets = self.control.meets or bool(self.layout.arrays)
        assert self.launch is not None
        if self.control.meets:
            step.say(f"__syncthreads() becomes a named barrier of {self.launch.threads} threads")
        if self.control.warps:
            step.say("warp operations stay: a block's warps are a worker's warps")
        if self.drains:
            step.say("copies in the background are waited for before the task ends")
        if not step.lines:
            step.say("nothing to do")

    # 7. Everything else.

    def _effects(self) -> None:
        step = self.steps.begin("side effects")
        found = effects(self.analysed, self.kernel, self.reached)
        found += host_calls(self.analysed, [self.kernel.name])
        self.steps.found(step, found)
        self.asserts = any(f.code == "MK306" for f in found)
        if not found:
            step.say("none")

    # 8. The text.

    def _emit(self) -> None:
        step = self.steps.begin("emit")
        assert self.launch is not None
        plan = emit.Plan(
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
        }
        before = "\n".join(line for line in self.original.splitlines() if line.strip())
        text = emit.user_section(self.unit, plan)
        after = "\n".join(line for line in text.splitlines() if line.strip())
        if word := emit.left_over(text, self.request.immutable):
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
            machine.say(f"  {code.what}: {code.noncoherent} ld.global.nc{constant}")
        if built.note:
            step.say(built.note)
        if built.version:
            step.say(built.version)
        self.steps.found(step, [f for f in built.findings if f.code != "MK170"])
        self.steps.found(machine, [f for f in built.findings if f.code == "MK170"])

    def _original_for_gpu(self) -> str:
        kept = [
            f"#include <{header}>" for name in dict.fromkeys(self.merged.system)
            if name in emit.HEADERS or f"<{name}>" in self.merged.libraries
            for header in DEVICE_PARTS.get(name, (name,))
        ]  # fmt: skip
        return "\n".join([*kept, emit.PRELUDE, "#line 1", self.merged.own(self.original)])

    # 11. The bits.

    def _run(self) -> None:
        step = self.steps.begin("run")
        if not self.request.run:
            step.state = "skipped"
            step.say("not asked for")
            return
        if compiler() is None:
            step.state = "skipped"
            step.say("There is no C++ compiler here (g++ or clang++): nothing was run.")
            return
        if self.given is not None:
            self._run_on(step, self.given, self._full_launch(), given=True)
            return
        tried = 0
        blamed: tuple[Finding, ...] = ()
        for arguments in trials(self.kernel, self._small_launch()):
            tried += 1
            found = self._run_on(step, arguments, self._small_launch(), given=False)
            if found is None:
                return
            blamed = blamed or found
            if any(f.code in ("MK201", "MK205") for f in found):
                break  # no argument mends that
        if blamed:
            self.steps.found(step, blamed)
            return
        step.state = "skipped"
        step.say(
            f"No made-up arguments fit {self.kernel.name} ({tried} were tried): give the real "
            "ones with --arg, and the bits are compared."
        )

    def _full_launch(self) -> Geometry:
        assert self.launch is not None
        return self.launch

    def _small_launch(self) -> Geometry:
        assert self.launch is not None and self.launch.grid is not None
        sizes = [min(n, most) for n, most in zip(self.launch.grid, MOST_BLOCKS, strict=True)]
        return replace(self.launch, grid=(sizes[0], sizes[1], sizes[2]))

    def _run_on(
        self, step: Step, arguments: Mapping[str, Any], launch: Geometry, given: bool
    ) -> tuple[Finding, ...] | None:
        """Runs original and port. Where that came to nothing on made-up arguments: what the kernel
        is to blame for, whatever its arguments."""
        unfilled = [n for n, mode in self.modes.items() if mode == "write"] if given else []
        try:
            done, found = check.run_first(
                self._original_for_host(), self.request.path, self.kernel, self._full_name(),
                launch, arguments, unfilled, self.layout.dynamic, 4 if given else 3,
                20.0 if given else 8.0,
            )  # fmt: skip
        except NotBuilt as refused:
            step.state = "skipped"
            step.say(f"{refused} Nothing was run.")
            return None
        if not given and found:
            if any(f.code in check.FITS for f in found):
                return ()
            return tuple(f for f in found if "shared" in f.cause or f.code == "MK205")
        words = ", ".join(f"{n}={v}" for n, v in arguments.items() if not isinstance(v, np.ndarray)
                          and v is not None)  # fmt: skip
        step.say(f"{'given' if given else 'made-up'} arguments {words}".rstrip()
                 + f", grid {launch.grid}")  # fmt: skip
        if found:
            self.steps.found(step, found)
            return None
        step.say("the original equals itself in every order of its threads, and is well defined")
        assert self.op is not None
        names = emit.argument_names(self.kernel)
        bound = {names[name]: _wrapped(value) for name, value in arguments.items()}
        bound |= dict(zip(emit.grid_args(launch), launch.grid or (), strict=False))
        bound |= {axis: 1 for axis in emit.grid_args(self.launch or launch) if axis not in bound}
        outputs = done.outputs
        if self.request.machine == "cuda":  # bits are one machine's
            outputs = check.run_on_gpu(
                self._original_for_gpu(), self.kernel, self._full_name(), launch, arguments,
                self.layout.dynamic,
            )  # fmt: skip
        wanted = self._wanted(arguments, outputs, names)
        try:
            differences = check.compare(self.op, bound, wanted, self.request.machine)
        except HostFault as fault:
            differences = [f"the port's threads slip: {fault}"]
        except UserError as error:
            self.steps.found(step, [self._uncompiled(str(error))])
            return None
        if differences:
            step.say(*differences)
            self.steps.found(step, [Finding(
                "MK180", self.kernel.line, 1,
                f"The port of {self.kernel.name} leaves other bits: {differences[0]}.",
                "It would be wrong in a megakernel.",
                "This is a fault of the port, not of the kernel: please report the file.",
            )])  # fmt: skip
            return None
        step.say(f"the port has the same bits on the {self.request.machine} machine: between tasks "
                 "that leave NaN behind, twice side by side, with 1, 3 and 7 workers, in shuffled "
                 "order")  # fmt: skip
        self.ran = True
        return None

    def _full_name(self) -> str:
        return self.kernel.qualified(self.unit)

    def _original_for_host(self) -> str:
        kept = [f"#include <{name}>" for name in self.merged.system if name in emit.HEADERS]
        lines = self.original.split("\n")
        if kept:
            lines[0] = lines[0] if lines[0].strip() else ""
            return "\n".join(kept) + "\n#line 1\n" + "\n".join(lines)
        return self.original

    def _wanted(
        self, arguments: Mapping[str, Any], outputs: Sequence[np.ndarray], names: Mapping[str, str]
    ) -> dict[str, np.ndarray]:
        seen: dict[int, np.ndarray] = {}
        wanted = {}
        rest = list(outputs)
        for param in self.kernel.params:
            value = arguments[param.name]
            if isinstance(value, np.ndarray) and not param.boxed:
                if id(value) not in seen:
                    seen[id(value)] = rest.pop(0)
                wanted[names[param.name]] = seen[id(value)]
        return wanted

    def _uncompiled(self, words: str) -> Finding:
        lines = [line for line in words.splitlines() if "error:" in line] or [words[:200]]
        said = lines[0].split("error:")[-1].strip()
        return Finding(
            "MK161", self.kernel.line, 1,
            f"The C++ compiler refuses the port of {self.kernel.name}: {said[:200]}.",
            "There is nothing to run.",
            "Make the kernel's file complete: what it uses of other files must come with it.",
        )  # fmt: skip

    # 12. The verdict.

    def _result(self) -> Report:
        step = self.steps.begin("result")
        findings = tuple(self._placed(f) for f in self.steps.findings)
        for one in self.steps.all:
            one.lines = [self._replaced(line, findings) for line in one.lines]
        decisive = [f for f in findings if f.severity != "warning"]
        verdict: Verdict = "ported"
        if decisive:
            undefined = all(f.severity == "undefined" for f in decisive)
            verdict = "undefined" if undefined else "refused"
            step.state = "refused"
            step.say(f"{verdict}: {', '.join(dict.fromkeys(f.code for f in decisive))}")
        else:
            step.say("ported" + ("" if self.ran else ", but not run here"))
            if self.request.out is not None:
                folder = make_folder(self.request.out / self.name)
                for name, text in self.files.items():
                    write_text(folder / name, text)
                step.say(f"written to {folder}")
        name = self.kernel.name if hasattr(self, "kernel") else (self.request.kernel or self.name)
        return Report(
            self.request.path.name, name, verdict, findings, tuple(self.steps.all), self.files,
            self.launch, None if decisive else self.op, self.ran,
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
        if finding.code == "MK201" and file in self.merged.libraries:
            fix = "Put __syncthreads() between two uses of the same storage."
        return replace(finding, file=file, line=line, cause=cause, fix=fix)

    def _replaced(self, line: str, findings: Sequence[Finding]) -> str:
        for before, after in zip(self.steps.findings, findings, strict=True):
            if line == str(before):
                return str(after)
        return line


def _wrapped(value: Any) -> Any:
    """An unsigned number as the record has it: an int32 of the same bits."""
    return value - 2**32 if isinstance(value, int) and 2**31 <= value < 2**32 else value


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
