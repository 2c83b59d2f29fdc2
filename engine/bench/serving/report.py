"""A serving report as Markdown tables and as pictures. Nothing is measured here."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mkport.engine.bench.serving.experiments import ANSWER, LONG, NEIGHBOURS
from mkport.engine.bench.serving.race import Report
from mkport.errors import UserError
from mkport.extras import install
from mkport.files import replace_file
from mkport.trace.palette import FAINT, INK, MUTED


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` percent of `values` [n] do not exceed, between two of them by NumPy's
    linear rule; NaN of none."""
    listed = list(values)
    return float(np.percentile(listed, share)) if listed else float("nan")


def overheads(report: Report, batch: int) -> list[float]:
    """What the server adds to a bare decode step at this batch, of each pair of runs that followed
    each other [pairs]: 0.05 is 5 %."""
    ours = next(iter(report.crowd.values()))[batch]
    pairs = zip(report.bare[batch], ours, strict=True)
    return [bare / run["writing_tokens_per_second"] - 1 for bare, run in pairs]


def table(report: Report) -> str:
    """Everything that was measured, as Markdown, with what it was measured on."""
    versions = {name: v for told in report.versions.values() for name, v in told.items()}
    lines = [
        f"Serving {report.model} on {report.machine}; Python {report.python}, "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; commit "
        f"{report.commit}. Medians over rounds, with their range.",
        "",
    ]
    lines += [f"{name} took no part: {why}" for name, why in report.skipped.items()]
    for part in (_overhead, _crowd, _prefill, _follow_up, _beside_long, _load):
        if found := part(report):
            lines += [*found, ""]
    return "\n".join(lines)


def _overhead(report: Report) -> list[str]:
    if not report.bare:
        return []
    lines = [
        "| tokens/s while every stream writes | bare decode loop | server | server adds |",
        "|---|---|---|---|",
    ]
    for batch, bare in report.bare.items():
        ours = [r["writing_tokens_per_second"] for r in next(iter(report.crowd.values()))[batch]]
        added = [100 * share for share in overheads(report, batch)]
        low, high = (percentile(added, share) for share in (25, 75))
        lines.append(
            f"| batch {batch} | {_spread(bare)} | {_spread(ours)} "
            f"| {median(added):.1f} % ({low:.1f} to {high:.1f}) |"
        )
    return [
        *lines,
        "",
        f"The server adds: the median of {len(added)} pairs of runs that followed each other, and "
        "its quartiles.",
    ]


def _crowd(report: Report) -> list[str]:
    if not report.crowd:
        return []
    batches = list(next(iter(report.crowd.values())))
    lines = [
        f"| tokens/s of all chats, from the first request to the last of {ANSWER} tokens | "
        + " | ".join(f"{n} chat{'s' * (n > 1)}" for n in batches)
        + " | gain |",
        "|---|" + "---|" * (len(batches) + 1),
    ]
    for name, rounds in report.crowd.items():
        each = [[r["tokens_per_second"] for r in rounds[n]] for n in batches]
        gain = median(each[-1]) / median(each[0])
        lines.append(f"| {name} | {' | '.join(map(_spread, each))} | {gain:.2f}x |")
    return lines


def _prefill(report: Report) -> list[str]:
    if not report.prefill:
        return []
    ours = median(next(iter(report.prefill.values())))
    lines = [
        f"| a prompt of {LONG} tokens | seconds | mkport's speed over it |",
        "|---|---|---|",
    ]
    for name, seconds in report.prefill.items():
        lines.append(f"| {name} | {_spread(seconds)} | {median(seconds) / ours:.2f}x |")
    return lines


def _follow_up(report: Report) -> list[str]:
    if not report.follow_up:
        return []
    cold, warm = ([r[key] for r in report.follow_up] for key in ("uncached_s", "follow_up_s"))
    return [
        f"First token of a new prompt of about {LONG} tokens: {_spread(cold, 1e3)} ms; of the next "
        f"turn of the same chat: {_spread(warm, 1e3)} ms, {median(warm) / median(cold):.3f} of it.",
    ]


def _beside_long(report: Report) -> list[str]:
    if not report.beside_long:
        return []
    idle, during = _gaps(report, "idle_s"), _gaps(report, "during_s")
    lines = [
        f"| gap between tokens of {NEIGHBOURS} running requests, ms | p50 | p99 |",
        "|---|---|---|",
    ]
    for name, gaps in (("alone", idle), (f"while {LONG} tokens are read", during)):
        lines.append(f"| {name} | {percentile(gaps, 50):.1f} | {percentile(gaps, 99):.1f} |")
    ratios = [
        percentile(row["during_s"], 99) / percentile(row["idle_s"], 99)
        for row in report.beside_long
    ]
    long = [r["long_first_s"] for r in report.beside_long]
    return [
        *lines,
        "",
        f"p99 with the long prompt over p99 without, round by round: {_spread(ratios, digits=2)}. "
        f"First token of the long prompt beside them: {_spread(long)} s.",
    ]


def _load(report: Report) -> list[str]:
    if not report.load:
        return []
    lines = [
        "| load | requests | tokens/s | first token p50, ms | p99 | gap p50, ms | p99 "
        "| prompt from cache |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in report.load:
        samples = run["samples"]
        firsts = [s["first_ms"] for s in samples]
        gaps = [gap for s in samples for gap in s["gaps_ms"]]
        cached = sum(s["cached_tokens"] for s in samples) / sum(s["prompt_tokens"] for s in samples)
        lines.append(
            f"| {_load_name(run)} | {len(samples)} | {run['tokens_per_second']:.1f} "
            f"| {percentile(firsts, 50):.0f} | {percentile(firsts, 99):.0f} "
            f"| {percentile(gaps, 50):.1f} | {percentile(gaps, 99):.1f} | {100 * cached:.0f} % |"
        )
    return lines


def _load_name(run: Any) -> str:
    how = f"{run['at_once']} at once" if run["at_once"] else f"{run['a_second']:g}/s"
    return f"{run['mix']}, {how}"


def _gaps(report: Report, key: str) -> list[float]:
    """All rounds' gaps in ms."""
    return [1e3 * gap for row in report.beside_long for gap in row[key]]


def _spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    low, middle, high = (scale * f(values) for f in (min, median, max))
    digits = digits if high < 1000 else 0
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def plots(report: Report, stem: Path) -> list[Path]:
    """Draws what was measured beside `stem`: STEM-crowd.svg, STEM-gaps.svg. Returns what it wrote.

    Raises UserError without matplotlib, or when a file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"Plots need matplotlib: {install('plot')}.") from error
    style = {"svg.hashsalt": "mkport", "text.color": INK, "axes.edgecolor": FAINT, "font.size": 9}
    written = []
    with matplotlib.rc_context(style):
        for name, draw in (("crowd", _draw_crowd), ("gaps", _draw_gaps)):
            figure = Figure(figsize=(7, 3), layout="constrained")
            if draw(report, figure.add_subplot()):
                figure.supxlabel(f"measured on {report.machine}", fontsize=7, color=FAINT)
                path = stem.with_name(f"{stem.name}-{name}.svg")
                save = partial(figure.savefig, format="svg", metadata={"Date": None})
                replace_file(path, save)
                written.append(path)
    return written


def _draw_crowd(report: Report, axes: Any) -> bool:
    """Tokens a second of every server, one bar for each size of the crowd."""
    for number, (name, rounds) in enumerate(report.crowd.items()):
        for shift, (chats, runs) in enumerate(rounds.items()):
            values = [run["tokens_per_second"] for run in runs]
            label = f"{chats} chat{'s' * (chats > 1)}" if number == 0 else None
            at = number + 0.4 * shift
            axes.bar(at, median(values), 0.36, color=MUTED[shift], label=label)
            axes.plot([at] * len(values), values, ".", color=INK, markersize=3)
        axes.text(number + 0.2, 0, f"\n{name}", ha="center", va="top")
    axes.set_xticks([])
    axes.set_ylabel("tokens a second, all chats")
    if report.crowd:
        axes.legend(frameon=False)
    return bool(report.crowd)


def _draw_gaps(report: Report, axes: Any) -> bool:
    """How gaps between tokens are spread, alone and beside a long prompt."""
    for colour, key, name in (
        (MUTED[3], "idle_s", "alone"),
        (MUTED[2], "during_s", f"while {LONG} tokens are read"),
    ):
        if gaps := sorted(_gaps(report, key)):
            axes.plot(gaps, np.arange(1, len(gaps) + 1) / len(gaps), color=colour, label=name)
    axes.set_xlabel("gap between tokens, ms")
    axes.set_ylabel("share of gaps")
    axes.set_xlim(left=0)
    if report.beside_long:
        axes.legend(frameon=False)
    return bool(report.beside_long)
