"""Checks that hold for a graph whoever runs its tiles: one writer, immutable bytes, first writes.

Whether two records are in order is no question here: tiles of one node may run at the same time on
different workers, so they may not meet in an element that one of them writes, whatever the deal.
"""

import numpy as np
from numba import njit

from mkport.verify.footprint import (
    APART,
    BOX,
    EMPTY,
    IMMUTABLE,
    MODE,
    NODE,
    READ,
    VARIES,
    WRITE,
    Footprint,
)
from mkport.verify.report import MAX_PROBLEMS, Problem, tile_text

TWO_WRITERS, READ_BESIDE_WRITE, NOT_WRITTEN, NOT_IMMUTABLE = range(4)


def tile_problems(foot: Footprint) -> list[Problem]:
    """Tiles of one node that meet in a write, reads before any write, immutable bytes written."""
    kinds = [foot.graph.tensors[name].kind for name in foot.tensors]
    owed = np.array([kind in EMPTY for kind in kinds], np.bool_)
    found = np.empty((MAX_PROBLEMS, 6), np.int64)
    count = _find(foot.rows, foot.boxes, foot.first, foot.grid, foot.tiles, owed, found)
    return [_words(foot, *(int(v) for v in row)) for row in found[:count]]


@njit(cache=True)
def atoms_of(boxes, box, grid, tensor, atoms):  # type: ignore[no-untyped-def]
    """Writes the numbers of a box's atoms to `atoms` int64 [`biggest` or more], and returns how
    many there are; `boxes` int32 [boxes, 6] and `grid` int64 [tensors, 3] are a footprint's."""
    n = 0
    for i in range(boxes[box, 0], boxes[box, 1]):
        for j in range(boxes[box, 2], boxes[box, 3]):
            start = (i * grid[tensor, 1] + j) * grid[tensor, 2]
            for k in range(boxes[box, 4], boxes[box, 5]):
                atoms[n] = start + k
                n += 1
    return n


@njit(cache=True)
def biggest(grid):  # type: ignore[no-untyped-def]
    """The number of atoms of the tensor that has the most; `grid` int64 [tensors, 3]."""
    most = 1
    for t in range(len(grid)):
        most = max(most, grid[t, 0] * grid[t, 1] * grid[t, 2])
    return most


@njit(cache=True)
def _find(rows, boxes, first, grid, tiles, owed, found):  # type: ignore[no-untyped-def]
    """Fills `found` with (what, tensor, row, tile, other node, other tile)."""
    most = biggest(grid)
    atoms = np.empty(most, np.int64)
    node_of = np.empty(most, np.int64)  # the last node that wrote an atom, and its tile
    tile_of = np.empty(most, np.int64)
    n = 0
    for t in range(len(grid)):
        node_of[:] = -1
        start = first[t]
        while start < first[t + 1]:
            node = rows[start, NODE]
            end = start
            while end < first[t + 1] and rows[end, NODE] == node:
                end += 1
            # Reads against earlier nodes' writes, then the writes, then reads against those.
            for phase in range(3):
                for r in range(start, end):
                    mode = rows[r, MODE]
                    if mode == IMMUTABLE or (phase == 1 and mode == READ):
                        continue
                    if mode == WRITE and phase != 1:
                        continue
                    if phase == 0 and not owed[t]:
                        continue
                    varies = rows[r, VARIES] == 1
                    apart = rows[r, APART] == 1
                    for tile in range(tiles[node] if varies else 1):
                        box = rows[r, BOX] + tile
                        for p in range(atoms_of(boxes, box, grid, t, atoms)):
                            atom = atoms[p]
                            mine = node_of[atom] == node
                            alone = tile_of[atom] == tile and (varies or tiles[node] == 1)
                            alone = alone or apart
                            what = -1
                            if phase == 0:
                                if node_of[atom] < 0:
                                    what = NOT_WRITTEN
                            elif phase == 1:
                                if (mine and not alone) or (
                                    not varies and not apart and tiles[node] > 1
                                ):
                                    what = TWO_WRITERS
                                else:
                                    node_of[atom] = node
                                    tile_of[atom] = tile
                            elif mine and not alone:
                                what = READ_BESIDE_WRITE
                            if what >= 0 and n < len(found):
                                found[n] = (what, t, r, tile, node_of[atom], tile_of[atom])
                                n += 1
                                break  # one atom of a tile is enough
            start = end
        for r in range(first[t], first[t + 1]):
            if rows[r, MODE] != IMMUTABLE:
                continue
            for tile in range(tiles[rows[r, NODE]] if rows[r, VARIES] == 1 else 1):
                for p in range(atoms_of(boxes, rows[r, BOX] + tile, grid, t, atoms)):
                    atom = atoms[p]
                    if (owed[t] or node_of[atom] >= 0) and n < len(found):
                        what = NOT_WRITTEN if node_of[atom] < 0 else NOT_IMMUTABLE
                        found[n] = (what, t, r, tile, node_of[atom], tile_of[atom])
                        n += 1
                        break
    return n


def _words(
    foot: Footprint, what: int, tensor: int, row: int, tile: int, other: int, other_tile: int
) -> Problem:
    name = foot.tensors[tensor]
    box = foot.box(tensor, row, tile)
    text = tile_text(name, box)
    node = foot.graph.nodes[foot.rows[row, NODE]]
    if what == NOT_WRITTEN:
        kind = foot.graph.tensors[name].kind
        return Problem(
            "uninitialised",
            f"{node.label} tile {tile} reads {text}, but no earlier node writes all of it, and a "
            f"tensor of kind {kind} holds nothing before a step: add the node that writes it, or "
            "make it state if it must live from step to step.",
            tensor=name,
            box=box,
        )
    if what == NOT_IMMUTABLE:
        return Problem(
            "immutable",
            f"{node.label} tile {tile} declares {text} immutable, but "
            f"{foot.graph.nodes[other].label} tile {other_tile} writes to it in the same step: "
            "declare a read, so that it waits for the writer.",
            tensor=name,
            box=box,
        )
    if what == TWO_WRITERS:
        pair = sorted((tile, other_tile)) if foot.rows[row, VARIES] else [0, 1]
        return Problem(
            "writer",
            f"{node.label} tiles {pair[0]} and {pair[1]} both write "
            f"{text}: every element has one writer in a node; make the tiles' boxes disjoint.",
            tensor=name,
            box=box,
        )
    reader = tile if tile != other_tile else int(other_tile == 0)
    return Problem(
        "writer",
        f"{node.label} tile {reader} reads {text}, to which tile {other_tile} of the same node "
        "writes, and tiles of one node run in any order: write to another tensor, or read in a "
        "node of its own.",
        tensor=name,
        box=box,
    )
