"""Steps two to seven of a port: whether the kernel can be a task at all.

The launch, the shared memory, control flow, reads and writes, barriers, side effects: what is found
out stands in modules of their own, what is said of it here.
"""

import re
from dataclasses import replace

from mkport.compose.cuda_constants import CONSTANTS
from mkport.errors import UserError
from mkport.machines.host.machine import SHARED_BYTES
from mkport.port import emit
from mkport.port.control import Control
from mkport.port.decided import grid_args
from mkport.port.effects import effects, host_calls, library_names
from mkport.port.finding import Finding, RefusedPort
from mkport.port.geometry import MAX_THREADS, geometry
from mkport.port.kernel import MAX_WORDS, too_many
from mkport.port.scanned import Scanned
from mkport.port.shared import shared_layout
from mkport.port.unfollowed import Unfollowed
from mkport.port.uniform import Uniformity
from mkport.port.usage import modes

COMPUTERS = emit.COMPUTERS
BUDGET = SHARED_BYTES - CONSTANTS["FIXED_BYTES"]  # of a block, in a megakernel of ports alone
BESIDE = BUDGET - 2 * CONSTANTS["CHUNK_BYTES"]  # and beside ops that stream weights


class Fitted(Scanned):
    """A port whose kernel has been judged."""

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
        words = len(self.kernel.params) + len(grid_args(launch))
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
        self.layout = shared_layout(
            self.unit, self.kernel, self.items, self.launch.shared, self.merged.system
        )
        self.uniformity = self._uniformity()
        self.control = Control(self.uniformity)
        threads = self.launch.threads
        step.say(f"{threads} threads, of a worker's {COMPUTERS}")
        for array in self.layout.arrays:
            size = f"{array.size} bytes" if array.size is not None else "dynamic"
            where = f" in {array.function}" if array.function else ""
            where += f", once for each of {len(array.slots)} instances" if array.slots else ""
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

    def _uniformity(self, whole: bool = False) -> Uniformity:
        assert self.launch is not None
        kernel = replace(self.kernel, item=self.seen)
        block = self.launch.block or (1, 1, 1)
        return Uniformity(self.analysed, kernel, self.reached, block, whole)

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
        found = self.control.findings()
        told = {(finding.line, finding.code) for finding in found}
        self.steps.found(step, self._reasons(found))
        more = Unfollowed(self.uniformity, self.reached).findings()
        self.steps.found(step, (f for f in more if (f.line, f.code) not in told))
        self.steps.found(step, self.control.memory_conditions())
        if step.state == "ok":
            step.say("every thread of a block comes to each of them")

    def _reasons(self, found: list[Finding]) -> list[Finding]:
        """The findings without those in functions that are called under a condition, where it is
        the condition that is found too."""
        if not found:
            return found
        whole = Control(self._uniformity(whole=True)).findings()
        places = {(f.code, f.line, f.column) for f in whole}
        return [f for f in found if (f.code, f.line, f.column) in places] or found

    # 5. What is read and written, and how.

    def _memory(self) -> None:
        step = self.steps.begin("memory")
        self.modes = modes(self.uniformity, self.kernel, frozenset(self.request.immutable))
        seen = modes(self.uniformity, self.kernel, frozenset())
        for name in self.request.immutable:
            if seen[name] != "read":
                raise UserError(
                    f"--immutable {name}: {self.kernel.name} writes it, or does with it what is "
                    f"not understood, so it may change during a step. Leave it out of --immutable."
                )
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
        unnamed = self.analysed.unnamed([self.seen], " ".join(self.request.instance))
        found = effects(self.analysed, self.kernel, self.reached, unnamed)
        found += host_calls(self.analysed, [self.kernel.name])
        self.steps.found(step, found)
        self.asserts = any(f.code == "MK306" for f in found)
        if not found:
            step.say("none")
