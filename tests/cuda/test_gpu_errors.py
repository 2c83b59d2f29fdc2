"""What stands in the way of a GPU is told by name, with the way out: on a CuPy that is played."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mkport.errors import UserError
from mkport.machines.cuda import gpu as module

GB = 10**9


class CudaError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Played:
    """A CuPy whose runtime answers as it is told."""

    def __init__(self, **told: Any) -> None:
        self.told: dict[str, Any] = {
            "devices": 1, "capability": "90", "driver": 13000, "built": 13000,
            "free": 100 * GB, "kept": 0, "fails": {},
        } | told  # fmt: skip
        self.allocated = 0
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError,
            getDeviceCount=lambda: self.answer("count", self.told["devices"]),
            driverGetVersion=lambda: self.told["driver"],
            runtimeGetVersion=lambda: self.told["built"],
            getDeviceProperties=lambda n: {
                "name": b"NVIDIA Played", "multiProcessorCount": 132,
                "sharedMemPerBlockOptin": 232448,
            },
            memGetInfo=lambda: self.answer("memory", (self.told["free"], 140 * GB)),
        )  # fmt: skip
        device = SimpleNamespace(id=0, compute_capability=self.told["capability"])
        self.cuda = SimpleNamespace(runtime=runtime, Device=lambda: device)

    def answer(self, call: str, value: Any) -> Any:
        if call in self.told["fails"]:
            raise CudaError(self.told["fails"][call])
        return value

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_bytes=lambda: self.told["kept"])


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Played]]:
    """Puts a played CuPy in place of the installed one."""

    def put(**told: Any) -> Played:
        played = Played(**told)
        monkeypatch.setitem(sys.modules, "cupy", played)
        module.gpu.cache_clear()
        return played

    yield put
    module.gpu.cache_clear()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"devices": 0}, "no CUDA GPU .* use the CPU machine"),
        ({"fails": {"count": 100}}, "no CUDA GPU"),
        ({"fails": {"count": 35}, "driver": 0}, "no NVIDIA driver here"),
        ({"fails": {"count": 35}, "driver": 12040}, r"up to 12.4, .* built for 13.0: .*cuda12"),
        ({"capability": "75"}, "compute capability 7.5; .* needs 8.0"),
        ({"fails": {"memory": 2}}, "another process holds it.* CUDA_VISIBLE_DEVICES"),
        ({"fails": {"memory": 46}}, "held by another process, which has it for itself"),
        ({"fails": {"memory": 999}}, "cudaError 999. Look with nvidia-smi"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_gpu_that_cannot_be_used_is_refused(
    play: Callable[..., Played], told: dict[str, Any], words: str
) -> None:
    play(**told)
    with pytest.raises(UserError, match=words):
        module.gpu()


@pytest.mark.parametrize(("capability", "arch"), [("80", "sm_80"), ("90", "sm_90a")])
def test_a_fit_gpu_is_described(play: Callable[..., Played], capability: str, arch: str) -> None:
    play(capability=capability)
    here = module.gpu()
    assert (here.name, here.arch, here.multiprocessors) == ("NVIDIA Played", arch, 132)


def test_too_little_memory_is_told_before_any_is_taken(play: Callable[..., Played]) -> None:
    play(free=80 * GB, kept=2 * GB)
    parts = {"weights": 61 * GB, "cache": 20 * GB, "scratch": 0}
    module.check_room(parts, "Less context.")
    with pytest.raises(
        UserError,
        match=r"needs 83.81 GB .*weights 61.00 GB, cache 22.00 GB, code and records 0.81 GB\), but "
        r"NVIDIA Played has 82.00 GB free. Less context.",
    ):
        module.check_room(parts | {"cache": 22 * GB}, "Less context.")


def test_a_driver_older_than_the_compiler_is_refused(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(driver=12080)
    compiler = SimpleNamespace(version=(13, 0), path="/lib/libnvrtc.so.13")
    monkeypatch.setattr(module, "nvrtc", lambda: compiler)
    with pytest.raises(UserError, match=r"up to 12.8, .*libnvrtc.so.13 makes .* 13.0: .*cuda12"):
        module.load("nothing", "megakernel")
