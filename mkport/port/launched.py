"""The launches of a file's host code as one megakernel: each kernel ported, the ops and their chain
written, and the megakernel's bits held against the launches one after another.

What the host computes is taken from values of its variables, which the user gives. What is launched
and what waits for what is `several.py`'s.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.files import make_folder, write_text
from mkport.machines.host.build import HostFault, compiler
from mkport.port import check
from mkport.port.arguments import read_arguments
from mkport.port.chain_file import Filled, chain_text, labels
from mkport.port.constants import Constants
from mkport.port.decided import argument_names, grid_args
from mkport.port.finding import Finding
from mkport.port.geometry import Geometry, host_value, three_of
from mkport.port.kernel import Kernel, Param
from mkport.port.lexer import names
from mkport.port.port import Port
from mkport.port.report import EXIT, Report, Verdict
from mkport.port.scanned import Request
from mkport.port.several import WRITES, HostLaunch, dependencies

ORDERS = ((1, 0), (3, 1), (7, 2))  # workers, seed
_PLAIN = re.compile(
    r"(?:\(\s*(?:const\s+)?[\w:]+(?:\s*const)?\s*\*\s*\)|(?:reinterpret|static|const)_cast\s*<[^<>()]*>)?\s*"
    r"\(?\s*(?:thrust::raw_pointer_cast\s*\(\s*)?(\w+)(?:\s*(?:\.|->)\s*(?:template\s+)?"
    r"(?:data_ptr|data|get|mutable_data_ptr|const_data_ptr)\s*(?:<[^<>()]*>)?\s*\(\s*\))?\s*\)*"
)
_TOUCHES = re.compile(r"\b(cuda(?:Memset|Memcpy)\w*|std::swap|swap)\s*\(")


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
    _as_one_chain(path, launches)
    return _Launches(path, launches, arguments, define or {}, include, compile, machine).made(
        out, run, oracle
    )


def _as_one_chain(path: Path, launches: Sequence[HostLaunch]) -> None:
    """Raises UserError for what does not always come in this order, on whole buffers."""
    functions = list(dict.fromkeys(launch.function for launch in launches))
    if len(functions) > 1:
        raise UserError(
            f"{path}: several host functions launch kernels: {', '.join(functions)}. Name one, as "
            f"in {path}:{functions[0]}."
        )
    one_by_one = "Port its kernels one by one, and write the chain by hand."
    for launch in launches:
        if launch.within:
            raise UserError(
                f"{path}:{launch.line}: {launch.kernel} is launched in {launch.within}, so that "
                f"its order is the host's to decide. {one_by_one}"
            )
        for param in launch.params:
            text = launch.given.get(param.name)
            if text is None:
                raise UserError(
                    f"{path}:{launch.line}: {launch.kernel} is launched without a value for "
                    f"{param.name}. {one_by_one}"
                )
            if param.kind == "tensor" and not param.boxed and not _PLAIN.fullmatch(text.strip()):
                raise UserError(
                    f"{path}:{launch.line}: {launch.kernel} gets `{text}` as {param.name}, which "
                    f"is no whole buffer. {one_by_one}"
                )
            if param.boxed and param.dtype != "f64":
                raise UserError(
                    f"{path}:{launch.line}: {launch.kernel} gets the struct `{text}` by value. "
                    f"{one_by_one}"
                )
    around = launches[0].around
    if found := _TOUCHES.search(around):
        raise UserError(
            f"{path}: {launches[0].function} calls {found[1]} beside its kernels, so that they are "
            f"not all that happens to their buffers. {one_by_one}"
        )
    for name in {v for launch in launches for v in launch.touched("read", *WRITES)}:
        changed = re.search(rf"(?<![\w.>=!<]){name}\s*(?:[-+]?=(?!=))\s*([^;]*);", around)
        if changed and re.search(r"\b(?:" + "|".join(_variables(launches)) + r")\b", changed[1]):
            raise UserError(
                f"{path}: {launches[0].function} sets {name} to `{changed[1]}`, so that it may be "
                f"a part of another buffer. {one_by_one}"
            )


def _variables(launches: Sequence[HostLaunch]) -> list[str]:
    return sorted({v for launch in launches for v in launch.touched("read", *WRITES)})


class _Launches:
    """One host function's launches on their way."""

    def __init__(
        self, path: Path, launches: list[HostLaunch], arguments: Sequence[str],
        define: Mapping[str, str], include: Sequence[Path], compile: bool, machine: str,
    ) -> None:  # fmt: skip
        self.path, self.launches, self.machine = path, launches, machine
        self.request = {"defines": tuple(define.items()), "include": tuple(include),
                        "compile": compile, "machine": machine, "run": False}  # fmt: skip
        self.own = {}  # KERNEL.PARAM
        host = []
        for text in arguments:
            name, _, value = text.partition("=")
            kernel, dot, param = name.strip().partition(".")
            if dot and value:
                self.own[kernel, param] = value.strip()
            else:
                host.append(text)
        self._there(host)
        self.values = read_arguments(host, self._host(host))
        self.given = bool(arguments)
        self._same_throughout()
        self.ports: list[Port] = []
        self.ops: list[str] = []
        self.kept: set[str] = set()  # tensors of which a part stays as it was
        self.result = Launched(path, launches)

    def _there(self, host: Sequence[str]) -> None:
        """Raises UserError for values of variables and parameters that nothing mentions."""
        params = {(one.kernel, param.name) for one in self.launches for param in one.params}
        around = set(re.findall(r"\w+", self.launches[0].around))
        lost = [name for text in host if (name := text.partition("=")[0].strip()) not in around]
        lost += [f"{kernel}.{param}" for kernel, param in self.own.keys() - params]
        if lost:
            raise UserError(
                f"--arg {lost[0]}: {self.path}:{self.launches[0].function} has no such variable, "
                "nor a kernel that it launches such a parameter. Leave it out, or mend its name."
            )

    def _same_throughout(self) -> None:
        """Raises UserError for a number that the host function changes on its way."""
        around = self.launches[0].around
        for name, value in self.values.items():
            declared = rf"\b(?:int|unsigned|size_t|auto|long|float|double|int64_t)\s+{name}\s*="
            rest = re.sub(declared, "", around)
            changed = re.search(
                rf"(?<![\w.>]){name}\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*{name}\b",
                rest,
            )
            if changed and not isinstance(value, np.ndarray):
                raise UserError(
                    f"{self.path}: {self.launches[0].function} changes {name} on its way, so that "
                    "it has no one value. Port its kernels one by one, and write the chain by hand."
                )

    def _host(self, given: Sequence[str]) -> Kernel:
        """The host's variables, as the parameters of a kernel."""
        params: dict[str, Param] = {}
        for launch in self.launches:
            for param in launch.params:
                if param.kind == "tensor" and not param.boxed:
                    name = launch.tensor(param)
                    params.setdefault(name, replace(param, name=name))
        for text in given:
            name, _, value = text.partition("=")
            number = "float" if re.search(r"[.eE]", value) and "x" not in value else "int"
            params.setdefault(name.strip(), Param(name.strip(), number, number))
        wanted = tuple(params.values()) if given else ()
        return Kernel(None, self.launches[0].function, wanted, (), (), None, 0)  # type: ignore[arg-type]

    def made(self, out: Path | None, run: bool, oracle: Path | None) -> Launched:
        """All of it, as far as it can be made."""
        for launch in self.launches:
            self._port(launch)
        result = self.result
        if result.verdict == "ported" and self.given and run and compiler() is not None:
            self._compare(self._tensors())
        filled = [self._filled(at) for at in range(len(self.launches))] if self.given else []
        tensors = self._tensors() if self.given else None
        beside = "" if oracle is None else os.path.relpath(oracle, out or Path())
        result.chain = chain_text(
            self.path, self.launches, "ops", filled, tensors, beside, self.kept
        )
        if result.verdict != "ported":
            return result
        if not self.given:
            result.lines.append(
                "nothing was composed or run: give the host's variables, as in --arg "
                + " --arg ".join(f"{name}=..." for name in _variables(self.launches))
            )
        elif result.same is None:
            result.lines.append("not run here")
        if out is not None:
            for name, report in result.reports.items():
                folder = make_folder(out / "ops" / name)
                for file, text in report.files.items():
                    write_text(folder / file, text)
            write_text(out / f"{self.path.stem}.toml", result.chain)
            result.lines.append(f"written to {out}: ops, and the chain {self.path.stem}.toml")
        return result

    # Each kernel.

    def _port(self, launch: HostLaunch) -> None:
        constants = self._constants(launch)
        sizes = [
            three_of(launch.around, constants, text) for text in launch.config[:2]
        ]  # fmt: skip
        for what, size, text in zip(("grid", "block"), sizes, launch.config, strict=False):
            if size is None and (self.given or what == "block"):
                lacking = sorted(names(host_value(launch.around, text)) - set(self.values))
                raise UserError(
                    f"{self.path}:{launch.line}: the {what} `{text}` of {launch.kernel} is not "
                    f"known: give --arg {lacking[0] if lacking else 'NAME'}=VALUE."
                )
        shared = None
        if len(launch.config) > 2:
            shared = constants.value(host_value(launch.around, launch.config[2]))
        request = Request(
            self.path, launch.kernel, sizes[0], sizes[1], shared, launch.instance, **self.request,  # type: ignore[arg-type]
        )  # fmt: skip
        name = launch.kernel
        for at, (port, op) in enumerate(zip(self.ports, self.ops, strict=True)):
            if port.request.kernel != launch.kernel:
                continue
            alike = replace(port.request, grid=request.grid, name=None) == request
            if alike and _axes(port.request.grid) == _axes(request.grid):
                self.ports.append(self.ports[at])
                self.ops.append(op)
                return
            name = f"{launch.kernel}_{len(set(self.ops)) + 1}"
        port = Port(replace(request, name=name if name != launch.kernel else None))
        self.ports.append(port)
        self.ops.append(name)
        self.result.reports[name] = port.run()

    def _constants(self, launch: HostLaunch) -> Constants:
        """What evaluates the host's expressions for one launch."""
        numbers = {n: str(v) for n, v in self.values.items() if isinstance(v, int)}
        locals_ = {
            name: host_value(launch.around, name)
            for text in [*launch.config, *launch.given.values()] for name in names(text)
            if name not in numbers and host_value(launch.around, name) != name
        }  # fmt: skip
        for text in list(locals_.values()):
            for name in names(text):
                if name not in numbers and host_value(launch.around, name) != name:
                    locals_.setdefault(name, host_value(launch.around, name))
        unit = self.ports[0].unit if self.ports else _unit(self.path, self.request)
        return Constants(unit, {**dict(launch.assumed), **locals_, **numbers})

    def _filled(self, at: int) -> Filled:
        launch, port = self.launches[at], self.ports[at]
        numbers = {
            param.name: self._number(launch, param) for param in launch.params
            if param.kind != "tensor"
        }  # fmt: skip
        constants = self._constants(launch)
        grid = three_of(launch.around, constants, launch.config[0]) or (1, 1, 1)
        axes = len(grid_args(Geometry(port.request.grid, None, None)))
        return Filled(self.ops[at], numbers, grid[:axes])

    def _number(self, launch: HostLaunch, param: Param) -> int | float:
        """The value that the host gives for a number."""
        text = self.own.get((launch.kernel, param.name), launch.given[param.name])
        plain = re.sub(r"^(?:\(\s*\w+\s*\)|(?:static_cast|float|double|int)\s*(?:<\w+>)?\s*(?=\())",
                       "", text.strip())  # fmt: skip
        plain = plain.strip("() ") if re.fullmatch(r"\(\s*[\w.]+\s*\)", plain) else plain
        if plain in self.values and not isinstance(self.values[plain], np.ndarray):
            value = self.values[plain]
            return int(value) if param.kind == "int" else float(value)
        if param.kind == "int":
            found = self._constants(launch).value(text)
        else:
            literal = re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?", plain)
            found = float(plain.rstrip("fF")) if literal else None  # type: ignore[assignment]
        if found is None:
            lacking = [name for name in sorted(names(plain)) if name not in self.values]
            simple = lacking == [plain]
            raise UserError(
                f"{self.path}:{launch.line}: what {launch.kernel} gets as {param.name}, `{text}`, "
                "is not known: give --arg "
                + (f"{plain}=VALUE." if simple else f"{launch.kernel}.{param.name}=VALUE.")
            )
        return found

    def _tensors(self) -> dict[str, np.ndarray]:
        """The contents of the chain's tensors before it runs."""
        arrays = {n: v for n, v in self.values.items() if isinstance(v, np.ndarray)}
        for launch in self.launches:
            for param in launch.params:
                if param.boxed:
                    value = self._number(launch, replace(param, kind="float"))
                    arrays[launch.tensor(param)] = np.array([value], np.float64)
        return arrays

    # The bits.

    def _compare(self, tensors: Mapping[str, np.ndarray]) -> None:
        wanted = self._in_order(tensors)
        if wanted is None:
            return
        result = self.result
        try:
            found = self._megakernel(tensors, wanted)
        except HostFault as fault:
            found = [f"its threads slip: {fault}"]
        result.same = not found
        if found:
            result.findings.append(Finding(
                "MK180", self.launches[0].line, 1,
                f"The megakernel leaves other bits than the launches in their order: {found[0]}.",
                "It would be wrong.",
                "Check that each buffer has one name in the host code; else this is a fault of "
                "the port, and please report the file.",
            ))  # fmt: skip
            return
        result.lines.append(
            "the megakernel is verified, and has the bits of the launches in their order on the "
            f"{self.machine} machine: with 1, 3 and 7 workers, in shuffled order"
        )

    def _in_order(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The originals, launched one after another: what the tensors hold in the end."""
        now = dict(tensors)
        written: set[str] = set()
        for at, (launch, port) in enumerate(zip(self.launches, self.ports, strict=True)):
            filled = self._filled(at)
            grid = (*filled.grid, 1, 1)[:3]
            assert port.launch is not None
            geometry = replace(port.launch, grid=(grid[0], grid[1], grid[2]))
            given = {
                param.name: now[launch.tensor(param)] if param.kind == "tensor"
                else filled.numbers[param.name] for param in launch.params
            }  # fmt: skip
            source, full = port._original_for_host(), port._full_name()
            done, found = check.run_first(
                source, self.path, port.kernel, full, geometry, given, [], port.layout.dynamic, 4,
                20.0,
            )  # fmt: skip
            if found:
                self.result.findings += [port._placed(finding) for finding in found]
                return None
            self._note_kept(launch, port, geometry, given, done.outputs, written)
            written |= launch.touched(*WRITES).keys()
            outputs: Sequence[np.ndarray] = done.outputs
            if self.machine == "cuda":
                outputs = check.run_on_gpu(
                    port._original_for_gpu(), port.kernel, full, geometry, given,
                    port.layout.dynamic,
                )  # fmt: skip
            after = port._wanted(given, outputs, {p.name: p.name for p in launch.params})
            for param in launch.params:
                if param.kind == "tensor" and not param.boxed:
                    now[launch.tensor(param)] = after[param.name]
        return now

    def _note_kept(
        self, launch: HostLaunch, port: Port, geometry: Geometry, given: Mapping[str, Any],
        outputs: Sequence[np.ndarray], written: set[str],
    ) -> None:  # fmt: skip
        """Notes the tensors that this launch is the first to write and leaves in part as they were:
        with other contents before, it then leaves others."""
        fresh = [
            param.name for param in launch.params
            if launch.modes.get(param.name) == "write" and launch.tensor(param) not in written
            and isinstance(given[param.name], np.ndarray)
        ]  # fmt: skip
        if not fresh:
            return
        other = dict(given)
        for name in fresh:
            flipped = np.frombuffer(given[name].tobytes(), np.uint8) ^ 0x15
            other[name] = flipped.view(given[name].dtype).reshape(given[name].shape)
        again, _ = check.run_first(
            port._original_for_host(), self.path, port.kernel, port._full_name(), geometry, other,
            [], port.layout.dynamic, 1, 20.0,
        )  # fmt: skip
        names_ = {p.name: p.name for p in launch.params}
        first, second = (
            port._wanted(values, left, names_)
            for values, left in ((given, outputs), (other, again.outputs))
        )
        self.kept |= {
            launch.tensor(param) for param in launch.params
            if param.name in fresh and first[param.name].tobytes() != second[param.name].tobytes()
        }  # fmt: skip

    def _megakernel(
        self, tensors: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> list[str]:
        from mkport.compose.cuda import compose_cuda
        from mkport.plan import Graph, deal
        from mkport.port.run import fitting, run_schedule
        from mkport.verify import verify

        graph = Graph()
        arrays: dict[str, np.ndarray] = {}
        for launch in self.launches:
            for param in launch.params:
                if param.kind == "tensor" and launch.tensor(param) not in arrays:
                    name = launch.tensor(param)
                    arrays[name] = fitting(tensors[name], param.dtype)
                    graph.tensor(name, param.dtype, arrays[name].shape, "state")
        for at, (launch, label) in enumerate(
            zip(self.launches, labels(self.launches), strict=True)
        ):
            filled, port = self._filled(at), self.ports[at]
            grid = (*filled.grid, 1, 1)
            given = {p.name: None if p.kind == "tensor" else filled.numbers[p.name]
                     for p in launch.params}  # fmt: skip
            bound = port.bound(given, Geometry((grid[0], grid[1], grid[2]), None, None))
            called = argument_names(port.kernel)
            renamed = {called[param.name]: launch.tensor(param) for param in launch.params
                       if param.kind == "tensor"}  # fmt: skip
            assert port.op is not None
            graph.add(port.op, label, **{**bound, **renamed})
        ops = list(dict.fromkeys(port.op for port in self.ports if port.op is not None))
        program = compose_cuda(ops, "f32", "f32", rows=1, title=self.path.stem)
        graph = graph.within(program.ops)
        found = []
        for workers, seed in ORDERS:
            schedule = check.shuffled(graph, workers, seed) if seed else (
                deal(graph, workers, "strided"))  # fmt: skip
            verify(schedule)
            after = run_schedule(
                program, schedule, {n: a.copy() for n, a in arrays.items()}, self.machine, seed
            )
            for name, array in arrays.items():
                want = fitting(wanted[name], graph.tensors[name].dtype)
                if want.tobytes() != after[name].tobytes():
                    words = check.difference(want.reshape(array.shape), after[name])
                    found.append(f"{name}: {words} ({workers} workers, order {seed})")
        return found


def _axes(grid: Any) -> int:
    return len(grid_args(Geometry(grid, None, None)))


def _unit(path: Path, request: Mapping[str, Any]) -> Any:
    from mkport.port.conditionals import resolve
    from mkport.port.includes import merge
    from mkport.port.unit import Unit

    return Unit(resolve(merge(path, request["include"]).text, dict(request["defines"])))
