"""The gallery: kernels in the styles that people bring, what each is launched with, and the truth.

    python docs/gallery/gallery.py    # writes README.md beside this

A kernel's file includes nothing of mkport. Its port is run on the CPU through the CUDA source and
must leave the same bits as the file itself; the values are held to NumPy in float64.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.declare.case import from_bf16, to_bf16

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
Arrays = dict[str, np.ndarray]
Made = tuple[dict[str, Any], Arrays]  # arguments by parameter, and the truth of the outputs


@dataclass(frozen=True)
class Entry:
    """One kernel of one file."""

    file: str
    kernel: str
    style: str  # what it is an example of
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    make: Callable[[np.random.Generator], Made]
    instantiate: str = ""
    shared: int = 0
    types: str = ""  # of a Numba kernel's arguments
    refused: str = ""  # the code of its refusal


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32."""
    return rng.standard_normal(shape, np.float32)


def naive_gemm(rng: np.random.Generator) -> Made:
    """alpha A B + beta C."""
    m, n, k = 37, 41, 29
    a, b, c = normal(rng, m, k), normal(rng, k, n), normal(rng, m, n)
    given = {"M": m, "N": n, "K": k, "alpha": 0.5, "A": a, "B": b, "beta": 2.0, "C": c}
    return given, {"C": 0.5 * a.astype(np.float64) @ b + 2.0 * c}


def tiled_gemm(rng: np.random.Generator) -> Made:
    """A B on sizes that are no multiples of the tile."""
    m, n, k = 40, 45, 50
    a, b = normal(rng, m, k), normal(rng, k, n)
    given = {"A": a, "B": b, "C": np.zeros((m, n), np.float32), "m": m, "n": n, "k": k}
    return given, {"C": a.astype(np.float64) @ b}


def register_gemm(rng: np.random.Generator) -> Made:
    """A B on whole tiles."""
    m, n, k = 64, 64, 32
    a, b = normal(rng, m, k), normal(rng, k, n)
    given = {"M": m, "N": n, "K": k, "A": a, "B": b, "C": np.zeros((m, n), np.float32)}
    return given, {"C": a.astype(np.float64) @ b}


def gemv(rng: np.random.Generator) -> Made:
    """W x with half-precision weights."""
    w, x = (normal(rng, *shape).astype(np.float16) for shape in ((21, 192), (192,)))
    y = np.zeros(21, np.float32)
    given = {"W": w, "x": x, "y": y, "rows": 21, "cols": 192}
    return given, {"y": w.astype(np.float64) @ x.astype(np.float64)}


M, N, K, SPLITS = 6, 70, 100, 3


def split_k(rng: np.random.Generator) -> Made:
    """A part of the sum over k for each split."""
    a, b = normal(rng, M, K), normal(rng, K, N)
    parts = np.zeros((SPLITS, M, N), np.float32)
    given = {"A": a, "B": b, "partial": parts, "M": M, "N": N, "K": K, "splits": SPLITS}
    cuts = range(0, K, -(-K // SPLITS))
    wide = a.astype(np.float64)
    truth = np.stack([wide[:, i : i + 34] @ b[i : i + 34] for i in cuts])
    return given, {"partial": truth}


def split_k_reduce(rng: np.random.Generator) -> Made:
    """The parts joined, and a bias."""
    partial, bias = normal(rng, SPLITS, M, N), normal(rng, N)
    given = {
        "partial": partial, "bias": bias, "C": np.zeros((M, N), np.float32), "M": M, "N": N,
        "splits": SPLITS,
    }  # fmt: skip
    return given, {"C": partial.astype(np.float64).sum(axis=0) + bias}


def softmax(rng: np.random.Generator) -> Made:
    """Rows of 200 columns by 128 threads."""
    x = 3 * normal(rng, 5, 200)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    given = {"out": np.zeros_like(x), "inp": x, "N": 5, "C": 200}
    return given, {"out": e / e.sum(axis=1, keepdims=True)}


def layernorm(rng: np.random.Generator) -> Made:
    """Rows of 300 columns by 4 warps."""
    x, gamma, beta = normal(rng, 6, 300), normal(rng, 300), normal(rng, 300)
    wide = x.astype(np.float64)
    y = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    given = {
        "input": x, "gamma": gamma, "beta": beta, "output": np.zeros_like(x),
        "hidden_size": 300, "epsilon": 1e-5,
    }  # fmt: skip
    return given, {"output": y * gamma + beta}


def rope(rng: np.random.Generator) -> Made:
    """Query and key of 5 tokens, in place."""
    heads, kv_heads, dim = 4, 2, 32
    positions = rng.integers(0, 50, 5).astype(np.int32)
    angles = np.outer(np.arange(50), 10000.0 ** (-np.arange(dim // 2) / (dim // 2)))
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    q, k = normal(rng, 5, heads, dim), normal(rng, 5, kv_heads, dim)
    given = {
        "positions": positions, "query": q, "key": k, "cos_sin": table, "rot_dim": dim,
        "num_heads": heads, "num_kv_heads": kv_heads, "head_size": dim,
    }  # fmt: skip
    c, s = np.split(table[positions].astype(np.float64)[:, None], 2, axis=2)

    def turned(v: np.ndarray) -> np.ndarray:
        x, y = np.split(v.astype(np.float64), 2, axis=2)
        return np.concatenate([x * c - y * s, y * c + x * s], axis=2)

    return given, {"query": turned(q), "key": turned(k)}


def silu_mul(rng: np.random.Generator) -> Made:
    """7 tokens of 96 columns by 2 blocks of 64 threads."""
    x = to_bf16(normal(rng, 7, 192))
    gate, up = np.split(from_bf16(x).astype(np.float64), 2, axis=1)
    given = {"out": np.zeros((7, 96), np.uint16), "in": x, "tokens": 7, "d": 96}
    return given, {"out": gate / (1 + np.exp(-gate)) * up}


HEADS, KV_HEADS, DIM, PAGE, PAGES = 4, 2, 32, 16, 20
LENGTHS = np.array([37, 0, 70], np.int32)


def _cache(rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
    """Arguments that the attention kernels share, and the truth [sequences, heads, dim]."""
    q = normal(rng, len(LENGTHS), HEADS, DIM)
    k, v = (normal(rng, PAGES, KV_HEADS, PAGE, DIM) for _ in range(2))
    tables = rng.permutation(PAGES)[:15].reshape(3, 5).astype(np.int32)
    out = np.zeros(q.shape)
    for s, length in enumerate(LENGTHS):
        for h in range(HEADS if length else 0):
            rows = [(tables[s, t // PAGE], h // 2, t % PAGE) for t in range(length)]
            keys, values = (np.stack([c[row] for row in rows]).astype(np.float64) for c in (k, v))
            e = keys @ q[s, h] * 0.2
            e = np.exp(e - e.max())
            out[s, h] = e / e.sum() @ values
    given = {
        "q": q, "k_cache": k, "v_cache": v, "block_tables": tables, "seq_lens": LENGTHS,
        "num_kv_heads": KV_HEADS, "max_blocks": 5, "scale": 0.2,
    }  # fmt: skip
    return given, out


def attention_v1(rng: np.random.Generator) -> Made:
    """Three sequences, one of which is empty."""
    given, out = _cache(rng)
    empty = np.zeros(out.shape, np.float32)
    return {"out": empty, "num_heads": HEADS, **given}, {"out": out}


def attention_v2(rng: np.random.Generator) -> Made:
    """Partitions of 32 positions; those behind a sequence's end write nothing."""
    given, out = _cache(rng)
    parts = (len(LENGTHS), HEADS, 3)
    made = {
        "exp_sums": np.zeros(parts, np.float32), "max_logits": np.zeros(parts, np.float32),
        "tmp_out": np.zeros((*parts, DIM), np.float32), **given,
    }  # fmt: skip
    return made, {}


def attention_v2_reduce(rng: np.random.Generator) -> Made:
    """Three partitions at most."""
    sums = rng.uniform(1, 5, (3, HEADS, 3)).astype(np.float32)
    most, parts = normal(rng, 3, HEADS, 3), normal(rng, 3, HEADS, 3, DIM)
    out = np.zeros((3, HEADS, DIM))
    for s, length in enumerate(LENGTHS):
        count = -(-int(length) // 32)
        if count:
            w = sums[s, :, :count] * np.exp(most[s, :, :count].astype(np.float64))
            w /= w.sum(axis=1, keepdims=True)
            out[s] = np.einsum("hp,hpd->hd", w, parts[s, :, :count])
    given = {
        "out": np.zeros(out.shape, np.float32), "exp_sums": sums, "max_logits": most,
        "tmp_out": parts, "seq_lens": LENGTHS, "max_partitions": 3,
    }  # fmt: skip
    return given, {"out": out}


def topk(rng: np.random.Generator) -> Made:
    """4 of 40 experts."""
    logits = normal(rng, 5, 40)
    e = np.exp(logits.astype(np.float64))
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :4]
    given = {
        "logits": logits, "weights": np.zeros((5, 4), np.float32),
        "indices": np.zeros((5, 4), np.int32), "num_experts": 40, "k": 4,
    }  # fmt: skip
    weights = np.take_along_axis(e / e.sum(axis=1, keepdims=True), chosen, axis=1)
    return given, {"weights": weights, "indices": chosen}


def topk_warp(rng: np.random.Generator) -> Made:
    """4 of 40 experts, and the number of tokens as an argument."""
    given, truth = topk(rng)
    return {**given, "tokens": 5}, truth


def int8_gemv(rng: np.random.Generator) -> Made:
    """9 rows of 640 columns."""
    w, x = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((9, 640), (640,)))
    scales = rng.uniform(0.5, 1.5, 9).astype(np.float32)
    given = {
        "weight": w, "x": x, "scales": scales, "x_scale": 0.25, "y": np.zeros(9, np.float32),
        "cols": 640,
    }  # fmt: skip
    return given, {"y": w.astype(np.int64) @ x.astype(np.int64) * 0.25 * scales}


def maxout(rng: np.random.Generator) -> Made:
    """More groups than threads."""
    x = normal(rng, 30, 11, 4)
    best, which = np.zeros((30, 11), np.float32), np.zeros((30, 11), np.int32)
    given = {"best": best, "which": which, "X": x, "B": 30, "O": 11, "P": 4}
    return given, {"best": x.max(axis=2), "which": x.argmax(axis=2)}


def numba_matmul(rng: np.random.Generator) -> Made:
    """Square, and no multiple of the tile."""
    a, b = normal(rng, 40, 40), normal(rng, 40, 40)
    given = {"A": a, "B": b, "C": np.zeros((40, 40), np.float32)}
    return given, {"C": a.astype(np.float64) @ b}


ENTRIES = (
    Entry("naive_gemm.cu", "sgemm_naive", "a thread an element, nothing shared",
          (16, 16, 1), (3, 3, 1), naive_gemm),
    Entry("tiled_gemm.cu", "tiledMatMul", "2-D arrays in shared memory, `__restrict__`, a `main`",
          (16, 16, 1), (3, 3, 1), tiled_gemm),
    Entry("register_gemm.cu", "sgemm2DBlocktiling", "a template of tile sizes, blocks in registers",
          (64, 1, 1), (2, 2, 1), register_gemm, "sgemm2DBlocktiling<32, 32, 8, 4, 4>"),
    Entry("gemv.cu", "gemv_fp16", "a warp a row, half precision, a warp's return",
          (128, 1, 1), (6, 1, 1), gemv),
    Entry("split_k.cu", "splitk_partial", "the first of two kernels that the host launches",
          (64, 1, 1), (2, M, SPLITS), split_k),
    Entry("split_k.cu", "splitk_reduce", "the second one, which reads what the first wrote",
          (64, 1, 1), (7, 1, 1), split_k_reduce),
    Entry("softmax.cu", "softmax_forward", "dynamic shared memory, helpers with barriers",
          (128, 1, 1), (5, 1, 1), softmax, shared=512),
    Entry("layernorm.cu", "layernorm_kernel", "Welford by warps, helpers in a namespace",
          (128, 1, 1), (6, 1, 1), layernorm, "layernorm_kernel<4>"),
    Entry("rope.cu", "rotary_embedding", "in place, a lambda, `__ldg`", (64, 1, 1), (5, 1, 1),
          rope),
    Entry("silu_mul.cu", "silu_and_mul", "bfloat16 in 16-byte pieces, a grid-stride loop",
          (64, 1, 1), (2, 1, 1), silu_mul),
    Entry("paged_attention.cu", "paged_attention_v1",
          "dynamic shared memory in a helper, a block's early return",
          (128, 1, 1), (HEADS, 3, 1), attention_v1, "paged_attention_v1<32, 16, 128>", 320),
    Entry("paged_attention.cu", "paged_attention_v2", "a partition of the sequence in `blockIdx.z`",
          (128, 1, 1), (HEADS, 3, 3), attention_v2, "paged_attention_v2<32, 16, 128, 32>", 128),
    Entry("paged_attention.cu", "paged_attention_v2_reduce", "joins the partitions",
          (128, 1, 1), (HEADS, 3, 1), attention_v2_reduce, "paged_attention_v2_reduce<32, 32>"),
    Entry("topk_softmax.cu", "moe_topk", "CUB's block reductions, results read back",
          (64, 1, 1), (5, 1, 1), topk, "moe_topk<64>"),
    Entry("topk_warp.cu", "topk_softmax", "the same by shuffles, a warp a token",
          (128, 1, 1), (2, 1, 1), topk_warp),
    Entry("int8_gemv.cu", "gemv_int8", "int8, four products an instruction", (128, 1, 1), (9, 1, 1),
          int8_gemv),
    Entry("maxout.cu", "maxout", "a grid-stride loop without barriers", (96, 1, 1), (2, 1, 1),
          maxout, "maxout<float>"),
    Entry("numba_matmul.py", "fast_matmul", "Numba; the grid's size is the loop's bound",
          (16, 16, 1), (3, 3, 1), numba_matmul, types="float32[:,:], float32[:,:], float32[:,:]"),
)  # fmt: skip


def port(
    entry: Entry,
    run: bool = True,
    compile: bool = True,
    out: Path | None = None,
    machine: str = "host",
) -> Any:
    """The report of porting an entry with its arguments; `machine` is "host" or "cuda"."""
    from mkport.port.numba_port import port_python
    from mkport.port.port import port_file

    given, _ = entry.make(np.random.default_rng(0))
    path = KERNELS / entry.file
    if entry.types:
        return port_python(
            path, entry.kernel, entry.types, grid=entry.grid, block=entry.block, arguments=given,
            run=run, compile=compile, out=out, machine=machine,
        )  # fmt: skip
    return port_file(
        path, entry.kernel.split("::")[-1], grid=entry.grid, block=entry.block,
        shared=entry.shared or None, instantiate=entry.instantiate or None, arguments=given,
        run=run, compile=compile, out=out, machine=machine,
    )  # fmt: skip


def errors(entry: Entry, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest difference of each output from the truth, over the truth's largest value."""
    _, truth = entry.make(np.random.default_rng(0))
    found = {}
    for name, wanted in truth.items():
        got = outputs[name].reshape(wanted.shape)
        if got.dtype == np.uint16:
            got = from_bf16(got)
        scale = max(float(np.abs(wanted).max()), 1e-30)
        found[name] = float(np.abs(got.astype(np.float64) - wanted).max()) / scale
    return found


def table() -> str:
    """The table of the gallery's page, with every kernel's verdict."""
    lines = ["| file | kernel | what it is an example of | verdict |", "|---|---|---|---|"]
    for entry in ENTRIES:
        report = port(entry, run=False, compile=False)
        codes = ", ".join(
            f"[{f.code}](../refusals/{f.code}.md)"
            for f in report.findings
            if f.severity == "refusal"
        )
        link = f"[{entry.file}](kernels/{entry.file})"
        verdict = report.verdict + (f": {codes}" if codes else "")
        lines.append(f"| {link} | `{entry.kernel}` | {entry.style} | {verdict} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """README.md of this folder."""
    return TEXT.format(table=table(), files=len({entry.file for entry in ENTRIES}))


TEXT = """\
# A gallery of ported kernels

{files} files in the styles that people bring. None includes anything of mkport. Each kernel is
ported with `mkport port`, run on a CPU through its CUDA source beside the file itself, unmodified,
and leaves the same bits; its values are held to NumPy in float64
(`tests/port/test_gallery_kernels.py`).

{table}
What is launched, with which arguments and what the truth is, stands in [gallery.py](gallery.py).
From the repository's root:

```sh
mkport port docs/gallery/kernels/tiled_gemm.cu                     # the report in twelve steps
mkport port docs/gallery/kernels/softmax.cu --grid 5 --shared 512 -o ops
mkport port docs/gallery/kernels/topk_softmax.cu --block 64 --instantiate "moe_topk<64>"
mkport port docs/gallery/kernels/numba_matmul.py --block 16,16 --grid 3,3 \\
    --types "float32[:,:], float32[:,:], float32[:,:]" \\
    --arg A=f32[40,40] --arg B=f32[40,40] --arg C=f32[40,40]
python docs/gallery/gallery.py                                     # this page
```

`split_k.cu` launches two kernels in order. `mkport port split_k.cu --launches` ports each, and
makes one verified megakernel of the two
([how](../how-to/own_kernels.md#2-several-kernels-of-one-file)).
`paged_attention.cu` holds several kernels too, whose host code is elsewhere.

What is refused, and with which words, is in [refusals](../refusals/README.md).

This page is written by gallery.py.
"""

if __name__ == "__main__":
    (HERE / "README.md").write_text(page(), encoding="utf-8")
    sys.exit(0)
