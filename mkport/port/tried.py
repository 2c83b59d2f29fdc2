"""Step eleven of a port: original and port are run on the same arguments, and the bits compared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.machines.host.build import HostFault, compiler
from mkport.port import check, emit
from mkport.port.arguments import trials
from mkport.port.finding import Finding
from mkport.port.geometry import Geometry
from mkport.port.original import NotBuilt
from mkport.port.report import Step
from mkport.port.written import Written

MOST_BLOCKS = (6, 4, 2)  # of a launch on made-up arguments


class Tried(Written):
    """A port that has been run, where that could be."""

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


def _wrapped(value: Any) -> Any:
    """An unsigned number as the record has it: an int32 of the same bits."""
    return value - 2**32 if isinstance(value, int) and 2**31 <= value < 2**32 else value
