"""Is the CUDA machine right on this GPU, and fast? Run as `python -m mkport.testing.gpu_check`.

Compiles the ops for the device, holds all their forms to the law and to each other's bits, repeats
runs, plants a lost signal, and only then times gemm beside `torch.matmul`, and attention.
"""

import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from mkport.compose.cuda import compose_cuda
from mkport.declare import RECORD, spread_step
from mkport.declare.case import to_bf16
from mkport.kernels.attention.op import SPLIT
from mkport.library import all_ops, find_op
from mkport.machines.cpu.machine import Stuck
from mkport.machines.cuda.gpu import gpu
from mkport.machines.cuda.machine import CudaMachine
from mkport.machines.cuda.nvrtc import Compiled, nvrtc
from mkport.plan import Graph, Schedule, deal
from mkport.testing.check import Verdict, check_op
from mkport.testing.cuda_forms import GpuLaunch, run_solo, run_standalone, standalone_source
from mkport.testing.parts import load_part
from mkport.testing.suite import units
from mkport.verify import verify

GEMM = find_op("gemm")
OPS = [op for op in all_ops().values() if (op.folder / "task.cuh").is_file()]
MORE_SHAPES: dict[str, dict[str, Any]] = {
    **{f"k = {k}": {"tokens": 8, "rows": 7, "n": 320, "k": k} for k in (16, 64, 96, 768, 1024)},
    "k = 2048": {"tokens": 8, "rows": 8, "n": 4096, "k": 2048, "residual": True},
    "k = 4096": {"tokens": 8, "rows": 8, "n": 2053, "k": 4096},
}
COLUMNS, DEPTH = 131072, 2048  # of the timed weight: 512 MiB of bfloat16
REPEATS = 30


def main() -> int:
    """Runs every part, a later one also after a failure; 0 when all were right."""
    here = gpu()
    print(
        f"{here.name}, {here.arch}, {here.multiprocessors} multiprocessors, "
        f"{here.shared_bytes} bytes of shared memory a block; NVRTC {nvrtc().version}"
    )
    failed = []
    parts = (compiles, forms, batches, repeats, loses_a_signal, is_timed, attention_is_timed)
    for part in parts:
        print(f"\n{part.__name__.replace('_', ' ')}")
        started = time.perf_counter()
        try:
            part()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failed.append(part.__name__)
        print(f"  {time.perf_counter() - started:.1f} s")
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall right")
    return 1 if failed else 0


def compiles() -> None:
    """From nothing, for the device: all ops together, and gemm alone."""
    for ops in (OPS, [GEMM]):
        for dtype in ("bf16", "f32"):
            started = time.perf_counter()
            made = nvrtc().compile(compose_cuda(ops, dtype, dtype).source, gpu().arch)
            took = time.perf_counter() - started
            print(f"  {len(ops):2} ops, {dtype}: {used(made)}; {took:.1f} s")


def used(made: Compiled) -> str:
    """Registers and spills of a megakernel, as far as the assembler has told them."""
    registers = made.registers.get("megakernel")
    if registers is None:
        return f"{len(made.cubin)} bytes of machine code, whose registers are not known"
    return f"{registers} registers, {sum(made.spills.values())} bytes spilled or saved by calls"


def forms() -> None:
    """The law, and the same bits in every form: a line for each op and each failure."""
    wrong = 0
    for dtype in ("bf16", "f32"):
        program = compose_cuda(OPS, dtype, dtype)
        for op in OPS:
            found: list[Verdict] = []
            for form in (unit.form for unit in units([op], dtypes=(dtype,), machine="cuda")):
                for shapes in (None, MORE_SHAPES) if op is GEMM and form != "step" else (None,):
                    if dtype == "f32" and shapes:
                        shapes = {name: s for name, s in shapes.items() if s["k"] <= 2048}
                    given = program if form in ("ported", "solo") else None
                    workers = gpu().multiprocessors
                    try:
                        found += check_op(
                            op, "cuda", form, shapes, dtype=dtype, workers=workers, program=given
                        )
                    except Exception as error:
                        print(f"  FAILED {dtype} {op.name} {form}: {error!s:.500}")
                        wrong += 1
            for v in found:
                if not v.ok:
                    print(f"  WRONG {dtype} {op.name} {v.form} {v.shape}: {v.error:.1e} of "
                          f"{v.allowed:.1e} allowed; {v.detail}")  # fmt: skip
            right = sum(v.ok for v in found)
            wrong += len(found) - right
            print(f"  {dtype:4} {op.name:18} {right} of {len(found)} right")
    assert not wrong


def batches() -> None:
    """A row has the same bits in any batch, and rows that are idle stay as they were."""
    program = compose_cuda([GEMM], "bf16", "bf16")
    make = load_part(GEMM, "oracle").make
    case = make(np.random.default_rng(0), "bf16", "bf16", tokens=8, rows=8, n=1040, k=2048)
    whole = run_standalone(GEMM, case, "cuda")["y"]
    for rows in range(9):
        case.arrays["count"][0] = rows
        y = run_solo(GEMM, case, program, "cuda", gpu().multiprocessors)["y"]
        assert y[:rows].tobytes() == whole[:rows].tobytes(), f"{rows} rows"
        assert np.isnan(y[rows:]).all(), f"idle rows of {rows}"
    print("  0 to 8 rows: same bits")


def repeats() -> None:
    """Twenty runs, and any number of workers: the same bits."""
    program = compose_cuda([GEMM], "bf16", "bf16")
    make = load_part(GEMM, "oracle").make
    case = make(np.random.default_rng(1), "bf16", "bf16", tokens=8, rows=5, n=16384, k=2048)
    most = gpu().multiprocessors
    counts = [most] * 20 + [1, 2, 7, most - 1]
    seen = {run_solo(GEMM, case, program, "cuda", workers)["y"].tobytes() for workers in counts}
    assert len(seen) == 1, f"{len(seen)} different outputs"
    schedule, given = chain(most)
    machine = CudaMachine(compose_cuda(schedule.graph.ops, "bf16", "bf16"), schedule, given)
    seen = set()
    for _ in range(200):
        machine.poison()
        machine.step()
        seen.add(machine.tensors["b"].get().tobytes())
    assert len(seen) == 1, f"{len(seen)} different outputs of a chain"
    print("  20 runs, five worker counts, 200 steps of a chain of 24 products: same bits")
    once = times(machine.launch, 200)
    machine.check()
    print(f"  a step of the chain: {once * 1e6:.1f} us, {once / 24 * 1e6:.2f} us a product")


def chain(workers: int) -> tuple[Schedule, dict[str, Any]]:
    """24 products of 2048 x 2048, each waiting for the one before it."""
    rng = np.random.default_rng(0)
    graph, width = Graph(), 2048
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("in", "f32", (8, width), "input")
    for name in ("a", "b"):
        graph.tensor(name, "f32", (8, width), "scratch")
    graph.tensor("w", "bf16", (width, width), "weight")
    w = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
    for n in range(24):
        source = "in" if n == 0 else "ab"[(n + 1) % 2]
        args = {"x": source, "y": "ab"[n % 2], "w": "w", "n": width, "k": width}
        graph.add(GEMM, f"product {n}", count="count", **args)
    schedule = deal(graph, workers, share="strided")
    verify(schedule)
    x = rng.standard_normal((8, width), np.float32)
    return schedule, {"count": np.array([8], np.int32), "in": x, "w": to_bf16(w)}


def loses_a_signal() -> None:
    """A step that cannot end is aborted in time, says where, and leaves a machine that works."""
    schedule, given = chain(8)
    program = compose_cuda(schedule.graph.ops, "bf16", "bf16")
    lists = [records.copy() for records in schedule.lists]
    lists[3][2][RECORD["signal"].first] = -1
    broken = replace(schedule, lists=tuple(lists))
    machine = CudaMachine(program, broken, given, limit_s=0.2)
    for _ in range(2):
        started = time.perf_counter()
        try:
            machine.step()
        except Stuck as error:
            lines = str(error).splitlines()
            took = time.perf_counter() - started
            assert "product 3" in lines[1] and "missing" in lines[1], error
        else:
            raise AssertionError("the step ended without the signal")
    print(f"  aborted after {took:.2f} s: {lines[1].strip()}")
    machine = CudaMachine(program, schedule, given)
    machine.step()


def is_timed() -> None:
    """A product with a weight much larger than any cache, beside PyTorch's, in turns."""
    import cupy
    import torch

    w = torch.randn(COLUMNS, DEPTH, device="cuda", dtype=torch.bfloat16) / DEPTH**0.5
    weight = cupy.from_dlpack(w.view(torch.int16)).view(np.uint16)
    program = compose_cuda([GEMM], "bf16", "bf16")
    launcher = GpuLaunch(standalone_source(GEMM))
    print(f"  {COLUMNS} x {DEPTH} bf16, medians of {REPEATS}; GB/s of weight bytes")
    print("  rows   torch.matmul        standalone          solo megakernel    solo / torch")
    for rows in (1, 8):
        x = torch.randn(rows, DEPTH, device="cuda")
        narrow = x.to(torch.bfloat16)
        machine = timed_machine(program, rows, x, weight)
        y = cupy.empty((rows, COLUMNS), np.float32)
        given = {"x": machine.tensors["x"], "w": weight, "y": y, "n": COLUMNS, "k": DEPTH}
        case = SimpleNamespace(count=np.array([rows]), norm_eps=0.0, **given)
        ordinary = partial(load_part(GEMM, "oracle").call_standalone_cuda, launcher, case)
        machine.step()
        ordinary()
        ours = torch.from_numpy(machine.tensors["y"].get())
        truth = torch.cat([(narrow.double() @ part.double().T) for part in w.split(8192)], dim=1)
        error = float((ours - truth.cpu()).abs().max() / truth.abs().max())
        same = bool((machine.tensors["y"] == y).all())
        assert error < 2e-5 and same, f"relative error {error:.1e}, standalone the same: {same}"
        contestants = (partial(torch.matmul, narrow, w.T), ordinary, machine.launch)
        samples = [[times(run, 1) for run in contestants] for _ in range(REPEATS)]
        fastest = [statistics.median(column) for column in zip(*samples, strict=True)]
        machine.check()
        speeds = [w.numel() * 2 / t / 1e9 for t in fastest]
        cells = "   ".join(
            f"{t * 1e6:7.1f} us {s:5.0f}" for t, s in zip(fastest, speeds, strict=True)
        )
        print(f"  {rows:4}   {cells}   {speeds[2] / speeds[0]:.3f}")


def attention_is_timed() -> None:
    """32 heads on 4 of keys and values, 128 columns, a cache much larger than the L2 cache."""
    import cupy

    op, heads, kv_heads, dim, page = find_op("attention"), 32, 4, 128, 64
    program = compose_cuda([op], "bf16", "bf16")
    print("  bf16 cache of 128 MiB; GB/s of keys and values, solo megakernel")
    for rows, context in ((1, 65536), (8, 8192)):
        pages, splits = rows * context // page, context // SPLIT
        graph = Graph(program.ops)
        graph.tensor("count", "i32", (1,), "input")
        graph.tensor("rows", "i32", (rows, 2), "input")
        graph.tensor("page_table", "i32", (rows, context // page), "input")
        graph.tensor("q", "f32", (rows, heads * dim), "input")
        logical = (rows, 2, kv_heads * dim)
        for name in ("k_pages", "v_pages"):
            graph.tensor(name, "bf16", (pages, kv_heads, page, dim), "state", logical)
        shape = (rows, splits, heads, dim + 16)
        graph.tensor("partial", "f32", shape, "scratch", (rows, splits, heads))
        names = {arg.name: arg.name for arg in op.tensors if arg.name in graph.tensors}
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "page": page}
        more = {"splits": splits, "split_step": spread_step(splits), "window": 0}
        more["pages_per_sequence"] = context // page
        graph.add(op, "attention", **names, **sizes, **more, scale=dim**-0.5)
        schedule = deal(graph, gpu().multiprocessors, share="strided")
        verify(schedule)
        table = np.random.default_rng(0).permutation(pages).astype(np.int32)
        where = np.stack([np.arange(rows), np.full(rows, context - 1)], axis=1).astype(np.int32)
        given: dict[str, Any] = {
            "count": np.array([rows], np.int32),
            "rows": where,
            "page_table": table.reshape(rows, -1),
            "q": cupy.random.standard_normal((rows, heads * dim), dtype=np.float32),
        }
        machine = CudaMachine(program, schedule, given)  # zero keys are as fast as any
        machine.step()
        took = statistics.median(times(machine.launch, 1) for _ in range(REPEATS))
        machine.check()
        bytes_read = 2 * 2 * rows * context * kv_heads * dim
        print(f"  {rows} x {context:5}: {took * 1e6:7.1f} us {bytes_read / took / 1e9:5.0f}")


def timed_machine(program: Any, rows: int, x: Any, weight: Any) -> CudaMachine:
    """A megakernel of the one product, a worker for each multiprocessor."""
    import cupy

    graph = Graph(program.ops)
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("x", "f32", (rows, DEPTH), "input")
    graph.tensor("w", "bf16", (COLUMNS, DEPTH), "weight")
    graph.tensor("y", "f32", (rows, COLUMNS), "output")
    graph.add(GEMM, "product", count="count", x="x", w="w", y="y", n=COLUMNS, k=DEPTH)
    schedule = deal(graph, gpu().multiprocessors, share="strided")
    verify(schedule)
    given = {"count": np.array([rows], np.int32), "x": cupy.from_dlpack(x), "w": weight}
    return CudaMachine(program, schedule, given)


def times(run: Callable[[], object], count: int) -> float:
    """Seconds on the device that one of `count` calls takes on average, queued back to back."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    run()
    begin.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) / 1e3 / count


if __name__ == "__main__":
    sys.exit(main())
