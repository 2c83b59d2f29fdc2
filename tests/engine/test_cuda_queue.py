"""The CUDA target's way with inputs, results, pages and prompts, over a queue that runs everything
as late as it may: the same tokens as where each call waits for its end."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from mkport.declare import TensorSpec
from mkport.engine import cuda_ahead, cuda_target
from mkport.engine.cuda_target import DeviceArrays
from mkport.engine.decoder import decode_shape
from mkport.engine.load import LoadedModel, load
from mkport.engine.pace import Legs
from mkport.engine.prefill import Prefill
from mkport.engine.steps import plan_step
from mkport.engine.synth import synthesise
from mkport.engine.target import CPU, Arrays, CpuTarget
from mkport.models.step import FULL_TABLE
from tests.engine import fake_cuda
from tests.engine.fake_cuda import STREAM
from tests.engine.test_run_ahead import all_outputs, serving


class Queued(CpuTarget):
    """The CUDA target's arrays, the CPU's steps."""

    most_rows: int | None = 8
    ahead = 1

    def place(self, model: LoadedModel, specs: Mapping[str, TensorSpec], context: int) -> Arrays:
        model.weights.hold()
        return DeviceArrays(model, specs, context)

    def machine(self, program: Any, schedule: Any, tensors: Mapping[str, Any]) -> Any:
        return fake_cuda.Machine(program, schedule, tensors)


class Prefilling(Queued):
    """And PyTorch's kernels in the same queue."""

    prefills = True
    prompt_chunk, mixed_chunk = 64, 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    out = tmp_path_factory.mktemp("queue") / "model"
    synthesise("cohere2", "tiny", out, "f32", seed=2)
    return load(str(out))


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "cupy", fake_cuda.module())
    monkeypatch.setattr(cuda_target, "check_room", lambda *given: None)
    monkeypatch.setattr(cuda_ahead, "load", fake_cuda.load)
    for module in (cuda_ahead, cuda_target):
        monkeypatch.setattr(module, "pinned", fake_cuda.pinned)
    run = Prefill.run

    def queued(self: Prefill, ids: Sequence[int], start: int, tables: Any, legs: Any) -> None:
        given = list(ids), start, {name: np.array(row) for name, row in tables.items()}, legs
        STREAM.waiting.append(lambda: run(self, *given))

    monkeypatch.setattr(Prefill, "run", queued)
    monkeypatch.setattr(Legs, "share", lambda self, tokens, done: 1)
    yield
    STREAM.flush()


@pytest.mark.parametrize("contexts", [6, 1.2], ids=["roomy", "preempting"])
@pytest.mark.parametrize("target", [Queued, Prefilling])
def test_it_says_the_same(model: LoadedModel, target: type[Queued], contexts: float) -> None:
    with serving(model, CPU, contexts) as engine:
        wanted = [all_outputs(engine, seed) for seed in (0, 7)]
    with serving(model, target(), contexts) as engine:
        found = [all_outputs(engine, seed) for seed in (0, 7)]
        assert (engine.stats().preemptions > 0) == (contexts < 2)
    for one, other in zip(found, wanted, strict=True):
        for outs, others in zip(one, other, strict=True):
            assert [out.ids for out in outs] == [out.ids for out in others]


def test_of_the_page_tables_only_rows_that_have_changed_go_to_the_device(
    model: LoadedModel,
) -> None:
    shape = decode_shape(model, 8, 256, page=16)
    specs = plan_step(model, shape, 2, Queued()).graph.tensors
    arrays = DeviceArrays(model, specs, 256)
    for copies, rows in ((1, range(8)), (0, []), (1, [3]), (2, [5, 0, 5]), (1, range(6))):
        for row in rows:
            for name in arrays.tables:
                arrays.turn(name, row, 1, [row + copies, row + 2])
        before = len(STREAM.waiting)
        arrays.push()
        inputs = 2  # the copy of all other inputs, and its event
        assert len(STREAM.waiting) - before == inputs + copies * len(arrays.tables)
        STREAM.flush()
        for name, table in arrays.tables.items():
            assert np.array_equal(arrays.read(arrays.tensors[name]), table)
    assert arrays.tables[FULL_TABLE][5].tolist()[:4] == [0, 6, 7, 0]
    with pytest.raises(ValueError, match="read-only"):
        arrays.tables[FULL_TABLE][0, 0] = 1  # past `turn`
    for row, first in ((8, 0), (-1, 0), (0, -1), (0, 15)):
        with pytest.raises(IndexError, match=f"from place {first} of row {row} on, of a page"):
            arrays.turn(FULL_TABLE, row, first, [1, 2])
    assert arrays.tables[FULL_TABLE][0].tolist()[-2:] == [0, 0]
