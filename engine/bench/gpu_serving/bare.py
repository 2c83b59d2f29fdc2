"""What decode steps and prompts take without a server, and whether prompts are computed right:
on the machine itself, before anybody is served."""

import statistics
import time
from typing import Any

import numpy as np

from mkport.declare.case import from_bf16
from mkport.engine.prefill.attend import attention
from mkport.engine.prefill.experts import product
from mkport.engine.prefill.route import grouped
from mkport.engine.runner import StepRunner

Data = dict[str, Any]
ATTENTION_OFF, KEYS_OFF = (
    2e-2,
    3e-2,
)  # root mean square, relative; bfloat16 and its inputs' rounding


def spread_tables(runner: StepRunner) -> None:
    """Every sequence gets pages of each pool, its own as far as they go."""
    tables = runner.steps.tables.items()
    for (pages, _), (name, table) in zip(runner.limits.pools, tables, strict=True):
        for row, own in enumerate(np.arange(table.size).reshape(table.shape) % pages):
            runner.steps.turn(name, row, 0, own)


def decode(runner: StepRunner, batch: int, position: int, steps: int) -> Data:
    """Milliseconds of decode steps that feed each other, read by the host as they come."""
    machine = runner.steps.machine_for(batch, batch)
    assert machine is not None
    places = [(row, position) for row in range(batch)]
    tokens = np.random.default_rng(batch).integers(0, 256, batch).tolist()
    times = [time.perf_counter()]
    for _ in runner.steps.follow(machine, places, tokens, steps):
        times.append(time.perf_counter())
    each = np.diff(times)[4:] * 1e3
    return {"batch": batch, "position": position, "ms": each.tolist(), "median_ms": median(each)}


def prompt(runner: StepRunner, vocab: int, tokens: int, start: int, repeats: int = 3) -> Data:
    """Milliseconds of one chunk of a prompt, without its last token's decode step."""
    prefill, tables = runner.prefill, _tables(runner, 0)
    assert prefill is not None
    times, queued = [], []
    for repeat in range(repeats + 1):
        ids = np.random.default_rng(repeat).integers(0, vocab, tokens).tolist()
        wait()
        began = time.perf_counter()
        prefill.run(ids, start, tables)
        queued.append((time.perf_counter() - began) * 1e3)
        wait()
        times.append((time.perf_counter() - began) * 1e3)
    return {
        "tokens": tokens,
        "start": start,
        "ms": times[1:],
        "median_ms": median(times[1:]),
        "host_ms": queued[1:],  # until all was queued
        "first_ms": times[0],
    }


def legs(runner: StepRunner, vocab: int, tokens: int) -> list[float]:
    """Milliseconds of each leg [legs] of a chunk from position 0, with a wait behind each."""
    prefill, tables, count = runner.prefill, _tables(runner, 0), runner.limits.legs
    assert prefill is not None
    ids = np.random.default_rng(0).integers(0, vocab, tokens).tolist()
    found: list[float] = []
    for leg in range(count):
        wait()
        began = time.perf_counter()
        prefill.run(ids, 0, tables, (leg, leg + 1))
        wait()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def profile(runner: StepRunner, vocab: int, tokens: int) -> str:
    """What a chunk's time goes to: a table by kernel, how many there are, how long they run, from
    the first one's begin to the last one's end, and how long none does. Of a recorded run too."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    assert runner.prefill is not None
    kinds = [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profiling(activities=kinds) as seen:
        ids = np.random.default_rng(7).integers(0, vocab, tokens).tolist()
        runner.prefill.run(ids, 0, _tables(runner, 0))
        wait()
    sort = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    table = seen.key_averages().table(sort_by=sort, row_limit=24, max_name_column_width=90)
    return f"{table}\n{_busy(seen.events())}"


def _busy(events: Any) -> str:
    """When a device was busy, of a profile's events."""
    import torch

    device = torch.autograd.DeviceType.CUDA
    spans = sorted(
        (e.time_range.start, e.time_range.end) for e in events if e.device_type == device
    )
    if not spans:
        return "nothing ran on a GPU"
    idle, end = 0.0, spans[0][0]
    for first, last in spans:
        idle += max(first - end, 0.0)
        end = max(end, last)
    together, whole = sum(last - first for first, last in spans), end - spans[0][0]
    return (
        f"{len(spans)} kernels of {together / 1e3:.2f} ms together, in {whole / 1e3:.2f} ms, of "
        f"which none ran for {idle / 1e3:.2f} ms"
    )


def check_attention(runner: StepRunner) -> Data:
    """The attention that prompts take here, against a plain one in float32: largest relative root
    mean square error. Raises AssertionError beyond `ATTENTION_OFF`."""
    import torch

    assert runner.prefill is not None
    device, dtype = runner.prefill.device, runner.prefill.dtype
    found: Data = {}
    torch.manual_seed(0)
    for tokens, keys, window in ((300, 300, 0), (200, 1500, 0), (300, 1300, 1000), (64, 700, 24)):
        q = torch.randn(tokens, 8, 128, device=device, dtype=dtype)
        k, v = (torch.randn(keys, 2, 128, device=device, dtype=dtype) for _ in range(2))
        count, end = (torch.tensor([0, n], device=device).int() for n in (tokens, keys))
        behind = k.new_full((70, 2, 128), float("nan"))  # not to be seen
        more = torch.cat([k, behind]), torch.cat([v, behind])
        got = attention(q, *more, count, end, window, 128**-0.5).float()
        k, v = (x.float().repeat_interleave(4, 1) for x in (k, v))
        scores = torch.einsum("thd,khd->htk", q.float(), k) * 128**-0.5
        ahead = torch.arange(keys - tokens, keys, device=device)[:, None] - torch.arange(
            keys, device=device
        )
        hidden = (ahead < 0) | (ahead >= (window or keys))
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        wanted = torch.einsum("htk,khd->thd", weights, v).reshape(tokens, -1)
        off = float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
        found[f"{tokens} of {keys}, window {window}"] = off
        assert off < ATTENTION_OFF, found
    return found


def check_experts(runner: StepRunner) -> float:
    """The grouped product against one expert after the other: relative root mean square error."""
    import torch

    assert runner.prefill is not None
    device, dtype = runner.prefill.device, runner.prefill.dtype
    torch.manual_seed(0)
    ids = torch.rand(200, 128, device=device).topk(8).indices
    ids[ids >= 100] = 3  # one expert has many tokens, and some have none
    x = torch.randn(200, 64, device=device, dtype=dtype)
    weights = torch.randn(128, 32, 64, device=device, dtype=dtype)
    pairs = grouped(ids, 128)
    got = product(x[pairs.token], weights, pairs.ends)[pairs.place].view(200, 8, 32).float()
    wanted = torch.einsum("tk,tcnk->tcn", x.float(), weights[ids].float())
    off = float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
    assert off < ATTENTION_OFF, off
    return off


def check_pages(runner: StepRunner, vocab: int, tokens: int) -> Data:
    """A prompt run by decode steps, and by PyTorch in one piece and in several: relative root mean
    square difference of the keys, layer by layer.

    With random weights a token may take other experts where scores are near, and the difference
    grows with the layers; the first layer's must be small. Raises AssertionError if it is not.
    """
    prefill = runner.prefill
    assert prefill is not None
    ids = np.random.default_rng(9).integers(0, vocab, tokens).tolist()
    most = runner.steps.planned[-1].shape.rows
    machine = runner.steps.machines[-1]
    for first in range(0, tokens, most):
        part = ids[first : first + most]
        runner.steps.step(machine, [(0, first + i) for i in range(len(part))], part, [])
    wanted = _keys(runner, 0, tokens)
    found: Data = {}
    for name, cut in (("one piece", tokens), ("pieces of 40", 40)):
        for first in range(0, tokens, cut):
            prefill.run(ids[first : first + cut], first, _tables(runner, 1))
        wait()
        got = _keys(runner, 1, tokens)
        off = [
            float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))
            for a, b in zip(got, wanted, strict=True)
        ]
        found[name] = off
        assert off[0] < KEYS_OFF, found
    return found


def _keys(runner: StepRunner, row: int, tokens: int) -> list[np.ndarray]:
    """Each layer's keys of a row's first tokens: float32 [tokens, heads, dim]."""
    steps, found = runner.steps, []
    page = runner.limits.page
    for node in steps.planned[0].schedule.graph.nodes:
        if node.op.name == "attention":
            pages = steps.tables[node.args["page_table"]][row, : -(-tokens // page)]
            kept = np.concatenate(
                list(steps.save(node.args["k_pages"], pages.tolist()).swapaxes(1, 2))
            )
            found.append(from_bf16(kept[:tokens]) if kept.dtype == np.uint16 else kept[:tokens])
    return found


def _tables(runner: StepRunner, row: int) -> dict[str, np.ndarray]:
    return {name: table[row] for name, table in runner.steps.tables.items()}


def wait() -> None:
    """Until the GPU has done what was queued, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def median(values: Any) -> float:
    """The middle one."""
    return float(statistics.median(map(float, values)))
