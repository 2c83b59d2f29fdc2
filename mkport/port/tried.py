"""Step eleven of a port: original and port are run on the same arguments, and the bits compared."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.machines.host.build import HostFault, compiler
from mkport.port import check
from mkport.port import compile as compiling
from mkport.port.arguments import trials
from mkport.port.decided import argument_names, grid_args
from mkport.port.doubts import Doubts, but
from mkport.port.finding import Finding
from mkport.port.geometry import Geometry
from mkport.port.original import NotBuilt, Original
from mkport.port.outcome import asked_for, few, misfits, says_little
from mkport.port.ptx import NOT_HERE
from mkport.port.report import Step
from mkport.port.written import Written

READS = ("read", "immutable")
LARGE = 4  # the first of the trials, in which many threads are at work
MOST_BLOCKS = (6, 4, 2)  # of a launch on made-up arguments


@dataclass(frozen=True)
class Chosen:
    """Arguments that the original ran well on, and what it left."""

    arguments: Mapping[str, Any]
    launch: Geometry
    done: Original
    given: bool


class Tried(Written):
    """A port that has been run, where that could be."""

    little = ""  # why what was run tells next to nothing
    doubt = ""  # what the original did on made-up arguments other than those compared on

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
        chosen = self.choose(step)
        if chosen is not None:
            self._compare(step, chosen)

    def choose(self, step: Step) -> Chosen | None:
        """The arguments to compare on: those given, or made-up ones that fit and tell something.
        None where there are none; `step` says why."""
        if self.given is None:
            return self._try_out(step)
        assert self.launch is not None
        first = self._first(step, self.given, self.launch, given=True)
        if first is not None and first[1]:
            self.steps.found(step, few(first[1]))
            return None
        return first and Chosen(self.given, self.launch, first[0], True)

    def _try_out(self, step: Step) -> Chosen | None:
        launch = self._small_launch()
        doubts = Doubts(self.kernel, self.modes)
        chosen = dull = None
        clean = False
        for number, arguments in enumerate(trials(self.kernel, launch)):
            first = self._first(step, arguments, launch, given=False)
            if first is None:
                return None
            done, found = first
            if not found:
                clean = clean or number < LARGE
                made = Chosen(arguments, launch, done, False)
                if not self._says_little(arguments, done):
                    chosen = made
                    break
                dull = dull or made
            elif doubts.add(found, number >= LARGE):
                break
        if blamed := doubts.certain(clean):
            self.steps.found(step, few(blamed))
            return None
        self.doubt = doubts.words(self.merged.place)
        if chosen is None and (unjudged := doubts.unjudged(self.merged.place)):
            if not any(finding.code == "MK301" for finding in self.steps.findings):
                self.steps.found(step, [unjudged])
                return None
        if chosen is None and dull is None:
            step.state = "skipped"
            step.say(misfits(self.kernel, doubts.tried, self.merged.place))
        return chosen or dull

    def _says_little(self, arguments: Mapping[str, Any], done: Original) -> str:
        names = {param.name: param.name for param in self.kernel.params}
        outputs = self._wanted(arguments, done.outputs, names)
        return says_little(self.kernel, self.modes, arguments, outputs)

    def _small_launch(self) -> Geometry:
        assert self.launch is not None and self.launch.grid is not None
        sizes = [min(n, most) for n, most in zip(self.launch.grid, MOST_BLOCKS, strict=True)]
        return replace(self.launch, grid=(sizes[0], sizes[1], sizes[2]))

    def _first(
        self, step: Step, arguments: Mapping[str, Any], launch: Geometry, given: bool
    ) -> tuple[Original, tuple[Finding, ...]] | None:
        """Runs the original, and says what is to be said of it; None where it cannot be run."""
        unfilled = [n for n, mode in self.modes.items() if mode == "write"] if given else []
        try:
            first = check.run_first(
                self._original_for_host(), self.request.path, self.kernel, self._full_name(),
                launch, arguments, unfilled, self.layout.dynamic, 4 if given else 3,
                20.0 if given else 8.0, self.merged.aside(),
            )  # fmt: skip
            for finding in first[1]:
                if found := re.search(rf"{NOT_HERE} at line (\d+)", finding.cause):
                    raise NotBuilt(f"The kernel has {found[0]}.", int(found[1]))
            return first
        except NotBuilt as refused:
            step.state = "skipped"
            step.say(f"{self._placed_text(str(refused))} Nothing was run.")
            return None

    def _placed_text(self, text: str) -> str:
        """A compiler's words with the line of the user's own file."""

        def named(found: re.Match[str]) -> str:
            file, line = self.merged.place(int(found[1]))
            return f"at {file}:{line}"

        return re.sub(r"\bat line (\d+)", named, text, count=1)

    def bound(self, arguments: Mapping[str, Any], launch: Geometry) -> dict[str, Any]:
        """The op's arguments, by name: the kernel's, and the grid."""
        names = argument_names(self.kernel)
        bound = {names[name]: _wrapped(value) for name, value in arguments.items()}
        bound |= dict(zip(grid_args(launch), launch.grid or (), strict=False))
        axes = grid_args(self.launch or launch)
        return bound | {axis: 1 for axis in axes if axis not in bound}

    def wanted(self, chosen: Chosen, machine: str) -> dict[str, np.ndarray]:
        """What the original leaves, by the op's argument; on a GPU, what it leaves there."""
        outputs = chosen.done.outputs
        if machine == "cuda":  # bits are one machine's
            outputs = check.run_on_gpu(
                self._original_for_gpu(), self.kernel, self._full_name(), chosen.launch,
                chosen.arguments, self.layout.dynamic,
            )  # fmt: skip
        return self._wanted(chosen.arguments, outputs, argument_names(self.kernel))

    def _compare(self, step: Step, chosen: Chosen) -> None:
        """Runs the port as well, and holds the bits against each other."""
        arguments, launch, given = chosen.arguments, chosen.launch, chosen.given
        words = ", ".join(f"{n}={v}" for n, v in arguments.items() if not isinstance(v, np.ndarray)
                          and v is not None)  # fmt: skip
        step.say(f"{'given' if given else 'made-up'} arguments {words}".rstrip()
                 + f", grid {launch.grid}")  # fmt: skip
        without = chosen.done.unchecked
        step.say("the original equals itself in every order of its threads, and is well defined, "
                 + (f"though {without}" if without else "also under AddressSanitizer"))  # fmt: skip
        self.steps.found(step, few(check.warnings(chosen.done)))
        if written := self._written_after_all(chosen):
            self.steps.found(step, [Finding(
                "MK180", self.kernel.line, 1,
                f"{self.kernel.name} writes {written}, which its text seems only to read.",
                "Whoever reads it later in a megakernel would not wait for this kernel.",
                f"Write to {written} by name, as in {written}[i] = ..., where it is written.",
            )])  # fmt: skip
            return
        assert self.op is not None
        wanted = self.wanted(chosen, self.request.machine)
        bound = self.bound(arguments, launch)
        try:
            differences = check.compare(self.op, bound, wanted, self.request.machine)
        except HostFault as fault:
            said = str(fault).rstrip(".")
            self.steps.found(step, [Finding(
                "MK180", self.kernel.line, 1,
                f"The port of {self.kernel.name} does not come to its end: {said}.",
                "It would be wrong in a megakernel.",
                "See that all lanes of a warp come to its shuffles and votes, also where nobody "
                "asks for their part. Where they do this is a fault of the port, not of the "
                "kernel: please report the file.",
            )])  # fmt: skip
            return
        except UserError as error:
            self.steps.found(step, [self._uncompiled(str(error))])
            return
        if differences:
            step.say(*differences)
            self.steps.found(step, [Finding(
                "MK180", self.kernel.line, 1,
                f"The port of {self.kernel.name} leaves other bits: {differences[0]}.",
                "It would be wrong in a megakernel.",
                "Have the kernel store no addresses. Where it stores none this is a fault of the "
                "port, not of the kernel: please report the file.",
            )])  # fmt: skip
            return
        step.say(f"the port has the same bits on the {self.request.machine} machine: between tasks "
                 "that leave NaN behind, twice side by side, with 1, 3 and 7 workers, in shuffled "
                 "order")  # fmt: skip
        if self.doubt and not given:
            step.state = "warned"
            step.say(but(self.doubt, self.kernel))
        self.little = self._says_little(arguments, chosen.done)
        self.ran = given or not self.little
        if self.little:
            step.state = "warned"
            step.say(
                f"but that says little: {self.little}"
                + ("." if given else f". Give real arguments: {asked_for(self.kernel)}")
            )

    def _written_after_all(self, chosen: Chosen) -> str:
        """A parameter that was found to be read alone, and that the original has changed."""
        names = {param.name: param.name for param in self.kernel.params}
        after = self._wanted(chosen.arguments, chosen.done.outputs, names)
        written = [chosen.arguments[n] for n, mode in self.modes.items() if mode not in READS]
        for name, mode in self.modes.items():
            before = chosen.arguments[name]
            alias = any(before is other for other in written)
            if mode in READS and name in after and not alias:
                if np.asarray(before).tobytes() != after[name].tobytes():
                    return name
        return ""

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
        if (deduced := compiling.deduced(self.kernel, words)) is not None:
            return deduced
        lines = [line for line in words.splitlines() if "error:" in line] or [words[:200]]
        said = lines[0].split("error:")[-1].strip()
        return Finding(
            "MK161", self.kernel.line, 1,
            f"The C++ compiler refuses the port of {self.kernel.name}: {said[:200]}.",
            "There is nothing to run.",
            "Make the kernel's file complete: what it uses of other files must come with it.",
        )  # fmt: skip


def _wrapped(value: Any) -> Any:
    """An unsigned number as the record has it: an int32 of the same bits."""
    return value - 2**32 if isinstance(value, int) and 2**31 <= value < 2**32 else value
