"""What becomes of each of a host function's launches: its kernel ported, once for all launches that
are alike, and its numbers, its grid and its tensors, computed from the host's values.

How these values are read is `host_values.py`'s; what runs the launches is `launch_bits.py`'s.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.port.arguments import boxed
from mkport.port.chain_file import Filled
from mkport.port.conditionals import resolve
from mkport.port.constants import Constants
from mkport.port.decided import grid_args
from mkport.port.geometry import Geometry, host_value, three_of
from mkport.port.host_values import HostValues
from mkport.port.includes import merge
from mkport.port.kernel import Param
from mkport.port.lexer import names
from mkport.port.port import Port
from mkport.port.report import Report
from mkport.port.scanned import Request
from mkport.port.several import HostLaunch
from mkport.port.unit import Unit


class LaunchPorts:
    """One host function's launches on their way. `ports` and `ops`, the names of the ops, have an
    item a launch; `reports` are the kernels' own, by op. `request` is what all ports ask alike."""

    def __init__(self, launches: Sequence[HostLaunch], host: HostValues, request: Request) -> None:
        self.launches, self.request, self.path = launches, request, request.path
        self.values, self.own, self.given = host.values, host.own, host.given
        self.ports: list[Port] = []
        self.ops: list[str] = []
        self.reports: dict[str, Report] = {}

    def run(self) -> None:
        """Ports every launch's kernel. Raises UserError for a grid or a block that is not known."""
        for launch in self.launches:
            self._port(launch)

    def filled(self, at: int) -> Filled:
        """The op, the numbers and the grid of the launch of number `at`, counted from 0.

        Raises UserError for a number that is not known.
        """
        launch, port = self.launches[at], self.ports[at]
        numbers = {
            param.name: self._number(launch, param) for param in launch.params
            if param.kind != "tensor"
        }  # fmt: skip
        constants = self._constants(launch)
        grid = three_of(launch.around, constants, launch.config[0]) or (1, 1, 1)
        axes = len(grid_args(Geometry(port.request.grid, None, None)))
        return Filled(self.ops[at], numbers, grid[:axes])

    def tensors(self) -> dict[str, np.ndarray]:
        """The contents of the chain's tensors before it runs, by name [as given; 1 for a number
        that a kernel takes as a double; the bytes of a struct that it takes by value].

        Raises UserError for a number or a struct that is not known.
        """
        structs = {
            launch.given[param.name].strip() for launch in self.launches for param in launch.params
            if param.boxed and param.dtype != "f64"
        }  # fmt: skip
        arrays = {
            name: value for name, value in self.values.items()
            if isinstance(value, np.ndarray) and name not in structs
        }  # fmt: skip
        for launch in self.launches:
            for param in launch.params:
                if param.boxed and param.dtype != "f64":
                    arrays[launch.tensor(param)] = self._struct(launch, param)
                elif param.boxed:
                    value = self._number(launch, replace(param, kind="float"))
                    arrays[launch.tensor(param)] = np.array([value], np.float64)
        return arrays

    def _struct(self, launch: HostLaunch, param: Param) -> np.ndarray:
        """The bytes of a struct that the host passes by value."""
        text = launch.given[param.name].strip()
        if (own := self.own.get((launch.kernel, param.name))) is not None:
            return boxed(f"{launch.kernel}.{param.name}={own}", own, param)
        if isinstance(value := self.values.get(text), np.ndarray):
            return value
        name = text if text.isidentifier() else f"{launch.kernel}.{param.name}"
        listed = ",".join(name.upper() for name, _, _ in param.fields)
        raise UserError(
            f"{self.path}:{launch.line}: what {launch.kernel} gets as {param.name}, `{text}`, is "
            f"not known: give --arg '{name}={f'{{{listed}}}' if listed else 'FILE.npy'}'."
        )

    def _port(self, launch: HostLaunch) -> None:
        constants = self._constants(launch)
        sizes = [three_of(launch.around, constants, text) for text in launch.config[:2]]
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
        request = replace(
            self.request, kernel=launch.kernel, grid=sizes[0], block=sizes[1], shared=shared,
            instance=launch.instance,
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
        self.reports[name] = port.run()

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
        unit = self.ports[0].unit if self.ports else _unit(self.request)
        return Constants(unit, {**dict(launch.assumed), **locals_, **numbers})

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


def _axes(grid: Any) -> int:
    return len(grid_args(Geometry(grid, None, None)))


def _unit(request: Request) -> Unit:
    return Unit(resolve(merge(request.path, request.include).text, dict(request.defines)))
