"""Checks the CUDA source of an op, on the GPU ("cuda") or in the host build ("host")."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import Op
from mkport.testing.blame import part_of
from mkport.testing.check import Form, Verdict, case_of, judge
from mkport.testing.cuda_forms import run_solo, run_standalone
from mkport.testing.parts import load_part


def check_cuda(
    op: Op,
    machine: str,
    form: Form,
    shapes: Mapping[str, Mapping[str, Any]] | None,
    *,
    dtype: str,
    workers: int,
    seed: int,
    program: CudaProgram | None = None,
) -> list[Verdict]:
    """One verdict a shape; arguments and errors as for `check_op`.

    Where weights or cache are bfloat16 the tensor cores take bfloat16 activations too, so the law
    compares with PyTorch in bfloat16. In the host build `seed` also chooses the order that
    workers are stepped in.
    """
    if form == "step":
        from mkport.testing.step import check_step

        return check_step(op, machine, dtype=dtype, workers=workers, seed=seed)
    oracle = load_part(op, "oracle")
    program = None if form == "standalone" else program or compose_cuda([op], dtype, dtype)
    verdicts = []
    for name, shape in (shapes or part_of(oracle, "SHAPES", op)).items():
        case = case_of(op, oracle, name, shape, dtype, seed)
        started = time.perf_counter()
        standalone = run_standalone(op, case, machine, seed)
        got = standalone
        if program is not None:  # the ported form is one worker with every tile
            count = 1 if form == "ported" else workers
            got = run_solo(op, case, program, machine, count, seed)
        rounded = any(array.dtype == np.uint16 for array in case.arrays.values())
        arithmetic = "bfloat16" if rounded else "float32"
        verdicts.append(
            judge(op, form, name, dtype, case, got, standalone, started, machine, arithmetic)
        )
    return verdicts
