"""A machine of one thread: workers take turns in a seeded random order, tile by tile.

It exists to try many interleavings of one schedule and compare their bits. It follows the protocol
of the real machines (ordered lists, waits on counters that only grow, one signal at a record's
end), but runs whatever bodies it is given and is not meant to be fast.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from mkport.declare import RECORD
from mkport.plan.graph import Node
from mkport.plan.schedule import Schedule, run_of, signal_of, waits_of

Execute = Callable[[Node, int], None]  # runs one tile of a node
NO_TILE = -1


@dataclass(frozen=True)
class Turn:
    """One move of one worker: a tile, or NO_TILE for a record that has none."""

    step: int
    worker: int
    record: int  # in the worker's list
    tile: int


@dataclass(frozen=True)
class Waiting:
    """A worker that cannot move: it has seen `seen` on the counter and wants `wanted`."""

    worker: int
    record: int
    counter: int
    seen: int
    wanted: int


class Stuck(RuntimeError):
    """No worker can move; `frontier` says what each unfinished one waits for."""

    def __init__(self, schedule: Schedule, step: int, frontier: list[Waiting]) -> None:
        self.frontier = frontier
        lines = [
            f"{schedule.describe(w.worker, w.record)} has seen {w.seen} on counter {w.counter} "
            f"and wants {w.wanted}"
            for w in frontier
        ]
        super().__init__(f"no worker can move in step {step}: {'; '.join(lines)}")


@dataclass(frozen=True)
class _Record:
    node: Node
    tiles: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]
    signal: tuple[int, int]


def interpret(
    schedule: Schedule, execute: Execute, seed: int, steps: int = 1, start: int = 0
) -> list[Turn]:
    """Runs `steps` steps of a schedule and returns the turns in the order they were taken.

    Counters are int32, hold `start` before the first step and are never zeroed: in step s, counted
    from 0, a wait is over once `(int32)(value - (start + (s + 1) * target)) >= 0`. As on a real
    machine, a step begins when all workers have ended the one before. Raises Stuck when no worker
    can move.
    """
    lists = [_decode(schedule, worker) for worker in range(schedule.workers)]
    counters = [_int32(start)] * schedule.counters
    dice = random.Random(seed)
    turns: list[Turn] = []
    for step in range(steps):
        _step(schedule, lists, counters, execute, dice, step, start, turns)
    return turns


def _decode(schedule: Schedule, worker: int) -> list[_Record]:
    return [
        _Record(
            schedule.graph.nodes[int(record[RECORD["node"].first])],
            tuple(int(tile) for tile in run_of(record)) or (NO_TILE,),
            tuple(waits_of(record)),
            signal_of(record),
        )
        for record in schedule.lists[worker]
    ]


def _step(
    schedule: Schedule,
    lists: list[list[_Record]],
    counters: list[int],
    execute: Execute,
    dice: random.Random,
    step: int,
    start: int,
    turns: list[Turn],
) -> None:
    at = [0] * len(lists)  # the record each worker is at
    done = [0] * len(lists)  # how many of its tiles have run
    unfinished = [worker for worker, records in enumerate(lists) if records]
    while unfinished:
        movable = list(unfinished)
        frontier: list[Waiting] = []
        while movable:
            worker = movable.pop(dice.randrange(len(movable)))
            record = lists[worker][at[worker]]
            waiting = None if done[worker] else _waiting(record, counters, step, start)
            if waiting is None:
                break
            frontier.append(Waiting(worker, at[worker], *waiting))
        else:
            raise Stuck(schedule, step, sorted(frontier, key=lambda w: w.worker))
        tile = record.tiles[done[worker]]
        if tile != NO_TILE:
            execute(record.node, tile)
        turns.append(Turn(step, worker, at[worker], tile))
        done[worker] += 1
        if done[worker] == len(record.tiles):
            counter, amount = record.signal
            if counter >= 0:
                counters[counter] = _int32(counters[counter] + amount)
            at[worker] += 1
            done[worker] = 0
            if at[worker] == len(lists[worker]):
                unfinished.remove(worker)


def _waiting(
    record: _Record, counters: list[int], step: int, start: int
) -> tuple[int, int, int] | None:
    """The first wait that is not over: (counter, seen, wanted)."""
    for counter, target in record.waits:
        wanted = _int32(start + (step + 1) * target)
        if _int32(counters[counter] - wanted) < 0:
            return counter, counters[counter], wanted
    return None


def _int32(value: int) -> int:
    """Wraps as a machine's 32-bit integer does."""
    return (value + 2**31) % 2**32 - 2**31
