"""What a host function says, and what is said of it: which launches always come in one order and on
whole buffers, so that they may be a chain, and the values that the user gives its variables.

How launches are found in host code is `several.py`'s, what they make of the values
`launch_ports.py`'s.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mkport.errors import UserError
from mkport.port.arguments import Arguments, read_arguments
from mkport.port.kernel import Kernel, Param
from mkport.port.several import WRITES, HostLaunch

Own = Mapping[tuple[str, str], str]  # by kernel and parameter

_PLAIN = re.compile(
    r"(?:\(\s*(?:const\s+)?[\w:]+(?:\s*const)?\s*\*\s*\)|(?:reinterpret|static|const)_cast\s*<[^<>()]*>)?\s*"
    r"\(?\s*(?:thrust::raw_pointer_cast\s*\(\s*)?(\w+)(?:\s*(?:\.|->)\s*(?:template\s+)?"
    r"(?:data_ptr|data|get|mutable_data_ptr|const_data_ptr)\s*(?:<[^<>()]*>)?\s*\(\s*\))?\s*\)*"
)
_CHANGES = r"(?:\s*(?:\.|->)\s*\w+|\s*\[[^\]]*\])*\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)"
_TOUCHES = re.compile(r"\b(cuda(?:Memset|Memcpy)\w*|std::swap|swap)\s*\(")


@dataclass(frozen=True)
class HostValues:
    """What the user gives: `values` of the host's variables, numbers and arrays by name, and `own`
    texts, by kernel and parameter, of what the host computes in a way that is not followed."""

    values: Arguments
    own: Own
    given: bool  # whether the user gave anything at all


def as_one_chain(path: Path, launches: Sequence[HostLaunch]) -> None:
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
            if param.boxed and _changed_later(launch, text):
                raise UserError(
                    f"{path}: {launches[0].function} changes `{text}` between its launches, and "
                    f"{launch.kernel} gets it by value. {one_by_one}"
                )
    around = launches[0].around
    if found := _TOUCHES.search(around):
        raise UserError(
            f"{path}: {launches[0].function} calls {found[1]} beside its kernels, so that they are "
            f"not all that happens to their buffers. {one_by_one}"
        )
    for name in {v for launch in launches for v in launch.touched("read", *WRITES)}:
        changed = re.search(rf"(?<![\w.>=!<]){name}\s*(?:[-+]?=(?!=))\s*([^;]*);", around)
        if changed and re.search(r"\b(?:" + "|".join(variables(launches)) + r")\b", changed[1]):
            raise UserError(
                f"{path}: {launches[0].function} sets {name} to `{changed[1]}`, so that it may be "
                f"a part of another buffer. {one_by_one}"
            )


def _changed_later(launch: HostLaunch, text: str) -> bool:
    """Whether the host changes a variable, or a member of it, behind its first launch."""
    name = re.match(r"[A-Za-z_]\w*", text.strip())
    if name is None:
        return False
    later = launch.around.partition("<<<")[2]
    for found in re.finditer(rf"\b{name[0]}\b{_CHANGES}|[&+-]\s*{name[0]}\b", later):
        before = later[: found.start()].rstrip(" ")
        declared = before[-1:].isalnum() and found[0].rstrip().endswith("=")
        if not declared and not (found[0].startswith("&") and before.endswith("&")):
            return True
    return False


def variables(launches: Sequence[HostLaunch]) -> list[str]:
    """The host's buffers that launches touch, sorted by name."""
    return sorted({v for launch in launches for v in launch.touched("read", *WRITES)})


def read_values(path: Path, launches: Sequence[HostLaunch], arguments: Sequence[str]) -> HostValues:
    """The values that texts such as "x=f32[8,512]", "n=512" and "KERNEL.PARAM=VALUE" give.

    Raises UserError for what cannot be read, is missing or unknown, and for a number that the host
    function changes on its way.
    """
    own = {}
    host = []
    for text in arguments:
        name, _, value = text.partition("=")
        kernel, dot, param = name.strip().partition(".")
        if dot and value:
            own[kernel, param] = value.strip()
        else:
            host.append(text)
    _refuse_unknown(path, launches, host, own)
    values = read_arguments(host, _host(launches, host))
    _refuse_changing(path, launches, values)
    _refuse_several(path, launches, own)
    return HostValues(values, own, bool(arguments))


def _refuse_unknown(
    path: Path, launches: Sequence[HostLaunch], host: Sequence[str], own: Own
) -> None:
    """Raises UserError for values of variables and parameters that nothing mentions."""
    params = {(one.kernel, param.name) for one in launches for param in one.params}
    around = set(re.findall(r"\w+", launches[0].around))
    lost = [name for text in host if (name := text.partition("=")[0].strip()) not in around]
    lost += [f"{kernel}.{param}" for kernel, param in own.keys() - params]
    if lost:
        raise UserError(
            f"--arg {lost[0]}: {path}:{launches[0].function} has no such variable, "
            "nor a kernel that it launches such a parameter. Leave it out, or mend its name."
        )


def _refuse_several(path: Path, launches: Sequence[HostLaunch], own: Own) -> None:
    """Raises UserError for one value for what launches of a kernel get several of."""
    for kernel, param in own:
        texts = {" ".join(one.given[param].split()) for one in launches if one.kernel == kernel}
        if len(texts) > 1:
            raise UserError(
                f"--arg {kernel}.{param}: {path}:{launches[0].function} gives {kernel} several "
                f"values for {param}: {', '.join(sorted(texts))}. Give the host's variables, or "
                "port its kernels one by one, and write the chain by hand."
            )


def _refuse_changing(path: Path, launches: Sequence[HostLaunch], values: Arguments) -> None:
    """Raises UserError for a number that the host function changes on its way."""
    around = launches[0].around
    for name, value in values.items():
        declared = rf"\b(?:int|unsigned|size_t|auto|long|float|double|int64_t)\s+{name}\s*="
        rest = re.sub(declared, "", around)
        changed = re.search(
            rf"(?<![\w.>]){name}\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*{name}\b",
            rest,
        )
        if changed and not isinstance(value, np.ndarray):
            raise UserError(
                f"{path}: {launches[0].function} changes {name} on its way, so that "
                "it has no one value. Port its kernels one by one, and write the chain by hand."
            )


def _host(launches: Sequence[HostLaunch], given: Sequence[str]) -> Kernel:
    """The host's variables, as the parameters of a kernel."""
    params: dict[str, Param] = {}
    for launch in launches:
        for param in launch.params:
            if param.kind == "tensor" and not param.boxed:
                name = launch.tensor(param)
                params.setdefault(name, replace(param, name=name))
            elif param.boxed and param.dtype != "f64":
                name = launch.given[param.name].strip()
                if name.isidentifier() and any(_named(text) == name for text in given):
                    params.setdefault(name, replace(param, name=name))
    for text in given:
        name, value = _named(text), text.partition("=")[2]
        number = "float" if re.search(r"[.eE]", value) and "x" not in value else "int"
        params.setdefault(name, Param(name, number, number))
    wanted = tuple(params.values()) if given else ()
    return Kernel(None, launches[0].function, wanted, (), (), None, 0)  # type: ignore[arg-type]


def _named(text: str) -> str:
    """The name that a text such as "n=512" gives a value."""
    return text.partition("=")[0].strip()
