"""Prompts by PyTorch operators: the same pages as decode steps write, whatever was cut or cached,
and transformers' own tokens after them. Here on the CPU, where the same code runs."""

import ctypes
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
import torch

from mkport.declare.case import from_bf16
from mkport.engine import build as build_module
from mkport.engine.capacity import Settings, plan_capacity, widths
from mkport.engine.decoder import Decoder
from mkport.engine.engine import Engine, Output, collect
from mkport.engine.load import LoadedModel, load
from mkport.engine.pace import Legs
from mkport.engine.prefill import Prefill, route
from mkport.engine.prefill.experts import product
from mkport.engine.prefill.functions import ranked
from mkport.engine.prefill.lanes import MAIN, SIDE
from mkport.engine.prefill.nodes import Chunk
from mkport.engine.prefill.prefill import needed
from mkport.engine.prefill.route import SOURCE, chosen, grouped
from mkport.engine.request import Sampling
from mkport.engine.scheduler import Scheduler
from mkport.engine.sequence import Plan
from mkport.engine.sequence import Sequence as Tokens
from mkport.engine.target import CpuTarget, HostTarget
from mkport.errors import UserError
from mkport.kernels.attention.op import SPLIT
from mkport.machines.host.build import build, compiler, launch
from mkport.models import family_of, parse_config
from mkport.models.sizes import TINY, config_of
from mkport.models.step import StepShape
from mkport.testing.law import EPS, measure
from tests.engine.checkpoints import fields_of, one_program, prompts_of, save, theirs

FAMILIES = sorted(TINY)
PAGE, WINDOW, VOCAB, CONTEXT, TOKENS = 16, 24, 288, 128, 24
LENGTHS = (PAGE, PAGE + 1, WINDOW, WINDOW + 1, 40, 3 * PAGE, 101)


class Prefilling(CpuTarget):
    """The CPU machine with few rows, and PyTorch for prompts."""

    prefills = True
    most_rows: int | None = 8
    prompt_chunk, mixed_chunk = 64, 32


class Flagged(HostTarget):
    """The CUDA source with flagged scratch, as a GPU has it, and PyTorch for prompts."""

    prefills = True

    def __init__(self) -> None:
        super().__init__(fixed=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """`model(family, dtype)`: a tiny checkpoint that transformers wrote."""

    @cache
    def written(family: str) -> str:
        return str(save(tmp_path_factory.mktemp(family) / "model", fields_of(family)))

    return lambda family, dtype="f32": load(written(family), dtype)


@contextmanager
def decoding(
    model: LoadedModel, sizes: Sequence[int] = (), context: int = CONTEXT
) -> Iterator[tuple[Decoder, Prefill]]:
    """A decoder of two sequences, and prefill over its tensors."""
    given = {"batch": 2, "context": context, "page": PAGE, "workers": 2}
    with one_program(), Decoder(model, **given) as decoder:  # type: ignore[arg-type]
        steps = decoder._steps
        yield decoder, Prefill(steps.planned[0].schedule.graph, steps.tensors, sizes=sizes)


def fill(
    decoder: Decoder, prefill: Prefill, sequence: int, ids: Sequence[int], cuts: Sequence[int]
) -> None:
    """Runs a prompt, cut where `cuts` says."""
    tables = {name: table[sequence] for name, table in decoder._steps.tables.items()}
    for first, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        prefill.run(ids[first:end], first, tables)


def pages_of(decoder: Decoder, sequence: int, tokens: int) -> dict[str, np.ndarray]:
    """The keys and values of a sequence's first tokens: float32 [tokens, heads, dim] by name."""
    steps, found = decoder._steps, {}
    for node in steps.planned[0].schedule.graph.nodes:
        if node.op.name == "attention":
            table = steps.tables[node.args["page_table"]][sequence]
            for name in (node.args["k_pages"], node.args["v_pages"]):
                flat = np.concatenate(list(steps.tensors[name][table].swapaxes(1, 2)))[:tokens]
                found[name] = from_bf16(flat) if flat.dtype == np.uint16 else flat
    return found


@pytest.mark.parametrize(
    ("sizes", "context"), [((), CONTEXT), ((40, CONTEXT), CONTEXT), ((), SPLIT + PAGE)],
    ids=["as they are", "in sizes", "splits that are joined"],
)  # fmt: skip
@pytest.mark.parametrize("family", FAMILIES)
def test_pages_are_those_of_decode_steps(
    model: Callable[..., LoadedModel], family: str, sizes: Sequence[int], context: int
) -> None:
    """Rows that fill a size up are not a number, so that no other row may read them."""
    (ids,) = prompts_of([101], VOCAB)
    with decoding(model(family), sizes, context) as (decoder, prefill):
        token, logits = decoder.prefill(0, ids)
        logits = logits.copy()
        wanted = pages_of(decoder, 0, 100)
        for cuts in ([], [PAGE, 50, 51], [WINDOW, WINDOW + 1, 3 * PAGE]):
            for name in wanted:
                decoder._steps.tensors[name][
                    decoder._steps.planned[0].shape.pages_per_sequence :
                ] = 9
            fill(decoder, prefill, 1, ids[:100], cuts)
            for name, array in pages_of(decoder, 1, 100).items():
                np.testing.assert_allclose(array, wanted[name], atol=2e-5, err_msg=name)
            chosen, last = decoder.step([(1, 100, ids[100])], [0])
            assert chosen[0] == token
            np.testing.assert_allclose(last[0], logits, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_within_the_law(model: Callable[..., LoadedModel], family: str) -> None:
    """Logits after prompts of several lengths; plain PyTorch in bfloat16 sets the bound."""
    given = model(family, "bf16")
    prompts = prompts_of(LENGTHS, VOCAB, seed=4)
    rows = []
    with decoding(given) as (decoder, prefill):
        for ids in prompts:
            fill(decoder, prefill, 1, ids[:-1], [])
            rows.append(decoder.step([(1, len(ids) - 1, ids[-1])], [0])[1][0].copy())
    truth, rough = (
        np.stack([logits[-1] for logits in theirs(given.directory, prompts, kind)])
        for kind in ("float64", "bfloat16")
    )
    found = measure(np.stack(rows), truth, rough, EPS["uint16"])
    assert found.ok, found


def test_a_chunk_does_not_depend_on_what_was_run_before(
    model: Callable[..., LoadedModel],
) -> None:
    one, other = prompts_of([70, 90], VOCAB)
    with decoding(model("cohere2_moe", "bf16")) as (decoder, prefill):
        fill(decoder, prefill, 0, one, [32, 64])
        alone = pages_of(decoder, 0, 70)
        fill(decoder, prefill, 1, other, [64])
        fill(decoder, prefill, 0, other, [])
        fill(decoder, prefill, 0, one, [32, 64])
        for name, array in pages_of(decoder, 0, 70).items():
            assert array.tobytes() == alone[name].tobytes()


@pytest.mark.parametrize("family", ["cohere2_moe", "llama"])
def test_legs_give_the_bits_of_a_whole_chunk(
    model: Callable[..., LoadedModel], family: str
) -> None:
    """Whatever decode steps run between them, and with chunks between that were given up."""
    ids, other = prompts_of([70, 40], VOCAB)
    draw = random.Random(5)
    with decoding(model(family, "bf16"), (80,)) as (decoder, prefill):
        fill(decoder, prefill, 0, ids, [32])
        wanted = pages_of(decoder, 0, 70)
        tables = [
            {name: table[row] for name, table in decoder._steps.tables.items()} for row in (0, 1)
        ]
        legs = Prefill(
            decoder._steps.planned[0].schedule.graph,
            decoder._steps.tensors,
            sizes=(80,),
            legs=model(family).config.layers,
        )
        most = len(legs._legs)
        assert most == model(family).config.layers
        for _ in range(2):
            for name in wanted:
                decoder._steps.tensors[name][...] = 9
            for first, end in ((0, 32), (32, 70)):
                legs.run(other, 0, tables[1], (0, draw.randint(1, most - 1)))
                at = 0
                while at < most:
                    until = draw.randint(at + 1, most)
                    legs.run(ids[first:end], first, tables[0], (at, until))
                    at = until
                    decoder.step([(1, 0, 7)], [0])
            for name, array in pages_of(decoder, 0, 70).items():
                assert array.tobytes() == wanted[name].tobytes()
        legs.run(other, 0, tables[1], (0, 1))
        for wrong in ((ids[:40], 1, (1, 2)), (other, 0, (2, 3)), (other[:3], 0, (1, 2))):
            with pytest.raises(AssertionError, match="legs of another chunk"):
                legs.run(wrong[0], wrong[1], tables[1], wrong[2])


def test_nothing_is_run_that_no_page_depends_on(model: Callable[..., LoadedModel]) -> None:
    with decoding(model("llama")) as (decoder, prefill):
        prefill.record()  # of nothing: there are no sizes
        ops = [node.op.name for node in decoder._steps.planned[0].schedule.graph.nodes]
        layers = ops.count("attention")
        called = [call.__name__.strip("_") for call, _ in prefill._calls]
    assert called.count("attention") == layers - 1
    assert called[-1] == "gemm_rope" and "select" not in called


def test_attention_goes_beside_the_experts_that_read_the_same_input(
    model: Callable[..., LoadedModel],
) -> None:
    """Once a layer each lane waits for the other; where one half follows the other there is one."""
    for family in FAMILIES:
        with decoding(model(family)) as (_, prefill):
            found = prefill._turns
        beside = [turn.lane for turn in found].count(SIDE)
        assert bool(beside) == (family in ("cohere2", "cohere2_moe"))
        if beside:
            layers = model(family).config.layers
            waits = [sum(t.waits for t in found if t.lane == lane) for lane in (MAIN, SIDE)]
            assert waits == [layers - 1, layers]


def _run_in_any_order(prefill: Prefill, chunk: Chunk, leg: slice, draw: random.Random) -> None:
    """A chunk's leg whose lanes go on by turns that are drawn, and wait where they are told to."""
    nodes = range(*leg.indices(len(prefill._turns)))
    left = {lane: [i for i in nodes if prefill._turns[i].lane == lane] for lane in (MAIN, SIDE)}
    with torch.no_grad():
        while any(left.values()):
            lane = draw.choice([lane for lane in left if left[lane]])
            node, others = left[lane][0], left[1 - lane]
            if prefill._turns[node].waits and others and others[0] < node:
                continue
            call, args = prefill._calls[left[lane].pop(0)]
            call(chunk, args)


@pytest.mark.parametrize("family", ["cohere2", "cohere2_moe"])
def test_lanes_wait_where_they_must(
    model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Whichever goes first where neither waits, the pages are the same."""
    (ids,) = prompts_of([70], VOCAB)
    draw = random.Random(3)
    with decoding(model(family)) as (decoder, prefill):
        fill(decoder, prefill, 0, ids, [])
        wanted = pages_of(decoder, 0, 70)
        monkeypatch.setattr(
            Prefill, "_walk", lambda self, chunk, leg: _run_in_any_order(self, chunk, leg, draw)
        )
        for _ in range(8):
            for name in wanted:
                decoder._steps.tensors[name][...] = 9
            fill(decoder, prefill, 0, ids, [])
            for name, array in pages_of(decoder, 0, 70).items():
                assert array.tobytes() == wanted[name].tobytes()


class _Stream:
    """In place of a GPU's: who was waited for, and in which lane calls were made."""

    def __init__(self) -> None:
        self.waits: list[_Stream] = []
        self.calls = 0

    def wait_stream(self, other: "_Stream") -> None:
        self.waits.append(other)


@contextmanager
def _on(stream: _Stream) -> Iterator[None]:
    stream.calls += 1
    yield


def test_each_lane_has_its_stream(
    model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    (ids,) = prompts_of([40], VOCAB)
    main, side = _Stream(), _Stream()
    with decoding(model("cohere2_moe")) as (decoder, prefill):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
        monkeypatch.setattr(torch.cuda, "stream", _on)
        prefill._side = side
        fill(decoder, prefill, 0, ids, [])
        turns = prefill._turns
    assert [main.calls, side.calls] == [sum(t.lane == n for t in turns) for n in (MAIN, SIDE)]
    # once at the beginning
    assert side.waits == [main] * (1 + sum(t.waits for t in turns if t.lane == SIDE))
    # and once at the end, so that what comes behind finds all of it
    assert main.waits == [side] * (1 + sum(t.waits for t in turns if t.lane == MAIN))


def test_a_gpu_without_room_is_told(
    model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Prefill, chunk: Any, leg: slice) -> None:
        raise torch.OutOfMemoryError("no room")

    with decoding(model("llama"), (40, CONTEXT)) as (_, prefill):
        monkeypatch.setattr(Prefill, "_walk", full)
        with pytest.raises(UserError, match="a chunk of 128 prompt tokens: lower prefill_chunk"):
            prefill.record()


def test_the_lower_expert_wins_a_tie() -> None:
    z = torch.tensor([[0.0, 2.0, -0.0, 2.0, -1.0, -3.0, -1.0]])
    keys = ranked(z).topk(7).values
    assert (6 - (keys & 0xFFFFFFFF)).tolist() == [[1, 3, 0, 2, 4, 6, 5]]


@contextmanager
def kernels() -> Iterator[Callable[..., None]]:
    """In place of `route._launch`: the GPU's kernels, in the host build."""
    library = build(SOURCE.read_text(), ["choose", "group"], ordinary=True)

    def run(kernel: str, blocks: int, threads: int, shared: int, *args: Any) -> None:
        given: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                given.append(ctypes.c_void_p(arg.data_ptr()))
            else:
                given.append((ctypes.c_float if arg.dtype.kind == "f" else ctypes.c_int32)(arg))
        sizes = {"blocks": blocks, "together": 1, "threads": threads, "seed": 0}
        assert not launch(library, kernel, given, shared_bytes=max(shared, 64), **sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "_launch", run)
        yield run


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("tokens, experts, top", [(1, 8, 2), (70, 128, 8), (9, 40, 1), (5, 33, 33)])
def test_a_gpu_s_kernels_choose_and_sort_as_pytorch_does(
    tokens: int, experts: int, top: int, softmax: bool
) -> None:
    draw = torch.Generator().manual_seed(tokens)
    z = (4 * torch.randn(tokens, experts, generator=draw)).round(decimals=1)  # with ties
    z[-1, ::3] = float("nan")
    ids = torch.full((tokens, top), -9, dtype=torch.int32)
    weights, numbers = torch.full((tokens, top), -9.0), [tokens, experts, top, softmax, True]
    with kernels() as run:
        run(
            "choose",
            -(-tokens // 4),
            128,
            0,
            z,
            ids,
            weights,
            *np.array(numbers, np.int32),
            np.float32(3),
        )
        wanted_ids, wanted = chosen(z, top, softmax, True, 3.0)
        assert ids.tolist() == wanted_ids.tolist()
        torch.testing.assert_close(weights, wanted, equal_nan=True)
        token, place = (torch.full((tokens * top,), -9) for _ in range(2))
        ends = torch.full((experts,), -9, dtype=torch.int32)
        shared = 2 * 4 * 256 // 32
        run(
            "group",
            experts,
            256,
            shared,
            ids,
            token,
            place,
            ends,
            *np.array([tokens * top, top], np.int32),
        )
    pairs = grouped(ids, experts)
    assert token.tolist() == pairs.token.tolist() and place.tolist() == pairs.place.tolist()
    assert ends.tolist() == pairs.ends.tolist()


def test_pairs_are_sorted_by_expert_and_found_again() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.rand(9, 300, generator=draw).topk(5).indices
    x, weights = torch.rand(9, 8, generator=draw), torch.rand(300, 4, 8, generator=draw)
    pairs = grouped(ids, 300)
    found = product(x[pairs.token], weights, pairs.ends)[pairs.place].view(9, 5, 4)
    torch.testing.assert_close(found, torch.einsum("tk,tcnk->tcn", x, weights[ids]))


@contextmanager
def serving(
    model: LoadedModel, contexts: float, on: Callable[[], Any] = Prefilling, **options: Any
) -> Iterator[Engine]:
    """An engine that prefills; `contexts` sizes its cache."""
    config = model.config
    one = config.layers * 2 * config.kv_width * CONTEXT * 4
    sizes = {"max_model_len": CONTEXT, "page": PAGE, "workers": 2, "max_batch": 4} | options
    with one_program(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "target_of", lambda name: on())
        with Engine(model, kv_memory=int(contexts * one), **sizes) as engine:
            yield engine


def outputs(engine: Engine, prompts: list[list[int]], tokens: int = TOKENS) -> list[Output]:
    sampling = Sampling(tokens, temperature=0.0, ignore_eos=True)
    streams = [engine.submit(ids, sampling) for ids in prompts]
    return [collect(stream)[0] for stream in streams]


@pytest.mark.parametrize("family", FAMILIES)
def test_served_tokens_are_transformers_s(model: Callable[..., LoadedModel], family: str) -> None:
    """Side by side, then again from the prefix cache, then several choices of a prompt."""
    given, prompts = model(family), prompts_of(LENGTHS, VOCAB)
    with serving(given, contexts=8) as engine:
        found = outputs(engine, prompts)
        assert outputs(engine, prompts) == found
        again = engine.submit(prompts[-1], Sampling(TOKENS, temperature=0.0, ignore_eos=True), n=3)
        assert [out.ids for out in collect(again, 3)] == [found[-1].ids] * 3
        assert again.accepted is not None and again.accepted.cached_tokens == 96
    fed = [[*ids, *out.ids[:-1]] for ids, out in zip(prompts, found, strict=True)]
    for ids, out, rows in zip(prompts, found, theirs(given.directory, fed, "float32"), strict=True):
        assert rows[len(ids) - 1 :].argmax(1).tolist() == out.ids


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
def test_prompts_know_nothing_of_flagged_scratch(model: Callable[..., LoadedModel]) -> None:
    """A machine of few rows runs another graph than the model's own, which prompts follow."""
    given, prompts = model("cohere2_moe"), prompts_of([40], VOCAB)
    with serving(given, contexts=2, max_batch=1) as engine:
        wanted = outputs(engine, prompts, 3)
    with serving(given, contexts=2, on=Flagged, max_batch=1) as engine:
        assert outputs(engine, prompts, 3) == wanted


def test_a_long_prompt_beside_others_by_legs(
    model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who decode have a token in each step while it is read, whose legs they wait for; some
    prompts are given up between two legs. All say what they say elsewhere."""
    given, prompts = model("cohere2_moe"), prompts_of([20, 30, 101, 110, 90], VOCAB)
    with serving(given, contexts=8, max_batch=1) as engine:
        wanted = [outputs(engine, [ids], 60)[0] for ids in prompts]
    draw, begun = random.Random(2), list[tuple[int, bool]]()
    monkeypatch.setattr(
        Legs, "share", lambda self, tokens, done: draw.randint(1, min(2, self.legs - done))
    )
    commit = Scheduler.commit

    def watched(self: Scheduler, plan: Plan, *took: Any) -> None:
        walked = [part for part in plan.parts if part.legs is not None]
        begun.append((plan.decoding, bool(walked) and not all(part.ends for part in walked)))
        assert not plan.decoding or len(walked) <= 1
        commit(self, plan, *took)

    monkeypatch.setattr(Scheduler, "commit", watched)
    with serving(given, contexts=2.5, mixed_chunk=64) as engine:
        sampling = Sampling(60, temperature=0.0, ignore_eos=True)
        for _ in range(2):
            streams = [engine.submit(ids, sampling) for ids in prompts]
            gone = engine.submit(prompts[2][::-1], sampling)
            time.sleep(draw.random() / 50)
            gone.cancel()
            assert [collect(stream)[0] for stream in streams] == wanted
            engine.reset_prefix_cache()
    assert sum(between and decoding > 0 for decoding, between in begun) > 10


def test_preempted_and_resumed(model: Callable[..., LoadedModel]) -> None:
    given, prompts = model("cohere2_moe"), prompts_of([40] * 5, VOCAB)
    with serving(given, contexts=8) as engine:
        wanted = outputs(engine, prompts, 60)
    with serving(given, contexts=1.5) as engine:
        assert outputs(engine, prompts, 60) == wanted
        assert engine.stats().preemptions > 0


def test_prompt_logprobs_come_from_steps(model: Callable[..., LoadedModel]) -> None:
    given, (ids,) = model("qwen3"), prompts_of([50], VOCAB)
    sampling = Sampling(2, temperature=0.0, prompt_logprobs=0)
    with serving(given, contexts=8) as engine:
        stream = engine.submit(ids, sampling)
        collect(stream)
    assert stream.accepted is not None
    said = stream.accepted.prompt_logprobs
    (rows,) = theirs(given.directory, [ids], "float64")
    shifted = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    assert [one.id for one in said[1:] if one] == ids[1:]
    wanted = shifted[np.arange(49), ids[1:]]
    np.testing.assert_allclose([one.logprob for one in said[1:] if one], wanted, atol=1e-4)


def test_a_prompt_is_cut_where_it_would_be_alone(model: Callable[..., LoadedModel]) -> None:
    """Two prompts that do not fit one chunk together go one after the other, each in one piece."""
    _, limits = plan_capacity(model("llama"), Settings(4), Prefilling())
    assert (limits.chunk, limits.mixed_chunk, limits.rows) == (64, 32, 68)
    assert widths(limits, Prefilling()) == [1, 2, 4]
    scheduler = Scheduler(limits)
    for order in range(2):
        scheduler.add(Tokens(order, [7] * 40, 40))
    for _ in range(2):
        plan = scheduler.plan()
        assert [part.count for part in plan.parts] == [40]
        scheduler.commit(plan)
        scheduler.end(plan.parts[0].sequence)


def test_of_a_wide_step_s_two_parts_of_the_experts_one_is_kept() -> None:
    """PyTorch's experts take all slots, whichever part a node has."""
    config = config_of("cohere2_moe", "tiny")
    shape = StepShape(rows=16, context=64, sequences=16, logits=16, page=16, stage=65792)
    graph = family_of(config).build(parse_config(config), shape)
    cache = {name for name, spec in graph.tensors.items() if spec.kind == "state"}
    for op in ("moe_up", "moe_down"):
        layers = [n.label.split(" / ")[0] for n in graph.nodes if n.op.name == op]
        kept = [n.label.split(" / ")[0] for n in needed(graph.nodes, cache) if n.op.name == op]
        assert len(layers) == 2 * len(set(layers)) and len(kept) == len(set(kept)) > 0
