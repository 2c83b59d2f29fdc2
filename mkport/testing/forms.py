"""Runs one case through one form of an op: standalone, ported, solo.

Each form gets a copy of the case and returns its outputs. The step form needs a whole model's
graph around the op and lives in `step.py`.
"""

from collections.abc import Sequence

import numpy as np

from mkport.compose import Program
from mkport.declare import RECORD, RECORD_WORDS, Op
from mkport.declare.case import WIDTHS, Case
from mkport.declare.record import NO_COUNTER
from mkport.declare.table import Kind
from mkport.errors import UserError
from mkport.machines.cpu.build import build
from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.cpu.memory import POISON, allocate
from mkport.plan import Graph, Schedule, deal
from mkport.testing.blame import blamed, part_of
from mkport.testing.parts import kernel_of, load_part
from mkport.verify import verify

Outputs = dict[str, np.ndarray]

BEHIND, UNTOUCHED = 1 << 16, 0x55AA55AA  # words behind an arena, and what they hold


def run_standalone(op: Op, case: Case) -> Outputs:
    """The ordinary kernel, called as its author would."""
    case = case.copy()
    oracle = load_part(op, "oracle")
    call = part_of(oracle, "call_standalone", op)
    with blamed(op, "call_standalone"):
        call(kernel_of(load_part(op, "standalone"), op), case.a)
    return {name: case.arrays[name] for name in case.outputs}


def run_ported(op: Op, case: Case, program: Program) -> Outputs:
    """The body in the convention: one record with every tile, no wait, no signal, one thread.

    Returns the case's outputs by argument name, in their own shapes and storage types. Raises
    ValueError when the program was composed without the op, UserError when the body writes behind
    the arena that its declaration asks for.
    """
    graph, arrays = graph_of(op, case, program.ops)
    node = graph.nodes[0]
    record = np.zeros(RECORD_WORDS, np.int32)
    record[RECORD["waits"].first] = record[RECORD["signal"].first] = NO_COUNTER
    record[RECORD["op"].first] = program.ops.index(op)
    run, args = RECORD["run"], RECORD["args"]
    record[run.first : run.end] = (0, 1, node.tiles)
    words = op.encode(node.args, graph.tensor_ids())
    record[args.first : args.first + len(words)] = words
    table = np.array([arrays[name].ctypes.data for name in graph.tensors], np.int64)
    size = max(op.arena(node.bound), 64) // 4
    arena = allocate("f32", (size + BEHIND,))
    arena[:size] = np.nan
    behind = arena[size:].view(np.int32)
    behind[...] = UNTOUCHED
    addresses = (record.ctypes.data, 1, table.ctypes.data, 0, 0, arena.ctypes.data)
    build(program).run_worker(0, *addresses, 0, 0, 0, 0)
    if touched := np.flatnonzero(behind != UNTOUCHED).tolist():
        raise UserError(
            f"The CPU body of {op.name} writes to byte {4 * (size + touched[-1])} of its arena, "
            f"which has {4 * size}: its declaration's `arena` asks for too little, or an offset in "
            "its task is wrong."
        )
    return _outputs(case, node.args, arrays)


def solo_schedule(op: Op, case: Case, program: Program, workers: int) -> tuple[Schedule, Outputs]:
    """A megakernel of this op alone: its verified schedule and its tensors."""
    graph, arrays = graph_of(op, case, program.ops)
    schedule = deal(graph, workers)
    verify(schedule)
    return schedule, arrays


def run_solo(op: Op, case: Case, program: Program, workers: int) -> Outputs:
    """A megakernel of this op alone, on `workers` threads; what holds nothing starts as NaN."""
    schedule, arrays = solo_schedule(op, case, program, workers)
    with CpuMachine(program, schedule, arrays) as machine:
        machine.poison()
        machine.step()
    return _outputs(case, schedule.graph.nodes[0].args, arrays)


def graph_of(op: Op, case: Case, ops: Sequence[Op]) -> tuple[Graph, Outputs]:
    """A graph with the one node, for a program of `ops`, and its tensors: copies of the case's.

    Arrays that are one in the case are one tensor.
    """
    graph = Graph(ops)
    case = case.copy()
    arrays: Outputs = {}
    names: dict[int, str] = {}
    written = {id(case.arrays[name]) for name in case.outputs}
    args: dict[str, str | int | float] = dict(case.values)
    for arg in op.tensors:
        given = case.arrays.get(arg.name)
        if given is None:
            continue
        if id(given) not in names:
            names[id(given)] = arg.name
            arrays[arg.name] = allocate(WIDTHS[str(given.dtype)], given.shape)
            arrays[arg.name][...] = given
            logical = case.logical.get(arg.name, ())
            kind: Kind = "weight" if arg.dtype == "weight" else "input"
            if id(given) in written:  # old contents, where there are any, outlive a poisoning
                kind = "output" if _is_poison(given) else "state"
            graph.tensor(arg.name, WIDTHS[str(given.dtype)], given.shape, kind, logical)
        args[arg.name] = names[id(given)]
    graph.add(op, op.name, **args)
    return graph, arrays


def _is_poison(array: np.ndarray) -> bool:
    return array.tobytes() == np.full_like(array, POISON[WIDTHS[str(array.dtype)]]).tobytes()


def _outputs(case: Case, args: dict, arrays: Outputs) -> Outputs:
    return {name: arrays[args[name]] for name in case.outputs}
