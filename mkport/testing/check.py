"""Checks an op, form by form: against its oracle by the tolerance law, and bit by bit."""

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np

from mkport.compose import Program, compose_cpu
from mkport.compose.cpu import STORAGE
from mkport.compose.cuda import CudaProgram
from mkport.declare import Op
from mkport.declare.case import Case, from_bf16
from mkport.errors import UserError
from mkport.testing.blame import blamed, part_of, truth_of
from mkport.testing.forms import Outputs, run_ported, run_solo, run_standalone
from mkport.testing.law import EPS, Measured, measure
from mkport.testing.parts import NO_TORCH, is_port, load_part

Form = Literal["standalone", "ported", "solo", "step"]
MACHINES = ("cpu", "host", "cuda")
FORMS: tuple[Form, ...] = ("standalone", "ported", "solo", "step")


@dataclass(frozen=True)
class Verdict:
    """One op, form and shape: the measured error of its worst output, and the bits.

    `same_bits` compares with the standalone form; None where that is the form itself.
    """

    op: str
    machine: str
    form: str
    shape: str
    dtype: str
    error: float
    allowed: float
    same_bits: bool | None
    detail: str
    seconds: float

    @property
    def ok(self) -> bool:
        """True when the error is lawful and the bits are the standalone's."""
        return self.error <= self.allowed and self.same_bits is not False

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"ok": self.ok}


def check_op(
    op: Op,
    machine: str = "cpu",
    form: Form = "ported",
    shapes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    dtype: str = "bf16",
    workers: int = 2,
    seed: int = 0,
    program: Program | CudaProgram | None = None,
) -> list[Verdict]:
    """Checks one form of an op on each shape; one verdict a shape.

    `shapes` maps a name to keyword arguments of the oracle's `make`; the op's own `SHAPES` when
    absent. `dtype` ("bf16", "f32") is the storage of weights and cache. `program` is a program to
    use that holds the op, composed for the machine ("cuda" and "host" run the CUDA source, on the
    GPU or on the CPU); absent, one of this op alone is composed. Raises UserError for an unknown
    machine, form or dtype, for a form that the op has no file for, and for a program of another
    machine or without the op.
    """
    if machine not in MACHINES:
        raise UserError(f"There is no machine {machine!r}; the machines are {', '.join(MACHINES)}.")
    if form not in FORMS:
        raise UserError(f"There is no form {form!r}; the forms are {', '.join(FORMS)}.")
    if dtype not in STORAGE:
        raise UserError(f"There is no dtype {dtype!r}; the dtypes are {', '.join(STORAGE)}.")
    if program is not None:
        _fits(program, op, machine)
    if is_port(op):
        from mkport.port.recheck import check_port

        return check_port(op, machine, form, workers, seed)
    if machine != "cpu":
        from mkport.testing.cuda_check import check_cuda

        assert program is None or isinstance(program, CudaProgram)
        return check_cuda(
            op, machine, form, shapes, dtype=dtype, workers=workers, seed=seed, program=program
        )
    assert program is None or isinstance(program, Program)
    if form == "step":
        from mkport.testing.step import check_step

        return check_step(op, dtype=dtype, workers=workers, seed=seed)
    oracle = load_part(op, "oracle")
    if form != "standalone" and program is None:
        program = compose_cpu([op], dtype, dtype)
    verdicts = []
    for name, shape in (shapes or part_of(oracle, "SHAPES", op)).items():
        case = case_of(op, oracle, name, shape, dtype, seed)
        started = time.perf_counter()
        standalone = run_standalone(op, case)
        if form == "standalone":
            got = standalone
        elif form == "ported":
            assert program is not None
            got = run_ported(op, case, program)
        else:
            assert program is not None
            got = run_solo(op, case, program, workers)
        verdicts.append(judge(op, form, name, dtype, case, got, standalone, started))
    return verdicts


def case_of(
    op: Op, oracle: ModuleType, name: str, shape: Mapping[str, Any], dtype: str, seed: int
) -> Case:
    """The case that an op's oracle makes of a shape.

    Raises UserError, with its file and line, for an oracle that makes none.
    """
    make = part_of(oracle, "make", op)
    with blamed(op, f"make for the shape {name!r}"):
        try:
            case = make(np.random.default_rng([seed, *name.encode()]), dtype, dtype, **shape)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise UserError(
                    f"Op {op.name}: {oracle.__file__} has the shape {name!r}, "
                    f"{', '.join(shape)}, but its make takes others: {error}."
                ) from error
            raise
    if not isinstance(case, Case):
        raise UserError(
            f"Op {op.name}: make in {oracle.__file__} returns a {type(case).__name__}; it must "
            "return a Case."
        )
    return case


def _fits(program: Program | CudaProgram, op: Op, machine: str) -> None:
    if isinstance(program, Program) != (machine == "cpu"):
        raise UserError(
            f"The program given for op {op.name} is a {type(program).__name__}, which the machine "
            f"{machine!r} does not run; compose one for it, or give none."
        )
    if op not in program.ops:
        names = ", ".join(other.name for other in program.ops)
        raise UserError(
            f"The program given for op {op.name} does not hold it, but {names}; "
            "compose one with this very op, or give none."
        )


def judge(
    op: Op,
    form: str,
    shape: str,
    dtype: str,
    case: Case,
    got: Outputs,
    standalone: Outputs,
    started: float,
    machine: str = "cpu",
    arithmetic: str = "float32",
    oracle: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Verdict:
    """Compares outputs with the oracle and with the standalone form's bits.

    `arithmetic` is the machine's: PyTorch's error in it is what the law allows twice, in float32
    also that of sums one term after the other. `oracle` is another function than the op's own.
    Raises UserError for an output that the oracle does not return.
    """
    oracle = oracle or part_of(load_part(op, "oracle"), "oracle", op)
    truth, plain = (truth_of(op, oracle, as_torch(case, kind)) for kind in ("float64", arithmetic))
    worst, worst_name = Measured(0.0, 0.0, 0.0, ()), ""
    for name in case.outputs:
        if name not in truth:
            raise UserError(
                f"Op {op.name}: {inspect.getfile(oracle)} is asked for the output {name!r}, but "
                f"its oracle returns {', '.join(truth) or 'nothing'}; the two must name the same."
            )
        wanted = truth[name].numpy()
        if wanted.ndim != got[name].ndim or any(
            n > most for n, most in zip(wanted.shape, got[name].shape, strict=True)
        ):
            raise UserError(
                f"Op {op.name}: the oracle in {inspect.getfile(oracle)} returns {name!r} of shape "
                f"{list(wanted.shape)}, but make has it of {list(got[name].shape)}."
            )
        live = tuple(slice(0, size) for size in wanted.shape)
        found = _measure(got[name][live], wanted, plain[name].double().numpy())
        if not found.ok and arithmetic == "float32":
            ordered = _in_order(op, oracle, case)[name].double().numpy()
            again = _measure(got[name][live], wanted, ordered)
            found = max(found, again, key=lambda measured: measured.allowed)
        if not found.ok or (worst.ok and found.error >= worst.error):
            worst, worst_name = found, name
    same = None
    if form != "standalone":
        same = all(_same_bits(got[name], standalone[name]) for name in case.outputs)
    detail = f"worst {worst_name}{list(worst.where)}"
    if same is False:
        detail += f"; {_first_difference(case, got, standalone)}"
    seconds = time.perf_counter() - started
    return Verdict(
        op.name, machine, form, shape, dtype, worst.error, worst.allowed, same, detail, seconds
    )


def _in_order(op: Op, oracle: Callable[[Any], Mapping[str, Any]], case: Case) -> Mapping[str, Any]:
    """The oracle's outputs in float32, with sums one term after the other."""
    from mkport.testing.in_order import InOrder

    with InOrder():
        return truth_of(op, oracle, as_torch(case, "float32"))


def as_torch(case: Case, kind: str) -> SimpleNamespace:
    """The case's inputs as torch tensors: floats in `kind` precision, integers as they are.

    Raises UserError where PyTorch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError(NO_TORCH) from error
    tensors: dict[str, Any] = dict(case.values)
    for name, array in case.arrays.items():
        if array.dtype == np.int32:
            tensors[name] = torch.from_numpy(array.astype(np.int64))
        else:
            wide = from_bf16(array) if array.dtype == np.uint16 else array
            tensors[name] = torch.from_numpy(wide).to(getattr(torch, kind))
    return SimpleNamespace(**tensors)


def _measure(got: np.ndarray, wanted: np.ndarray, plain: np.ndarray) -> Measured:
    if got.dtype == np.int32:  # ids and counts are exact
        return measure(got, wanted.astype(np.float64), wanted, 0.0)
    eps = EPS[str(got.dtype)]
    return measure(from_bf16(got) if got.dtype == np.uint16 else got, wanted, plain, eps)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _first_difference(case: Case, got: Outputs, standalone: Outputs) -> str:
    for name in case.outputs:
        ours, theirs = got[name], standalone[name]
        differs = np.flatnonzero(ours.view(np.uint8) != theirs.view(np.uint8))
        if differs.size:
            where = np.unravel_index(int(differs[0]) // ours.itemsize, ours.shape)
            place = tuple(int(i) for i in where)
            return f"bits differ first at {name}{list(place)}: {ours[place]} and {theirs[place]}"
    return "bits are equal"
