"""What stands between two steps that follow each other on a device, in the host build."""

import ctypes
from typing import Any

import numpy as np
import pytest

from mkport.machines.cuda.ahead import FEED
from mkport.machines.host.build import build, compiler, launch


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_choices_become_the_next_step_s_tokens(rows: int) -> None:
    chosen = np.arange(5, 5 + rows, dtype=np.int32)
    chosen[rows // 2] = -1
    abort = np.array([3], np.int32)
    tokens = np.full(rows + 1, -7, np.int32)
    places = np.stack([np.arange(rows + 1), 60 + np.arange(rows + 1)], axis=1).astype(np.int32)
    before = places.copy()
    said = np.full(rows + 2, -7, np.int32)
    arrays = (chosen, abort, tokens, places, said)
    library = build(FEED.read_text(), ["feed"], ordinary=True)
    args: list[Any] = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    args += [ctypes.c_int32(rows), ctypes.c_int32(63)]
    assert not launch(
        library, "feed", args, blocks=1, together=1, threads=32, seed=0, shared_bytes=1024
    )
    assert said.tolist() == [*chosen, 3, -7]
    assert tokens.tolist() == [*np.maximum(chosen, 0), -7]
    assert places[:rows, 0].tolist() == before[:rows, 0].tolist()
    assert places[:rows, 1].tolist() == [max(p, min(p + 1, 63)) for p in before[:rows, 1]]
    assert places[rows].tolist() == before[rows].tolist()
