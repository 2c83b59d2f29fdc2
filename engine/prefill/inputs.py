"""What a chunk reads beside weights and cache: its tokens, their positions, the pages they go to
and those they look at. One block of memory, so that one copy sends it; shapes do not depend on the
chunk, so that a recorded run of one chunk can be repeated with another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Table:
    """A page table, as the chunks of a model use it."""

    window: int  # keys that a token sees at most, its own included; 0: all
    spare: int  # a page of the cache that belongs to nobody


@dataclass(frozen=True)
class Pages:
    """Where a page table leads a chunk."""

    seen: Any  # int64 [blocks] the pages of all keys that a token of the chunk may see
    page: Any  # int64 [tokens] each token's own page
    keys: Any  # int32 [2]: 0, and how many keys of `seen` there are up to the last token's


class Inputs:
    """Room for `tokens` tokens that stand below position `reach`; the first of them are a chunk's,
    the rest is computed and goes to the spare page. `page` is in keys, `device` PyTorch's."""

    def __init__(
        self, tokens: int, reach: int, page: int, tables: Mapping[str, Table], device: Any
    ) -> None:
        import torch

        self.tokens, self._page, self._tables = tokens, page, tables
        blocks = {
            name: min(-(-reach // page), -(-(t.window - 1 + tokens) // page) + 1)
            if t.window
            else -(-reach // page)
            for name, t in tables.items()
        }
        sizes = [tokens, tokens, tokens, 1]  # ids, positions, slots, the number of tokens
        for name in tables:
            sizes += [tokens, blocks[name], 1]
        ends = np.cumsum([0, *sizes])
        self._host = np.zeros(ends[-1], np.int64)
        self._block = torch.from_numpy(self._host)
        if device.type == "cuda":
            self._block = torch.zeros(int(ends[-1]), dtype=torch.int64, device=device)
        here = [self._host[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        there = [self._block[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        self.ids, self.position, self.slot = there[:3]
        self.count = there[3].view(torch.int32)  # [2]: 0 and the number of tokens
        self.pages = {
            name: Pages(there[5 + 3 * i], there[4 + 3 * i], there[6 + 3 * i].view(torch.int32))
            for i, name in enumerate(tables)
        }
        self._written = here

    def fill(self, ids: Sequence[int], start: int, rows: Mapping[str, np.ndarray]) -> None:
        """Enters a chunk: `ids` [tokens] at position `start` on; `rows` are the sequence's rows of
        the page tables, int32 [blocks]."""
        import torch

        count, page = len(ids), self._page
        end = start + count
        ids_, position, slot, counted = self._written[:4]
        ids_[:count], ids_[count:] = ids, 0
        position[:count], position[count:] = np.arange(start, end), start
        slot[:] = np.arange(start, start + self.tokens) % page
        counted.view(np.int32)[:] = 0, count
        for i, (name, table) in enumerate(self._tables.items()):
            own, seen, keys = self._written[4 + 3 * i : 7 + 3 * i]
            first = max(start - table.window + 1, 0) // page if table.window else 0
            own[:count], own[count:] = rows[name][position[:count] // page], table.spare
            found = rows[name][first : -(-end // page)]
            seen[: len(found)], seen[len(found) :] = found, table.spare
            keys.view(np.int32)[:] = 0, end - first * page
        if self._block.is_cuda:  # the host's memory is staged before this returns
            self._block.copy_(torch.from_numpy(self._host), non_blocking=True)
