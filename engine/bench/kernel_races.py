"""The races of `gpu_kernels`: each CUDA kernel on a model's shapes, and PyTorch at the same task.

A race draws its inputs on the device: enough weights or keys that neither kernel finds them in the
L2 cache, however often it comes round. PyTorch gets what suits it best: bfloat16 inputs, experts'
inputs gathered, keys in one piece rather than in pages, no activation behind the product.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.declare import Op, spread_step
from mkport.kernels.attention.op import splits_kept
from mkport.library import find_op
from mkport.testing.cuda_forms import GpuLaunch, standalone_source
from mkport.testing.parts import load_part

COLD = 200 << 20  # bytes that a round goes through: four times an H200's L2 cache
HIDDEN, QUERIES, KEYS, DENSE, VOCAB = 2048, 4096, 512, 3072, 262144
EXPERTS, TOP, WIDTH = 128, 8, 768
HEADS, KV_HEADS, HEAD_DIM, PAGE, WINDOW = 32, 4, 128, 64, 4096
DEVICE = "cuda"  # where inputs are drawn
Call = Callable[[], Any]


@dataclass
class Use:
    """One launch of an op: its arguments on the device, and what it must be called with."""

    op: Op
    arrays: dict[str, Any]  # CuPy, by argument
    values: Mapping[str, int | float]
    output: str
    logical: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def call(self) -> Call:
        """Launches the standalone kernel; asks the device for nothing, so it can be captured."""
        launch = GpuLaunch(standalone_source(self.op))
        given = SimpleNamespace(**self.arrays, **self.values)
        if "count" in self.arrays:
            given.count = self.arrays["count"].get()
        return partial(load_part(self.op, "oracle").call_standalone_cuda, launch, given)


@dataclass
class Race:
    """One shape: what is launched in a round, one entry for each copy of the inputs."""

    kernel: str
    shape: str
    rows: int
    nbytes: int  # that one entry must read
    uses: list[list[Use]]  # of each entry, in order
    baselines: dict[str, list[Call]]
    first: Callable[[], tuple[Any, Any]]  # both results of the first entry, as torch tensors
    bar: float  # share of the baseline's speed that is asked


def races(only: str = "") -> Iterator[Race]:
    """The races on North Mini Code's shapes whose name contains `only`, one at a time in memory."""
    entries: list[tuple[str, Callable[[], Race]]] = []
    for rows in (1, 8):
        for name, n, k in (
            ("queries", QUERIES, HIDDEN), ("keys or values", KEYS, HIDDEN),
            ("attention output", HIDDEN, QUERIES), ("dense gate or up", DENSE, HIDDEN),
            ("dense down", HIDDEN, DENSE), ("router", EXPERTS, HIDDEN), ("LM head", VOCAB, HIDDEN),
        ):  # fmt: skip
            entries.append((f"gemm {name}", partial(product, f"{name} {n} x {k}", rows, n, k)))
    for rows in (1, 8):
        entries += [(name, partial(experts, name, rows)) for name in ("moe_up", "moe_down")]
    for rows, context, window in (
        (1, 8192, 0), (1, 8192, WINDOW), (1, 131072, 0), (1, 131072, WINDOW), (8, 8192, 0),
        (8, 8192, WINDOW),
    ):  # fmt: skip
        entries.append((f"attention {context}", partial(attention, rows, context, window)))
    for name, make in entries:
        if only in name:
            yield make()


def _cupy(tensor: Any, dtype: Any = None) -> Any:
    """The same memory as a CuPy array; bfloat16 as uint16."""
    import cupy
    import torch

    if tensor.dtype == torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(np.uint16)
    return cupy.from_dlpack(tensor)


def _random(*shape: int) -> Any:
    """Normal weights for a product of length one."""
    import torch

    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16).mul_(shape[-1] ** -0.5)


def _copies(nbytes: int) -> int:
    return max(2, min(400, -(-COLD // nbytes)))


def product(shape: str, rows: int, n: int, k: int) -> Race:
    """gemm beside torch.matmul, that is cuBLAS, on `rows` tokens."""
    import torch

    nbytes = 2 * n * k
    copies = 1 if nbytes > COLD else _copies(nbytes)
    weights = [_random(n, k) for _ in range(copies)]
    x = torch.randn(rows, k, device=DEVICE)
    y = torch.empty(rows, n, device=DEVICE)
    narrow, out = x.bfloat16(), torch.empty(rows, n, device=DEVICE, dtype=torch.bfloat16)
    same = {"count": _device(np.array([rows], np.int32)), "x": _cupy(x)}
    uses = [
        [Use(find_op("gemm"), {**same, "w": _cupy(w), "y": _cupy(y)}, {"n": n, "k": k}, "y")]
        for w in weights
    ]
    calls: list[Call] = [partial(torch.matmul, narrow, w.t(), out=out) for w in weights]
    return Race("gemm", shape, rows, nbytes, uses, {"matmul": calls}, lambda: (y, calls[0]()), 0.95)


def experts(name: str, rows: int) -> Race:
    """moe_up or moe_down beside torch._grouped_mm; each entry has a routing of its own."""
    import torch

    op, up = find_op(name), name == "moe_up"
    n, k, height = (WIDTH, HIDDEN, 2 * WIDTH) if up else (HIDDEN, WIDTH, HIDDEN)
    w = _random(EXPERTS, height, k)
    pairs_count, slot_count = rows * TOP, min(EXPERTS, rows * TOP)
    source = torch.randn(rows if up else pairs_count, k, device=DEVICE)
    y = torch.empty(pairs_count, n, device=DEVICE)
    rng, used, uses, firsts = np.random.default_rng(0), [], [], []
    calls: list[Call] = []
    for entry in range(EXPERTS // TOP if rows == 1 else 4):
        if rows == 1:  # the entries share no expert
            ids = ((np.arange(TOP) * (EXPERTS // TOP) + entry) % EXPERTS)[None]
        else:
            ids = np.stack([rng.permutation(EXPERTS)[:TOP] for _ in range(rows)])
        order = np.argsort(ids.ravel(), kind="stable").astype(np.int32)
        found, starts = np.unique(ids.ravel()[order], return_index=True)
        slots = np.full((slot_count + 1, 2), (-1, pairs_count), np.int32)
        slots[: len(found), 0], slots[: len(found), 1] = found, starts
        used.append(len(found))
        counts = np.bincount(ids.ravel(), minlength=EXPERTS)
        offs = torch.tensor(np.cumsum(counts), dtype=torch.int32, device=DEVICE)
        lists = {"slots": _device(slots), "pairs": _device(order)}
        sizes = {
            "n": n,
            "k": k,
            "first_slot": 0,
            "slot_count": slot_count,
            "slot_step": spread_step(slot_count),
        }
        gathered = (source[order // TOP] if up else source).bfloat16()
        if up:
            arrays = {"count": _device(np.array([rows], np.int32)), **lists, "x": _cupy(source)}
            arrays |= {"w_gate": _cupy(w), "act": _cupy(y)}
            arrays["w_up"] = arrays["w_gate"]
            logical = {"act": (slot_count, n)}
            sizes |= {"top": TOP, "up_row": WIDTH}
        else:
            arrays = {**lists, "act": _cupy(source), "w": _cupy(w), "y": _cupy(y)}
            logical = {"act": (slot_count, k), "y": (slot_count, n)}
        uses.append([Use(op, arrays, sizes, "act" if up else "y", logical)])
        calls.append(partial(torch._grouped_mm, gathered, w.transpose(1, 2), offs=offs))
        firsts.append((order, gathered, offs))
    order, gathered, offs = firsts[0]

    def first() -> tuple[Any, Any]:
        theirs = torch._grouped_mm(gathered, w.transpose(1, 2), offs=offs).float()
        if up:
            return y, torch.nn.functional.silu(theirs[:, :WIDTH]) * theirs[:, WIDTH:]
        return y[torch.from_numpy(order.astype(np.int64)).cuda()], theirs

    nbytes = int(np.mean(used) * height * k * 2)
    shape = f"{np.mean(used):.1f} of {EXPERTS} experts, {height} x {k}"
    return Race(name, shape, rows, nbytes, uses, {"_grouped_mm": calls}, first, 1.0)


def attention(rows: int, context: int, window: int) -> Race:
    """attention and attention_combine beside every backend of scaled_dot_product_attention: `rows`
    tokens, each at the last of `context` positions; a `window` of so many keys, 0 for all."""
    import torch
    from torch.nn.attention import SDPBackend

    seen = min(window, context) if window else context
    nbytes = rows * seen * KV_HEADS * HEAD_DIM * 2 * 2
    copies, per_sequence = _copies(nbytes), context // PAGE
    pages, splits = rows * per_sequence, splits_kept(context, window)
    table = torch.randperm(pages, device=DEVICE).int().reshape(rows, per_sequence)
    shape = (pages, KV_HEADS, PAGE, HEAD_DIM)
    where = np.array([(row, context - 1) for row in range(rows)], np.int32)
    q = torch.randn(rows, HEADS * HEAD_DIM, device=DEVICE)
    partial_sums = torch.empty(rows, splits, HEADS, HEAD_DIM + 16, device=DEVICE)
    y = torch.empty(rows, HEADS * HEAD_DIM, device=DEVICE)
    places = {"count": _device(np.array([rows], np.int32)), "rows": _device(where)}
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "splits": splits, "window": window}
    more = {"kv_heads": KV_HEADS, "page": PAGE, "pages_per_sequence": per_sequence}
    more["split_step"] = spread_step(splits)
    scale = float(np.float32(HEAD_DIM**-0.5))
    seen_by = {"partial": (rows, splits, HEADS)}
    cached = dict.fromkeys(("k_pages", "v_pages"), (rows, 2, KV_HEADS * HEAD_DIM)) | seen_by
    queries = q.bfloat16().reshape(rows, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    uses: list[list[Use]] = []
    baselines: dict[str, list[Call]] = {}
    for _ in range(copies):  # like layers: each has its own cache, the pages are the same
        pools = [torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
        sums = {"partial": _cupy(partial_sums)}
        cache = {"k_pages": _cupy(pools[0]), "v_pages": _cupy(pools[1])}
        scored = {**places, "page_table": _cupy(table), "q": _cupy(q), **cache, **sums}
        values = {**sizes, **more, "scale": scale}
        joined = {**places, **sums, "y": _cupy(y)}
        uses.append([
            Use(find_op("attention"), scored, values, "partial", cached),
            Use(find_op("attention_combine"), joined, sizes, "y", seen_by),
        ])  # fmt: skip
        whole = []
        for pool in pools:  # [rows, kv heads, keys, head_dim], only what is seen, in one piece
            own = pool[table[:, (context - seen) // PAGE :].long()]
            whole.append(own.transpose(1, 2).reshape(rows, KV_HEADS, seen, HEAD_DIM))
        for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
            for grouped in (False, True):  # 8 queries of a head, or 32 heads of a query
                given = queries.reshape(rows, HEADS, 1, HEAD_DIM) if grouped else queries
                call = partial(
                    _sdpa, getattr(SDPBackend, backend), given, whole[0], whole[1], scale, grouped
                )
                name = backend.split("_")[0].lower() + (" gqa" if grouped else "")
                baselines.setdefault(name, []).append(call)

    def first() -> tuple[Any, Any]:
        return y, baselines["math"][0]().reshape(rows, -1)

    name = f"context {context}" + (f", window {window}" if window else "")
    return Race("attention", name, rows, nbytes, uses, baselines, first, 0.9)


def _sdpa(backend: Any, q: Any, k: Any, v: Any, scale: float, grouped: bool) -> Any:
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)


def _device(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)
