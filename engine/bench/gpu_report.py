"""The GPU benchmark's report as a Markdown table and as pictures."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOURS = ("#2b6cb0", "#90cdf4", "#a0aec0", "#cbd5e0")


def table(report: Mapping[str, Any]) -> str:
    """Every batch and contestant: milliseconds, tokens a second, shares of the bandwidths."""
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    rounds = len(next(iter(report["batches"][0]["samples"].values())))
    read = report["read_bytes_per_s"] / 1e12
    lines = [
        f"Decode steps of {report['model']}, bfloat16, {report['context']} positions, on one "
        f"{report['gpu']} that reads {read:.2f} TB/s ({versions}, commit {report['commit']}). "
        f"Medians of {rounds} steps of each or fewer, in turns, on the same weights; what was "
        "compared first stands in the last column.",
        "",
        "| batch | what | ms a step | tokens/s | of the datasheet | of measured reads | GB a step "
        "| compared |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for batch in report["batches"]:
        for name, samples in batch["samples"].items():
            seconds, shares = statistics.median(samples), batch["shares"][name]
            sheet = shares.get("of_datasheet")
            lines.append(
                f"| {batch['batch']} | {name} | {seconds * 1e3:.3f} "
                f"| {batch['batch'] / seconds:.0f} "
                f"| {'' if sheet is None else f'{100 * sheet:.0f} %'} "
                f"| {100 * shares['of_measured_read']:.0f} % | {batch['nbytes'] / 1e9:.2f} "
                f"| {_said(batch['verdicts'][name])} |"
            )
    fed = ", ".join(
        f"{b['batch'] / b['chained_s']:.0f} tokens/s at batch {b['batch']}"
        for b in report["batches"]
    )
    missing = [
        f"At batch {batch['batch']}, {name} is missing: {verdict['absent']}."
        for batch in report["batches"]
        for name, verdict in batch["verdicts"].items()
        if "absent" in verdict
    ]
    lines += ["", *missing] if missing else []
    lines += ["", f"With each step's tokens fed to the next and read by the host: {fed}."]
    return "\n".join(lines) + "\n"


def _said(verdict: Mapping[str, Any]) -> str:
    """A verdict in a few words."""
    parts = []
    if "same_bits_in_runs" in verdict:
        parts.append(f"{verdict['same_bits_in_runs']} runs, same bits")
    if "same_bits_as_megakernel" in verdict:
        same = "same bits" if verdict["same_bits_as_megakernel"] else "OTHER BITS"
        parts.append(f"{same} as the megakernel, {verdict['launches']} ops")
    if "ok" in verdict:
        said = {True: "lawful", False: "NOT LAWFUL", None: "no clear row"}[verdict["ok"]]
        errors = f"{verdict['error']:.1e} of {verdict['allowed']:.1e}"
        parts.append(f"{said} in {verdict['layers']} layers ({errors})")
    elif "finite" in verdict:
        parts.append("finite" if verdict["finite"] else "NOT FINITE")
    return ", ".join(parts)


def draw(report: Mapping[str, Any], file: Path) -> None:
    """Tokens a second by batch and contestant, with what the bytes allow. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    batches = report["batches"]
    names = list(dict.fromkeys(name for b in batches for name in b["samples"]))
    figure, axes = plt.subplots(figsize=(8, 4.5))
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        there = [i for i, b in enumerate(batches) if name in b["samples"]]
        speeds = [
            batches[i]["batch"] / statistics.median(batches[i]["samples"][name]) for i in there
        ]
        at = [i + (place - (len(names) - 1) / 2) * width for i in there]
        bars = axes.bar(at, speeds, width * 0.92, label=name, color=COLOURS[place])
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    sheet = report["datasheet_bytes_per_s"] or report["read_bytes_per_s"]
    for i, batch in enumerate(batches):
        bound = batch["batch"] * sheet / batch["nbytes"]
        label = "the bytes at the datasheet's speed" if i == 0 else None
        axes.plot([i - 0.45, i + 0.45], [bound, bound], color="#c53030", label=label)
    axes.set_xticks(range(len(batches)), [f"batch {b['batch']}" for b in batches])
    axes.set_ylabel("tokens a second")
    axes.set_title(f"{report['model']}, {report['context']} positions, measured on {report['gpu']}")
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
