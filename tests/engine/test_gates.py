"""The gates of a decoder on the CUDA source can go red: a fault is planted for each in what is
composed, and the gate's own test must fail on it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.engine import target as target_module
from mkport.errors import UserError
from mkport.machines.host.build import compiler
from tests.engine import test_decoder_device as gates

STORE = "mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);"  # of every product
FAULTS: dict[str, tuple[str, Callable[[Path, str], None]]] = {
    "a wrong sum": (
        "if (column == 3) y.v[i] = mk_add(y.v[i], 3.0f);",
        lambda written, on: gates.test_float32_tokens_are_the_cpu_machine_s(written, "llama", on),
    ),
    "a row that knows its company": (
        "if (s.notes[0] > 1) y.v[i] = mk_mul(y.v[i], 1.5f);",
        lambda written, on: gates.test_a_row_is_the_same_alone_in_a_batch_and_step_by_step(
            written, "bf16", on
        ),
    ),
    "memory read before it is written": (
        "y.v[i] = mk_add(y.v[i], mk_mul(0.0f, mk_load_coherent(a.y + at + int64_t(i) * a.n)));",
        gates.test_poisoned_scratch_changes_nothing_and_a_chain_may_be_left,
    ),
    "a sum that depends on the time": (
        "if (mk_now_ns() % 5 == 0) y.v[i] = mk_mul(y.v[i], 1.01f);",
        gates.test_many_runs_give_the_same_bits,
    ),
}

written = gates.written


def faulty(planted: str, ops: list, weights: str, cache: str, *rest: object) -> CudaProgram:
    """The program with a line before every product's store."""
    program = compose_cuda(ops, weights, cache)
    assert program.source.count(STORE) == 1
    source = program.source.replace(STORE, f"{planted}\n{STORE}")
    return CudaProgram(program.ops, weights, cache, source, program.rows)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("name", [*FAULTS, None])
def test_a_gate_goes_red_on_its_fault_alone(
    name: str | None, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = FAULTS[name][0] if name else ""
    monkeypatch.setattr(target_module, "compose_cuda", partial(faulty, planted))
    for fault, (_, gate) in FAULTS.items():
        if fault == name:
            with pytest.raises((AssertionError, UserError)):  # a token -1 is refused
                gate(written, "host")
        elif name is None:
            gate(written, "host")
