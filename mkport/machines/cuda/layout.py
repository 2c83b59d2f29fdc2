"""How a GPU worker's shared memory, its records and its error block are laid out.

The constants of the runtime are written here once and generated into every composed file; the
launchers (GPU and host build) take the same numbers from here.
"""

from dataclasses import dataclass

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import (
    CONSTANTS,
    COUNTER_STRIDE,
    ROLES,
    WAIT_KINDS,
)
from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.plan import Schedule, signal_of


@dataclass(frozen=True)
class Shared:
    """Dynamic shared memory of one worker: two stage buffers of `stage` bytes, ring slots, and
    behind them `block` bytes that ported kernels' blocks share."""

    stage: int
    slots: int
    block: int = 0

    @property
    def nbytes(self) -> int:
        """All of it."""
        fixed = CONSTANTS["FIXED_BYTES"]
        return fixed + 2 * self.stage + self.slots * CONSTANTS["SLOT_BYTES"] + self.block


def shared_of(program: CudaProgram, schedule: Schedule, available: int) -> Shared:
    """The layout for a block that may have `available` bytes of shared memory.

    Raises UserError when the stage buffers leave no room for a ring of two slots, or a node has
    more token rows than the program was composed for.
    """
    stage = 0
    block = max((node.op.block_shared(node.bound) for node in schedule.graph.nodes), default=0)
    block = -(-block // 128) * 128
    available -= block
    if available < CONSTANTS["FIXED_BYTES"] + 2 * CONSTANTS["SLOT_BYTES"]:
        raise UserError(
            f"A ported kernel has {block} bytes of shared memory beside a ring of two slots; a "
            f"block of this device has {available + block} bytes. Port it with less."
        )
    for node in schedule.graph.nodes:
        need = node.op.shared(node.bound, program.rows)
        if node.op.rows(node.bound) > program.rows:
            raise UserError(
                f"{node.label} has {node.op.rows(node.bound)} token rows, but the program was "
                f"composed for {program.rows}; compose it with rows={node.op.rows(node.bound)}."
            )
        if 2 * need + CONSTANTS["FIXED_BYTES"] + 2 * CONSTANTS["SLOT_BYTES"] > available:
            raise UserError(
                f"{node.label} stages {need} bytes of inputs, twice, beside a ring of two slots; "
                f"a block of this device has {available} bytes of shared memory. Use fewer rows "
                "in a step, or a device with more."
            )
        stage = max(stage, need)
    stage = -(-stage // 128) * 128
    room = (available - CONSTANTS["FIXED_BYTES"] - 2 * stage) // CONSTANTS["SLOT_BYTES"]
    return Shared(stage, min(room, CONSTANTS["MAX_SLOTS"]), block)


def check_ops(program: CudaProgram, schedule: Schedule) -> None:
    """Raises ValueError when the schedule was not dealt for this program's ops, in their order."""
    opcodes = [op.name for op in schedule.graph.ops]
    if opcodes != [op.name for op in program.ops]:
        raise ValueError(f"the schedule's ops {opcodes} are not the program's")


def flatten(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """All records, int32 [records, RECORD_WORDS], and each worker's first, int32 [workers + 1]."""
    firsts = np.zeros(schedule.workers + 1, np.int32)
    firsts[1:] = np.cumsum([len(records) for records in schedule.lists])
    return np.ascontiguousarray(np.concatenate(schedule.lists)), firsts


def error_block(schedule: Schedule) -> tuple[int, int]:
    """Its shape: a row for the abort flag, then one for each worker and role."""
    return 1 + schedule.workers * len(ROLES), COUNTER_STRIDE


def counters_after(schedule: Schedule, steps: int) -> np.ndarray:
    """What the counters hold after `steps` steps: int32 [counters, COUNTER_STRIDE]."""
    counters = np.zeros((max(schedule.counters, 1), COUNTER_STRIDE), np.int32)
    totals = np.zeros(len(counters), np.int64)
    for records in schedule.lists:
        for counter, amount in map(signal_of, records):
            if counter >= 0:
                totals[counter] += amount
    counters[:, 0] = (totals * steps).astype(np.int32)
    return counters


def frontier(schedule: Schedule, errors: np.ndarray) -> str:
    """Who waits for what, have and need, in words, from an aborted step's error block.

    Workers whose stagers wait for counters come first: they are the cause of the other waits.
    """
    head = "The step was aborted: a wait ran past its limit. Where the workers were:"
    causes: list[str] = []
    others: list[str] = []
    for row in range(1, len(errors)):
        kind, index, which, seen, wanted = (int(v) for v in errors[row, :5])
        worker, role = divmod(row - 1, len(ROLES))
        if not kind:
            continue
        place = schedule.describe(worker, index)
        if WAIT_KINDS[kind] == "counter":
            behind = int(np.int32(np.uint32(wanted & 0xFFFFFFFF) - np.uint32(seen & 0xFFFFFFFF)))
            causes.append(
                f"  {place} waits for counter {which} (signalled by "
                f"{_signaller(schedule, which)}): has {seen}, needs {wanted}, {behind} missing"
            )
        else:
            others.append(f"  {place}: the {ROLES[role]} role waits for {WAIT_KINDS[kind]} {which}")
    return "\n".join([head, *causes, *others])


def _signaller(schedule: Schedule, counter: int) -> str:
    for records in schedule.lists:
        for record in records:
            if signal_of(record)[0] == counter:
                return schedule.graph.nodes[int(record[RECORD["node"].first])].label
    return "nobody"
