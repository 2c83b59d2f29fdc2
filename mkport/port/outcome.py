"""What runs on made-up arguments told: whether equal bits mean anything, and why nothing fitted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mkport.declare.case import from_bf16
from mkport.port.finding import Finding
from mkport.port.kernel import Kernel

MOST = 3  # findings of a code that are told
WRITTEN = ("write", "update")
TOLD = {
    "MK201": "raced",
    "MK202": "read what nobody wrote",
    "MK203": "left a buffer",
    "MK204": "misaligned an access",
    "MK206": "crashed",
    "MK207": "left other bits in another order of its threads",
    "MK208": "came to no end",
}


def says_little(
    kernel: Kernel,
    modes: Mapping[str, str],
    arguments: Mapping[str, Any],
    outputs: Mapping[str, np.ndarray],
) -> str:
    """Why equal bits of a run mean next to nothing, in words; "" where they mean something.

    `outputs` are the original's tensors by parameter.
    """
    told = []
    for param in kernel.params:
        before = arguments.get(param.name)
        if modes.get(param.name) not in WRITTEN or not isinstance(before, np.ndarray):
            continue
        word = _plain(before, outputs[param.name], param.dtype)
        if not word:
            return ""
        told.append(f"{word} of {param.name}")
    if not told:
        return "it was given nothing to write to"
    return " and ".join(told)


def _plain(before: np.ndarray, after: np.ndarray, dtype: str) -> str:
    """What is plain about the elements of a tensor that changed; "" for nothing."""
    size = before.itemsize
    old = np.frombuffer(before.tobytes(), np.uint8).reshape(-1, size)
    new = np.frombuffer(after.tobytes(), np.uint8).reshape(-1, size)
    changed = (old != new).any(axis=1)
    count = int(changed.sum())
    if not count:
        return "it changed no element"
    values = after.reshape(-1)[changed]
    if dtype == "bf16" and values.dtype == np.uint16:
        values = from_bf16(values)
    if values.dtype.kind == "f" and np.isnan(values).all():
        return f"it left NaN in all {count} changed elements"
    if not values.any():
        return f"it left zero in all {count} changed elements"
    return ""


def few(findings: Sequence[Finding]) -> list[Finding]:
    """Findings by line, at most `MOST` of a code; the last of them says how many more there are."""
    kept: list[Finding] = []
    for code in dict.fromkeys(finding.code for finding in findings):
        same = sorted((f for f in findings if f.code == code), key=lambda f: f.line)
        more = len(same) - MOST
        kept += same[:MOST]
        if more > 0:
            kept[-1] = replace(kept[-1], cause=f"{kept[-1].cause} There are {more} more like it.")
    return kept


def misfits(
    kernel: Kernel, tried: Sequence[Sequence[Finding]], place: Callable[[int], tuple[str, int]]
) -> str:
    """What became of trials that all went wrong, and how real arguments are given."""
    counted: Counter[str] = Counter()
    for found in tried:
        finding = found[0]
        where = ""
        if finding.line:
            file, line = place(finding.line)
            where = f" in {file}:{line}"
        counted[f"{TOLD.get(finding.code, finding.title)}{where}"] += 1
    told = "; ".join(f"{count} times it {words}" for words, count in counted.items())
    return (
        f"No made-up arguments fit {kernel.name}. Of {len(tried)} trials: {told}. Give the real "
        f"ones, and the bits are compared: {asked_for(kernel)}"
    )


def asked_for(kernel: Kernel) -> str:
    """The options that give a kernel's arguments, with words for what is to be filled in."""
    parts = []
    for param in kernel.params:
        if param.boxed:
            value = f"{{{','.join(name.upper() for name, _, _ in param.fields)}}}"
            value = value if param.fields else "NUMBER" if param.dtype == "f64" else "FILE.npy"
        elif param.kind == "tensor":
            value = f"{param.dtype}[SIZES]"
        else:
            value = "NUMBER"
        parts.append(f"--arg '{param.name}={value}'")
    return " ".join(parts) if parts else "it has none"
