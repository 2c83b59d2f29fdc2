"""A GPU's schedule as its workers read it: all records, with flags that say what a worker need not
find out itself."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import CONSTANTS, COUNTER_STRIDE, SIDE
from mkport.compose.fixed import check_fixed
from mkport.declare import RECORD
from mkport.machines.cuda.layout import (
    NODE,
    STAGE_ALIGN,
    Shared,
    lots_of,
    same_inputs,
    stage_needs,
)
from mkport.plan import Schedule, is_flagged, signal_of

BOXES = CONSTANTS["BOXES"]
UNWRITTEN = -2  # a word of a flagged tensor, as int32, until it is written


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


def flagged_names(schedule: Schedule) -> list[str]:
    """The flagged tensors, whose words are `UNWRITTEN` when a step begins."""
    return [name for name, spec in schedule.graph.tensors.items() if spec.kind == "flagged"]


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


def flatten(
    program: CudaProgram, schedule: Schedule, shared: Shared
) -> tuple[np.ndarray, np.ndarray]:
    """All workers' records one behind the other, int32 [records, RECORD_WORDS], and where each
    worker's begin, int32 [workers + 1]. Their flags say where their stage buffers lie."""
    firsts = np.zeros(schedule.workers + 1, np.int32)
    firsts[1:] = np.cumsum([len(records) for records in schedule.lists])
    records = np.concatenate(schedule.lists)
    needs, same = stage_needs(program, schedule), same_inputs(schedule)
    written, flagged_inputs = _addresses_written(schedule), _flagged_inputs(schedule)
    for first, end in zip(firsts[:-1], firsts[1:], strict=True):
        mine = records[first:end]
        numbers = mine[:, NODE].copy()  # the flags take their place
        nodes = numbers.tolist()
        staged = _Staged(nodes, mine[:, RECORD["run"].first + 2].tolist(), lots_of(mine, schedule))
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
