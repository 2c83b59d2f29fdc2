"""Local includes put in place, and mkport's own text for what kernels use of libraries.

Lines keep their numbers: `Merged` says which file and line each one came from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mkport.machines.host as host
from mkport.errors import UserError

OWN = Path(host.__file__).parent / "include"
# Libraries' headers, and mkport's own text of what kernels use of them.
LIBRARIES = {
    r"cub/.+": "cub/cub.cuh",
    r"cooperative_groups(?:/reduce)?\.h": "cooperative_groups.h",
    r"cuda/(?:std/)?functional": "functional.h",
    r"cuda_pipeline(?:_primitives)?\.h": "cuda_pipeline.h",
}
# What NVRTC can read of a header that is for host code too.
DEVICE_PARTS = {
    "cub/cub.cuh": (
        "cub/block/block_reduce.cuh", "cub/block/block_scan.cuh", "cub/block/block_load.cuh",
        "cub/block/block_store.cuh", "cub/warp/warp_reduce.cuh", "cub/warp/warp_scan.cuh",
    ),
}  # fmt: skip

# What files written for earlier releases of CUB have of it, and release 3 has not.
CUB_NAMES = """\
#if defined(CUB_VERSION) && CUB_VERSION >= 300000
namespace cub {
struct Sum {
  template <class T, class U>
  __device__ __forceinline__ auto operator()(const T& a, const U& b) const { return a + b; }
};
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
}  // namespace cub
#endif
"""


@dataclass(frozen=True)
class Merged:
    """One text made of a file and its local includes."""

    text: str
    places: tuple[tuple[str, int], ...]  # of each line: file and line
    system: tuple[str, ...]  # the includes that are not local, in order
    libraries: frozenset[str] = frozenset()  # files that stand in for a library's own headers
    missing: tuple[str, ...] = ()  # local includes that were not found

    def place(self, line: int) -> tuple[str, int]:
        """Where a line of the text came from."""
        return self.places[min(max(line, 1), len(self.places)) - 1]

    def aside(self) -> frozenset[int]:
        """The lines that are a library's."""
        numbered = enumerate(self.places, 1)
        return frozenset(line for line, (file, _) in numbered if file in self.libraries)

    def own(self, text: str, keep: bool = True) -> str:
        """A text of the same lines without those of libraries; `keep`: their places stay, blank."""
        lines = []
        for line, (file, _) in zip(text.split("\n"), self.places, strict=True):
            if file not in self.libraries:
                lines.append(line)
            elif keep:
                lines.append("")
        return "\n".join(lines)


def library_header(name: str) -> Path | None:
    """What stands in for a library's header: mkport's own text of what kernels use of it."""
    for pattern, file in LIBRARIES.items():
        if re.fullmatch(pattern, name):
            return OWN / file
    return None


def merge(path: Path, folders: Sequence[Path] = ()) -> Merged:
    """Reads a file and puts the includes in place that are found beside it or in the folders, each
    once.

    What stands in for a library's header is put in place wherever that is included: it guards
    itself.

    Raises UserError for a file that cannot be read.
    """
    lines: list[str] = []
    places: list[tuple[str, int]] = []
    system: list[str] = []
    missing: list[str] = []
    seen: set[Path] = set()
    libraries: set[str] = set()

    def add(file: Path, name: str, library: bool) -> None:
        seen.add(file.resolve())
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(
                f"{file} cannot be read: {error.strerror or error}. Check the path: a file of CUDA "
                "source is wanted."
            ) from error
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if found:
                beside = [file.parent] if found[1] == '"' else []
                places_of = [place / found[2] for place in [*beside, *folders]]
                local = next((place for place in places_of if place.is_file()), None)
                if local is not None:
                    if library or local.resolve() not in seen:
                        add(local, name if library else found[2], library)
                    line = ""
                else:
                    system.append(found[2])
                    if (header := library_header(found[2])) is not None:
                        libraries.add(f"<{found[2]}>")
                        add(header, f"<{found[2]}>", True)
                    elif found[1] == '"' and not (OWN / found[2]).is_file():
                        missing.append(found[2])
            elif re.match(r"\s*#\s*pragma\s+once\b", line):
                line = ""
            lines.append(line)
            places.append((name, number))

    add(path, path.name, False)
    return Merged(
        "\n".join(lines), tuple(places), tuple(system), frozenset(libraries),
        tuple(dict.fromkeys(missing)),
    )  # fmt: skip
