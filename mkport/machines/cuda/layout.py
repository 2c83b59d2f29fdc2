"""How a GPU worker's shared memory, its records and its error block are laid out.

The constants of the runtime are written here once and generated into every composed file; the
launchers (GPU and host build) take the same numbers from here.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import gcd

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import (
    BLOCK_BYTES,
    BOX_ROWS,
    CONSTANTS,
    COUNTER_STRIDE,
    ROLES,
    ROW_BYTES,
    SIDE,
    WAIT_KINDS,
    WRITTEN,
    constants,
)
from mkport.compose.fixed import check_fixed
from mkport.declare import DTYPE_BYTES, RECORD, TensorSpec
from mkport.errors import UserError
from mkport.plan import Schedule, is_flagged, signal_of
from mkport.plan.depend import awaits

NODE = RECORD["node"].first
NORM = ("norm_w", "norm_eps")  # what rows may go through before they are staged
BOXES = CONSTANTS["BOXES"]
STAGE_ALIGN = CONSTANTS["STAGE_ALIGN"]
STAGE_BYTES = 16 * (2048 * 2 + 16)  # 16 rows of 2048 bfloat16: four chunks lie beside them
UNWRITTEN = -2  # a word of a flagged tensor, as int32, until it is written
MOST_COPIED = 64  # keys, or values, by one copy
PAIRED = 85  # per cent of neighbouring stage buffers that must fit together


@dataclass(frozen=True)
class Matrix:
    """Weights or a cache as the copy engine sees them: rows, in blocks of 128 bytes."""

    rows: int
    row_bytes: int
    blocks: int  # of a row that a copy brings: a slice of k
    copied: int  # rows that a copy brings: of a cache, all of one page


def matrices(schedule: Schedule) -> dict[str, Matrix]:
    """The tensors of weights and caches that are copied some rows at a time; others, whose rows are
    no whole blocks, come in pieces."""
    graph = schedule.graph
    kinds = {
        node.args[arg.name]: arg.dtype
        for node in graph.nodes
        for arg in node.op.tensors
        if arg.dtype in ("weight", "kv")
    }
    specs = graph.tensors.items()
    found = {name: _matrix(spec, kinds[name]) for name, spec in specs if name in kinds}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def _matrix(spec: TensorSpec, kind: str) -> Matrix | None:
    row_bytes = spec.shape[-1] * DTYPE_BYTES[spec.dtype] if len(spec.shape) > 1 else 0
    if not row_bytes or row_bytes % BLOCK_BYTES or 0 in spec.shape:
        return None
    rows = int(np.prod(spec.shape[:-1], dtype=np.int64))
    copied = gcd(spec.shape[-2], MOST_COPIED) if kind == "kv" else BOX_ROWS
    return Matrix(rows, row_bytes, min(row_bytes, ROW_BYTES) // BLOCK_BYTES, copied)


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
    needs = _needs(program, schedule)
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


def _needs(program: CudaProgram, schedule: Schedule) -> list[int]:
    """Bytes of a stage buffer of each node."""
    nodes = schedule.graph.nodes
    return [_aligned(node.op.shared(node.bound, program.rows)) for node in nodes]


def staged_together(needs: list[int], schedule: Schedule) -> list[int]:
    """Bytes of each two stage buffers that a worker has one behind the other, [pairs]; `needs`
    [nodes] are the bytes of each node's."""
    same = _same_inputs(schedule)
    pairs: list[int] = []
    for records in schedule.lists:
        before, last, last_lot = 0, -1, 0
        for node, lot in zip(records[:, NODE].tolist(), _lots(records, schedule), strict=True):
            if needs[node] and ((last, node) not in same or lot != last_lot):
                pairs.append(before + needs[node])
                before = needs[node]
            last, last_lot = node, lot
    return pairs


def _lots(records: np.ndarray, schedule: Schedule) -> list[int]:
    """Which of its node's lots each record has tiles of, where several nodes may stage the same:
    the block of tokens."""
    sizes = []
    for node in schedule.graph.nodes:
        lots = node.op.lots(node.bound) if node.op.lots and node.op.stages else ()
        sizes.append(lots[0][2] if lots else max(node.tiles, 1))
    first = records[:, RECORD["run"].first]
    lots_of: list[int] = (first // np.array(sizes)[records[:, NODE]]).tolist()
    return lots_of


def _same_inputs(schedule: Schedule) -> set[tuple[int, int]]:
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


def flatten(
    program: CudaProgram, schedule: Schedule, shared: Shared
) -> tuple[np.ndarray, np.ndarray]:
    """All workers' records one behind the other, int32 [records, RECORD_WORDS], and where each
    worker's begin, int32 [workers + 1]. Their flags say where their stage buffers lie."""
    firsts = np.zeros(schedule.workers + 1, np.int32)
    firsts[1:] = np.cumsum([len(records) for records in schedule.lists])
    records = np.concatenate(schedule.lists)
    needs, same = _needs(program, schedule), _same_inputs(schedule)
    written, flagged_inputs = _addresses_written(schedule), _flagged_inputs(schedule)
    for first, end in zip(firsts[:-1], firsts[1:], strict=True):
        mine = records[first:end]
        numbers = mine[:, NODE].copy()  # the flags take their place
        nodes = numbers.tolist()
        staged = _Staged(nodes, mine[:, RECORD["run"].first + 2].tolist(), _lots(mine, schedule))
        flags = _place(staged, needs, same, shared.stage)
        known = _known(nodes, schedule, written)
        mine[:, RECORD["flags"].first] = np.array(flags, np.int32) | known
        if program.flagged:
            mine[:, RECORD["flags"].first] |= flagged_inputs[numbers]
        if program.rows > SIDE:
            mine[:, RECORD["flags"].first] |= _wide(numbers, schedule)
    return np.ascontiguousarray(records), firsts


def _flagged_inputs(schedule: Schedule) -> np.ndarray:
    """The flag of each node all of whose awaited arguments are flagged: int32 [nodes]."""
    tensors = schedule.graph.tensors
    flags = np.zeros(len(schedule.graph.nodes), np.int32)
    for number, node in enumerate(schedule.graph.nodes):
        names = [node.args[arg] for arg in node.op.awaits]
        if all(tensors[name].kind == "flagged" for name in names if name is not None):
            flags[number] = CONSTANTS["FLAG_FLAGGED"]
    return flags


def _wide(nodes: np.ndarray, schedule: Schedule) -> np.ndarray:
    """The flags that only programs for many rows know, of a worker's records, whose `nodes` are
    int32 [records]: likewise [records]."""
    groups = np.array([node.op.handovers(node.bound) for node in schedule.graph.nodes], np.int32)
    again = np.zeros(len(nodes), np.int32)
    again[1:] = np.where(nodes[1:] == nodes[:-1], CONSTANTS["FLAG_AGAIN"], 0)
    return (groups[nodes] - 1) * CONSTANTS["FLAG_GROUPS"] | again


def _known(nodes: list[int], schedule: Schedule, written: dict[str, list[int]]) -> np.ndarray:
    """A worker's records whose bytes' addresses its loader has waited for before another one: their
    flag, int32 [records], else 0."""
    graph = schedule.graph.nodes
    flags = np.zeros(len(nodes), np.int32)
    waited: dict[str, int] = {}  # by tensor of addresses: the last node before whose record
    for r, number in enumerate(nodes):
        node = graph[number]
        if not node.op.addresses:
            continue
        name = node.args[node.op.addresses]
        before = waited.get(name, -1)
        if before >= 0 and bisect_right(written[name], before) == bisect_left(
            written[name], number
        ):
            flags[r] = CONSTANTS["FLAG_KNOWN"]
        waited[name] = number
    return flags


def _addresses_written(schedule: Schedule) -> dict[str, list[int]]:
    """By tensor that holds addresses: the nodes that write it, ascending."""
    nodes = schedule.graph.nodes
    names = {node.args[node.op.addresses] for node in nodes if node.op.addresses}
    written: dict[str, list[int]] = {name: [] for name in names}
    for number, node in enumerate(nodes) if names else ():
        for name in {node.args[a.arg] for a in node.accesses if a.mode in ("write", "update")}:
            if name in written:
                written[name].append(number)
    return written


@dataclass(frozen=True)
class _Staged:
    """What a worker's records stage, [records] each: their nodes, how many tiles, of which lot."""

    nodes: list[int]
    tiles: list[int]
    lots: list[int]

    def alike(self, r: int) -> bool:
        """Whether record r's inputs are those of the one before it, if its node's are."""
        return self.tiles[r] > 0 and self.tiles[r - 1] > 0 and self.lots[r] == self.lots[r - 1]


def _place(staged: _Staged, needs: list[int], same: set[tuple[int, int]], stage: int) -> list[int]:
    """The flags of a worker's records: each buffer lies at the end of the stage memory whose last
    user is longer ago."""
    flags: list[int] = []
    used: dict[tuple[int, int], int] = {}  # by (begin, end): the last record that reads it
    last, place = -1, (0, 0)
    for r, node in enumerate(staged.nodes):
        need = needs[node]
        if not need:
            flags.append(0)
        elif (last, node) in same and staged.alike(r):
            used[place] = r
            flags.append(place[0] // STAGE_ALIGN | CONSTANTS["FLAG_STAGED"])
        else:
            ends, users = (0, stage - need), [-BOXES, -BOXES]
            for (begin, end), user in used.items():
                for i in (0, 1):
                    if user > users[i] and begin < ends[i] + need and end > ends[i]:
                        users[i] = user
            chosen = int(users[1] < users[0])
            begin, back = ends[chosen], r - users[chosen]
            flags.append(
                begin // STAGE_ALIGN | (back * CONSTANTS["FLAG_BACK"] if back < BOXES else 0)
            )
            place = begin, begin + need
            used[place] = r
            if len(used) > BOXES:
                used = {p: u for p, u in used.items() if r - u < BOXES}
        last = node
    return flags


def check_ops(program: CudaProgram, schedule: Schedule) -> None:
    """Raises ValueError when the schedule was not dealt for this program's ops, in their order, or
    a node has other arguments than those that are the program's constants."""
    opcodes = [op.name for op in schedule.graph.ops]
    if opcodes != [op.name for op in program.ops]:
        raise ValueError(f"the schedule's ops {opcodes} are not the program's")
    check_fixed(program.fixed, schedule.graph.nodes)
    if is_flagged(schedule.graph) and not program.flagged:
        raise ValueError(
            "the schedule has flagged tensors, which the program was not composed to await; "
            "compose it with flagged=True."
        )


def flagged(schedule: Schedule) -> list[str]:
    """The flagged tensors, whose words are `UNWRITTEN` when a step begins."""
    return [name for name, spec in schedule.graph.tensors.items() if spec.kind == "flagged"]


def error_block(schedule: Schedule) -> tuple[int, int]:
    """The shape of an error block: a row for the abort flag, then one for each worker and role."""
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
    """Who waits for what, have and need, in words, from an aborted step's error block: `errors`
    int32 in the shape of `error_block`.

    Waits for counters and for flagged words come first, in program order: the first of them is the
    cause of all others.
    """
    head = "The step was aborted: a wait ran past its limit. Where the workers were:"
    causes: list[tuple[int, str]] = []  # with the node that waits
    others: list[str] = []
    for row in range(1, len(errors)):
        kind, index, which, seen, wanted = (int(v) for v in errors[row, :5])
        worker, role = divmod(row - 1, len(ROLES))
        if not kind:
            continue
        place, number = schedule.describe(worker, index), int(schedule.lists[worker][index][NODE])
        if WAIT_KINDS[kind] == "counter":
            behind = int(np.int32(np.uint32(wanted & 0xFFFFFFFF) - np.uint32(seen & 0xFFFFFFFF)))
            text = (
                f"  {place} waits for counter {which} (signalled by "
                f"{_signaller(schedule, which)}): has {seen}, needs {wanted}, {behind} missing"
            )
            causes.append((number, text))
        elif WAIT_KINDS[kind] == WRITTEN:
            names = sorted(awaits(schedule.graph, schedule.graph.nodes[number]))
            causes += [
                (number, f"  {place} waits for words of {n}, which {_writer(schedule, n)} writes")
                for n in names
            ]
        else:
            others.append(f"  {place}: the {ROLES[role]} role waits for {WAIT_KINDS[kind]} {which}")
    told = [text for _, text in sorted(causes, key=lambda cause: cause[0])]
    return "\n".join([head, *told, *others])


def _writer(schedule: Schedule, name: str) -> str:
    """The node that writes a flagged tensor."""
    for node in schedule.graph.nodes:
        if any(a.mode == "write" and node.args[a.arg] == name for a in node.accesses):
            return node.label
    return "nobody"


def _signaller(schedule: Schedule, counter: int) -> str:
    for records in schedule.lists:
        for record in records:
            if signal_of(record)[0] == counter:
                return schedule.graph.nodes[int(record[RECORD["node"].first])].label
    return "nobody"
