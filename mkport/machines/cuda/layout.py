"""How a GPU worker's shared memory is laid out, for the GPU and for the host build."""

from dataclasses import dataclass

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import CONSTANTS, SIDE, constants
from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.plan import Schedule

NODE = RECORD["node"].first
NORM = ("norm_w", "norm_eps")  # what rows may go through before they are staged
STAGE_ALIGN = CONSTANTS["STAGE_ALIGN"]
STAGE_BYTES = 16 * (2048 * 2 + 16)  # 16 rows of 2048 bfloat16: four chunks lie beside them
PAIRED = 85  # per cent of neighbouring stage buffers that must fit together


@dataclass(frozen=True)
class Shared:
    """Dynamic shared memory of one worker, in bytes: stage buffers that records share by turns, the
    ring, and what the blocks of ported kernels had."""

    stage: int
    ring: int
    block: int
    fixed: int = CONSTANTS["FIXED_BYTES"]  # barriers, boxes, join slots, before all that

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.fixed + self.stage + self.ring + self.block


def stage_bytes(available: int) -> int:
    """What a product's inputs may take, in a step of more than 8 rows, of a block that may have
    `available` bytes of shared memory: `StepShape.stage`. A ring of two chunks fits beside it."""
    fixed = constants(SIDE + 1)["FIXED_BYTES"]
    return max(1, min(STAGE_BYTES, available - fixed - 2 * CONSTANTS["CHUNK_BYTES"]))


def shared_of(program: CudaProgram, schedule: Schedule, available: int) -> Shared:
    """The layout for a block that may have `available` bytes of shared memory.

    Nearly all records that follow each other can be staged at once, and the ring has the rest;
    where that leaves no two chunks, one stage buffer must do. Raises UserError when not even one
    chunk fits beside that, though more than ported kernels may run, or a node has more token rows
    than the program was composed for or than its tiles can take.
    """
    nodes = schedule.graph.nodes
    _check_rows(program, schedule)
    fixed = constants(program.rows)["FIXED_BYTES"]
    block = _aligned(max((node.op.block_shared(node.bound) for node in nodes), default=0))
    needs = stage_needs(program, schedule)
    pairs = sorted(staged_together(needs, schedule))
    most = pairs[(len(pairs) - 1) * PAIRED // 100] if pairs else 0
    room = (available - fixed - block) // STAGE_ALIGN * STAGE_ALIGN
    alone = max(needs, default=0)
    stage = _before_ring(max(most, alone), fixed)
    if room - stage < 2 * CONSTANTS["CHUNK_BYTES"]:
        stage = _before_ring(alone, fixed)
    ring = room - stage
    ports = all(not op.args or f"struct {op.name} : MkPort" in program.source for op in program.ops)
    if ring < (0 if ports else CONSTANTS["CHUNK_BYTES"]):
        holds = "Nothing is staged"
        if alone:
            holds = f"{nodes[needs.index(alone)].label} stages {alone} bytes"
        ported = f", ported kernels' blocks had {block}" if block else ""
        raise UserError(
            f"{holds}{ported}, and a ring of one chunk does not fit beside that: a block of this "
            f"device has {available} bytes of shared memory. Use fewer rows in a step, or a device "
            "with more."
        )
    return Shared(stage, ring, block, fixed)


def _check_rows(program: CudaProgram, schedule: Schedule) -> None:
    groups = constants(program.rows)["GROUPS"]
    for node in schedule.graph.nodes:
        rows = node.op.rows(node.bound)
        if rows > program.rows:
            raise UserError(
                f"{node.label} has {rows} token rows, but the program was composed for "
                f"{program.rows}; compose it with rows={rows}."
            )
        wide = program.rows > SIDE and node.args.get("most", SIDE) != SIDE
        if node.op.handovers(node.bound) > groups or wide:
            raise UserError(
                f"{node.label} takes more token rows at a time than a worker has room for; build "
                "the step for this machine: give its StepShape the bytes to `stage`."
            )


def _before_ring(stage: int, fixed: int) -> int:
    """At least so many bytes of stage buffers, behind which chunks lie as the ring wants them."""
    align = CONSTANTS["CHUNK_ALIGN"]
    return -(-(fixed + stage) // align) * align - fixed


def _aligned(nbytes: int) -> int:
    return -(-nbytes // STAGE_ALIGN) * STAGE_ALIGN


def stage_needs(program: CudaProgram, schedule: Schedule) -> list[int]:
    """Bytes of a stage buffer of each node, [nodes]."""
    nodes = schedule.graph.nodes
    return [_aligned(node.op.shared(node.bound, program.rows)) for node in nodes]


def staged_together(needs: list[int], schedule: Schedule) -> list[int]:
    """Bytes of each two stage buffers that a worker has one behind the other, [pairs]; `needs`
    [nodes] are the bytes of each node's."""
    same = same_inputs(schedule)
    pairs: list[int] = []
    for records in schedule.lists:
        before, last, last_lot = 0, -1, 0
        for node, lot in zip(records[:, NODE].tolist(), lots_of(records, schedule), strict=True):
            if needs[node] and ((last, node) not in same or lot != last_lot):
                pairs.append(before + needs[node])
                before = needs[node]
            last, last_lot = node, lot
    return pairs


def lots_of(records: np.ndarray, schedule: Schedule) -> list[int]:
    """Which of its node's lots each of a worker's `records` [records, RECORD_WORDS] has tiles of,
    [records], where several nodes may stage the same: the block of tokens."""
    sizes = []
    for node in schedule.graph.nodes:
        runs = node.op.lots(node.bound) if node.op.lots and node.op.stages else ()
        sizes.append(runs[0][2] if runs else max(node.tiles, 1))
    first = records[:, RECORD["run"].first]
    lots: list[int] = (first // np.array(sizes)[records[:, NODE]]).tolist()
    return lots


def same_inputs(schedule: Schedule) -> set[tuple[int, int]]:
    """The pairs of nodes that stage the same rows, which nobody writes in between."""
    nodes = schedule.graph.nodes
    written: dict[str, int] = {}  # by tensor: the last node that writes it
    holders: dict[tuple, list[int]] = {}  # by what is staged: nodes since it was written
    found: set[tuple[int, int]] = set()
    for number, node in enumerate(nodes):
        if node.op.stages:
            name = node.args[node.op.stages]
            key = (name, *(node.args.get(arg) for arg in ("count", "k", "block", *NORM)))
            since = [n for n in holders.get(key, []) if n > written.get(name, -1)]
            if node.args.get("norm_y") is None:  # who leaves them elsewhere too must bring them
                found |= {(n, number) for n in since}
            holders[key] = [*since, number]
        for access in node.accesses:
            if access.mode in ("write", "update"):
                written[node.args[access.arg]] = number
    return found
