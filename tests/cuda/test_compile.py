"""The composed file: what it holds, and that NVRTC compiles it within the register budget."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mkport.compose.cuda import compose_cuda
from mkport.declare import Op
from mkport.engine import cuda_ahead
from mkport.engine.prefill import route
from mkport.errors import UserError
from mkport.kernels.gemm.op import OP as GEMM
from mkport.library import all_ops
from mkport.machines.cuda.ahead import FEED
from mkport.machines.cuda.nvrtc import Compiled, Nvrtc, options_of, usage
from mkport.testing import FORMS, Verdict, gpu_check
from mkport.testing.gpu_check import used
from mkport.testing.suite import has_form

ARCHS = ("sm_80", "sm_90a", "sm_100", "sm_120")
SLOW = pytest.mark.slow
ROWS = (8, pytest.param(64, marks=SLOW))  # of a step
REGISTERS = 168  # of each of a worker's 384 threads
SPILLS = 1536  # bytes a thread, of all ops in one file; an op alone has none
WITH_TASK = [op for op in all_ops().values() if (op.folder / "task.cuh").is_file()]
AROUND = [FEED, cuda_ahead.SOURCE, route.SOURCE]  # kernels that are no op
STANDALONE = [op for op in all_ops().values() if (op.folder / "standalone.cu").is_file()]


def test_bodies_are_in_the_file_byte_for_byte() -> None:
    source = compose_cuda(WITH_TASK, "bf16", "bf16").source
    for op in WITH_TASK:
        assert (op.folder / "task.cuh").read_text() in source


def test_it_includes_standard_headers_alone() -> None:
    source = compose_cuda(WITH_TASK, "bf16", "bf16").source
    assert re.findall(r"#\s*include\s+(\S+)", source) == ["<stdint.h>"]


def test_its_contents_list_names_the_sections_in_order() -> None:
    source = compose_cuda(WITH_TASK, "bf16", "bf16").source
    listed = re.findall(r"^//   \d+\. (.*)$", source, re.M)
    assert listed == re.findall(r"^// ======== (.*) ========$", source, re.M)
    assert f"Op gemm: {GEMM.doc}" in listed


def test_inline_ptx_and_intrinsics_stay_in_the_device_header() -> None:
    source = compose_cuda(WITH_TASK, "bf16", "bf16").source
    after = source.split("Constants and storage types ========")[1]
    assert not re.search(r"\basm\b|__\w+_sync\b|__ldg|threadIdx|blockIdx|\b__syncthreads", after)


def test_bodies_neither_wait_nor_signal() -> None:
    for op in WITH_TASK:
        body = (op.folder / "task.cuh").read_text()
        assert not re.search(r"mk_(wait|signal|worker|barrier)", body), op.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "f16"}, "weights type 'f16' is unknown"),
        ({"cache": "fp8"}, "cache type 'fp8' is unknown"),
        ({"rows": 65}, "65 rows"),
    ],
)
def test_what_cannot_be_composed_is_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose_cuda([GEMM], **({"weights": "bf16", "cache": "bf16"} | change))


def test_an_op_without_a_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gemm has no CUDA task: .*task.cuh is missing"):
        compose_cuda([replace(GEMM, folder=tmp_path)], "bf16", "bf16")


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        pytest.param(arch, dtype, marks=[] if dtype == "bf16" or arch == "sm_90a" else SLOW)
        for arch in ARCHS
        for dtype in ("bf16", "f32")
    ],
)
@pytest.mark.parametrize("rows", ROWS)
def test_the_megakernel_compiles_within_its_registers(
    nvrtc: Nvrtc, arch: str, dtype: str, rows: int
) -> None:
    made = nvrtc.compile(compose_cuda(WITH_TASK, dtype, dtype, rows).source, arch)
    assert made.cubin.startswith(b"\x7fELF")
    assert 0 < made.registers["megakernel"] <= REGISTERS
    assert max(made.spills.values()) <= SPILLS


@pytest.mark.parametrize(("version", "told"), [((12, 8), False), ((12, 9), True), ((13, 0), True)])
def test_machine_code_never_comes_from_a_cache_that_forgets_its_registers(
    version: tuple[int, int], told: bool
) -> None:
    options = options_of(version, "sm_90a", lines=True, include=[Path("here")])
    assert ("--no-cache" in options) == told
    assert options[-2:] == ["-lineinfo", "--include-path=here"]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ptxas info : Compiling entry function 'megakernel' for 'sm_90a'\n"
         "ptxas info : Function properties for megakernel\n"
         "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
         "ptxas info : Used 168 registers\n", "168 registers, 12 bytes spilled"),
        ("", "5 bytes of machine code, whose registers are not known"),
    ],
)  # fmt: skip
def test_the_gpu_check_tells_what_the_assembler_said_or_that_it_did_not(
    log: str, words: str
) -> None:
    assert words in used(Compiled(b"\x7fELF.", log, *usage(log)))


def test_the_gpu_check_asks_ops_for_the_forms_that_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = set()

    def check(op: Op, machine: str, form: str, *rest: object, **more: object) -> list[Verdict]:
        asked.add((op.name, form))
        return []

    monkeypatch.setattr(gpu_check, "check_op", check)
    monkeypatch.setattr(gpu_check, "compose_cuda", lambda *given: None)
    monkeypatch.setattr(gpu_check, "gpu", lambda: SimpleNamespace(multiprocessors=2))
    gpu_check.forms()
    ops = gpu_check.OPS
    assert asked == {(o.name, form) for o in ops for form in FORMS if has_form(o, form, "cuda")}
    assert len(asked) < len(ops) * len(FORMS)  # no model's step holds them all


@pytest.mark.parametrize("op", WITH_TASK, ids=lambda op: op.name)
@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        pytest.param(arch, dtype, marks=[] if (arch, dtype) == ("sm_90a", "bf16") else SLOW)
        for arch in ARCHS
        for dtype in ("bf16", "f32")
    ],
)
@pytest.mark.parametrize("rows", ROWS)
def test_no_op_spills(nvrtc: Nvrtc, arch: str, dtype: str, op: Op, rows: int) -> None:
    made = nvrtc.compile(compose_cuda([op], dtype, dtype, rows).source, arch)
    assert set(made.spills.values()) == {0}


@pytest.mark.parametrize("op", STANDALONE, ids=lambda op: op.name)
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=SLOW)])
def test_a_standalone_kernel_compiles_without_spills(nvrtc: Nvrtc, arch: str, op: Op) -> None:
    source = (op.folder / "standalone.cu").read_text()
    assert "#include" not in source and "mk_" not in source
    made = nvrtc.compile(source, arch, f"{op.name}.cu")
    assert made.registers and set(made.spills.values()) == {0}


@pytest.mark.parametrize("file", AROUND, ids=lambda file: file.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_stands_around_a_step_compiles(nvrtc: Nvrtc, arch: str, file: Path) -> None:
    made = nvrtc.compile(file.read_text(), arch, file.name)
    assert made.registers and set(made.spills.values()) == {0}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_read_only_loads_come_from_the_immutable_load_alone(
    nvrtc: Nvrtc, nvdisasm: str, arch: str, tmp_path: Path
) -> None:
    """The read-only path may serve stale bytes for whatever another worker wrote in this launch."""
    source = compose_cuda(WITH_TASK, "bf16", "bf16").source
    (tmp_path / "code.cubin").write_bytes(nvrtc.compile(source, arch, lines=True).cubin)
    command = [nvdisasm, "-g", str(tmp_path / "code.cubin")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines, number, found = source.splitlines(), 0, 0
    for text in listing.splitlines():
        if place := re.search(r'File ".*", line (\d+)', text):
            number = int(place[1])
        if re.search(r"\bLDG\.\S*CONSTANT", text):
            found += 1
            nearby = "\n".join(lines[max(number - 2, 0) : number])
            assert "mk_load_immutable" in nearby, (number, lines[number - 1])
    assert found


def test_a_refused_text_shows_the_compiler_s_words(nvrtc: Nvrtc) -> None:
    with pytest.raises(UserError, match="broken.cu.*\n.*nonsense"):
        nvrtc.compile("__global__ void f() { nonsense; }", "sm_80", "broken.cu")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=SLOW), "sm_90a"])
def test_plain_nvcc_builds_the_file(arch: str, tmp_path: Path) -> None:
    file = tmp_path / "megakernel.cu"
    file.write_text(compose_cuda(WITH_TASK, "bf16", "bf16").source)
    target = f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}"
    command = ["nvcc", "-std=c++17", "-cubin", target, "-Werror", "all-warnings", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
