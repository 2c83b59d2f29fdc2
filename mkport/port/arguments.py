"""What a port is tried on: arguments as the user writes them, or made up where nothing is given.

Made-up arguments are a trial: where they do not fit the kernel, that says nothing of the kernel.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mkport.declare.case import to_bf16
from mkport.errors import UserError
from mkport.machines.cpu.memory import NUMPY
from mkport.port.geometry import Geometry
from mkport.port.kernel import Kernel, Param
from mkport.port.run import fitting

Arguments = dict[str, Any]
_SPEC = re.compile(r"(\w+)\[([\d,\s]*)\](?:=(.+))?")
_COUNTS = re.compile(
    r"n|num\w*|\w*numel\w*|total\w*|size|\w*_size|length|len|count|elements|n_\w+", re.IGNORECASE
)
WIDE = (
    "long", "unsigned long", "long long", "unsigned long long", "int64_t", "uint64_t", "size_t",
    "ptrdiff_t",
)  # fmt: skip
TRIAL_BYTES = 1 << 20  # of each made-up tensor
MOST_BYTES = 1 << 31  # of a tensor that is given; it is copied for each run


def read_arguments(given: Sequence[str], kernel: Kernel, seed: int = 0) -> Arguments:
    """Arguments from texts such as "x=f32[8,512]", "ids=i32[16]=0..7", "n=512", "y=x", "w=null".

    A tensor is random normal numbers, or bytes, unless `=LOW..HIGH` gives integers to draw from or
    `=VALUE` one value for all; "=NAME.npy" reads a file; another parameter's name means the same
    tensor. Raises UserError for what cannot be read, is missing or unknown.
    """
    rng = np.random.default_rng(seed)
    params = {param.name: param for param in kernel.params}
    found: Arguments = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or name not in params:
            raise UserError(
                f"--arg {text!r} does not name a parameter of {kernel.name}; write NAME=VALUE, "
                f"where the names are {', '.join(params)}."
            )
        found[name] = _value(text, value.strip(), params[name], found, rng)
        if isinstance(found[name], np.ndarray):
            try:
                fitting(found[name], params[name].dtype)
            except UserError as error:
                raise UserError(f"--arg {text!r}: {error}") from error
    if missing := [name for name in params if name not in found]:
        raise UserError(
            f"{kernel.name} has no value for {', '.join(missing)}: give --arg {missing[0]}=..., "
            "or no --arg at all to try it on made-up values."
        )
    return found


def _value(
    text: str, value: str, param: Param, found: Mapping[str, Any], rng: np.random.Generator
) -> Any:
    if param.boxed:
        return boxed(text, value, param)
    if param.kind != "tensor":
        try:
            number = int(value, 0) if param.kind == "int" else float(value)
        except ValueError as error:
            raise UserError(f"--arg {text!r}: {param.name} is a number, {param.type}.") from error
        if param.kind == "int":
            check_range(text, number, param)
        return number
    if value in ("null", "nullptr", "none"):
        return None
    if value in found and isinstance(found[value], np.ndarray):
        return found[value]
    if value.endswith(".npy"):
        return _loaded(text, value)
    value = re.sub(r"^u(?=(?:16|32|64)\b)", "i", value)  # of the same bits
    spec = _SPEC.fullmatch(value)
    if spec is None or spec[1] not in NUMPY:
        raise UserError(
            f"--arg {text!r}: {param.name} is a tensor; write TYPE[SIZES], such as "
            f"{param.dtype}[8,512], where the types are {', '.join(NUMPY)}; a file.npy; null; or "
            "the name of a parameter before it."
        )
    shape = tuple(int(n) for n in re.findall(r"\d+", spec[2]))
    if math.prod(shape) * np.dtype(NUMPY[spec[1]]).itemsize > MOST_BYTES:
        raise UserError(
            f"--arg {text!r}: {param.name} would have more than {MOST_BYTES} bytes. Compare the "
            "bits on smaller sizes."
        )
    return _filled(text, spec[1], shape, spec[3], rng)


def check_range(text: str, number: float, param: Param) -> None:
    """Raises UserError for an integer that a record's 32 bits do not hold."""
    unsigned = param.type.startswith(("unsigned", "uint")) and param.type not in WIDE
    if -(2**31) <= number < (2**32 if unsigned else 2**31):
        return
    if param.type in WIDE:
        raise UserError(
            f"--arg {text!r}: {param.name} is {param.type}, but a record carries its lower 32 bits "
            "alone, so that the port is for values from -2147483648 to 2147483647. Have larger "
            "ones computed in the kernel, from two numbers."
        )
    raise UserError(
        f"--arg {text!r}: {param.name} is {param.type}, and {number} is none: it has 32 bits."
    )


def boxed(text: str, value: str, param: Param) -> np.ndarray:
    """A double [1], or the bytes of a struct by value [bytes]: of its numbers in order, or a file
    of its bytes. `text` is what the user wrote, for messages.

    Raises UserError for what is none.
    """
    if value.endswith(".npy"):
        array = _loaded(text, value)
        if array.nbytes != param.nbytes:
            raise UserError(
                f"--arg {text!r}: {param.type} has {param.nbytes} bytes, {value} {array.nbytes}."
            )
        return np.frombuffer(array.tobytes(), NUMPY[param.dtype]).copy()
    members = param.fields or ((param.name, param.dtype, 0),)
    given = [part.strip("{} ") for part in value.split(",")]
    if param.dtype == "u8" and not param.fields or len(given) != len(members):
        listed = ", ".join(name for name, _, _ in param.fields) or "the values of its members"
        raise UserError(
            f"--arg {text!r}: {param.name} is {param.type}; write "
            + (f"{param.name}={{{listed}}} with values" if param.fields else
               f"{param.name}=FILE.npy with its {param.nbytes} bytes" if param.dtype == "u8" else
               "a number") + "."
        )  # fmt: skip
    raw = np.zeros(param.nbytes, np.uint8)
    for part, (_, dtype, offset) in zip(given, members, strict=True):
        try:
            number = float(part) if dtype in ("f32", "f64", "f16", "bf16") else int(part, 0)
            one = to_bf16(np.array([number])) if dtype == "bf16" else (
                np.array([number]).astype(NUMPY[dtype]))  # fmt: skip
        except (ValueError, OverflowError) as error:
            raise UserError(f"--arg {text!r}: {part!r} is no {dtype}.") from error
        raw[offset : offset + one.nbytes] = one.view(np.uint8)
    return raw.view(NUMPY[param.dtype])


def _loaded(text: str, value: str) -> np.ndarray:
    try:
        array: np.ndarray = np.load(Path(value), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"--arg {text!r}: {value} cannot be read: {error}.") from error
    return array


def _filled(
    text: str, dtype: str, shape: tuple[int, ...], fill: str | None, rng: np.random.Generator
) -> np.ndarray:
    if fill is None:
        return random_array(dtype, shape, rng)
    between = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", fill)
    try:
        if between:
            values = rng.integers(int(between[1]), int(between[2]) + 1, shape).astype(np.float64)
        else:
            values = np.full(shape, float(fill))
    except ValueError as error:
        raise UserError(f"--arg {text!r}: {fill!r} is neither a value nor LOW..HIGH.") from error
    if dtype == "bf16":
        return to_bf16(values)
    return values.astype(NUMPY[dtype])


def random_array(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random normal numbers of this shape and a storage type; small integers for integer types."""
    if dtype in ("i32", "i64", "i16"):
        return rng.integers(0, 4, shape).astype(NUMPY[dtype])
    if dtype in ("u8", "i8"):
        return rng.integers(0, 100, shape).astype(NUMPY[dtype])
    values = rng.standard_normal(shape, np.float32)
    return to_bf16(values) if dtype == "bf16" else values.astype(NUMPY[dtype])


def trials(kernel: Kernel, launch: Geometry, seed: int = 0) -> Iterator[Arguments]:
    """Made-up arguments, from roomy to tiny: tensors of 1 MiB, integers that may be sizes."""
    gx, gy, _ = launch.grid or (1, 1, 1)
    bx, by, _ = launch.block or (1, 1, 1)
    across, down = gx * bx, gy * by
    plans = (
        {"count": across * max(down, 1) - 3 if across * down > 8 else 4, "size": 64},
        {"count": max(across - 3, 1), "size": max(across, 16)},
        {"count": 64, "size": 64},
        {"count": 16, "size": 16},
        {"count": 4, "size": 4},
        {"count": 1, "size": 1},
    )
    for plan in plans:
        rng = np.random.default_rng(seed)
        made: Arguments = {}
        for param in kernel.params:
            if param.boxed:
                made[param.name] = _made_up(param, plan)
            elif param.kind == "tensor":
                size = np.dtype(NUMPY[param.dtype]).itemsize
                made[param.name] = random_array(param.dtype, (TRIAL_BYTES // size,), rng)
            elif param.kind == "float":
                made[param.name] = 0.5
            else:
                count = bool(_COUNTS.fullmatch(param.name))
                made[param.name] = min(plan["count" if count else "size"], 1 << 16)
        yield made


def _made_up(param: Param, plan: Mapping[str, int]) -> np.ndarray:
    """A value whose members may be sizes and factors."""
    raw = np.zeros(param.nbytes, np.uint8)
    for name, dtype, offset in param.fields or ((param.name, param.dtype, 0),):
        if dtype in ("u8", "i8"):
            value = np.array([1])
        elif dtype in ("f32", "f64", "f16", "bf16"):
            value = np.array([0.5])
        else:
            value = np.array([plan["count" if _COUNTS.fullmatch(name) else "size"]])
        one = to_bf16(value) if dtype == "bf16" else value.astype(NUMPY[dtype])
        raw[offset : offset + one.nbytes] = one.view(np.uint8)[: param.nbytes - offset]
    return raw.view(NUMPY[param.dtype])
