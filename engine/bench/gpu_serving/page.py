"""The report as a Markdown page: speeds beside what was aimed at, checks, and where it loses."""

from collections.abc import Iterator
from typing import Any

Data = dict[str, Any]
OVERHEAD, PROMPT_MS, PAUSE_MS = 0.10, 250.0, 30.0  # the aims


def page(report: Data) -> str:
    """The page of a report that `gpu_serving` wrote."""
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items() if v)
    gpu = (report["gpu"] or "no GPU").splitlines()[-1]
    lines = [
        "# Serving on a GPU",
        "",
        "A model of North Mini Code's shape with random weights behind the real server, asked by "
        f"another process of the same machine. {gpu} before the run; Python {report['python']}, "
        f"{versions}; commit {report['commit']}, {report['clock']}.",
    ]
    for size, run in report["runs"].items():
        lines += ["", f"## The {size} model", "", *_speeds(run, size), "", *_checks(run)]
    lines += ["", "## Where it loses", "", *_losses(report)]
    return "\n".join(lines) + "\n"


def _speeds(run: Data, size: str) -> Iterator[str]:
    aims = size == "full"
    yield "| what | measured | aim |"
    yield "|---|---|---|"
    for found in run.get("bare", {}).values():
        if isinstance(found, dict) and "host_ms" in found:
            queued = _ms(min(found["host_ms"]))
            yield (
                f"| a chunk of {found['tokens']} tokens from position {found['start']}, without a "
                f"server | {_ms(found['median_ms'])}, of which the host queues for {queued} | |"
            )
    for batch in (1, 8):
        bare = run.get("bare", {}).get(f"decode_{batch}", {}).get("median_ms")
        crowd = run.get(f"crowd_{batch}", {})
        if bare is not None and "step_ms" in crowd:
            aim = f"at most {OVERHEAD:.0%}" if aims and batch == 8 else ""
            yield (
                f"| a step of {_count(batch)}, bare and through the server | {_ms(bare)} and "
                f"{_ms(crowd['step_ms'])}: {run[f'overhead_{batch}']:+.1%} | {aim} |"
            )
            yield (
                f"| gaps between tokens of {_count(batch)}, p50 and p99 | "
                f"{_ms(crowd['gap_p50_ms'])}, {_ms(crowd['gap_p99_ms'])} | |"
            )
    for name in ("first_token_short", "first_token"):
        if name in run:
            aim = f"at most {PROMPT_MS:.0f} ms" if aims and name == "first_token" else ""
            first = run[name]
            yield (
                f"| first token of a prompt of {first['tokens']} tokens, alone | "
                f"{_ms(first['median_ms'])} | {aim} |"
            )
    if "follow_up" in run:
        again = run["follow_up"]
        yield (
            f"| and of one of which {again['cached']} tokens are cached | "
            f"{_ms(again['follow_up_ms'])} | |"
        )
    if "p99_more_ms" in run.get("beside_long", {}):
        gaps = run["beside_long"]
        yield (
            "| gaps between tokens of 7 streams, p50 and p99, before a long prompt and while it is "
            f"read | {_ms(gaps['before']['p50_ms'])}, {_ms(gaps['before']['p99_ms'])}; "
            f"{_ms(gaps['during']['p50_ms'])}, {_ms(gaps['during']['p99_ms'])} | "
            f"{f'p99 at most {PAUSE_MS:.0f} ms more' if aims else ''} |"
        )
        yield f"| first token of that prompt | {_ms(gaps['long_first_token_ms'])} | |"
    if "grammar_crowd" in run:
        gaps = run["grammar_crowd"]
        yield (
            "| gaps of 7 streams while an eighth is held to a grammar, p50 | "
            f"{_ms(gaps['gap_p50_ms'])} | |"
        )


def _checks(run: Data) -> Iterator[str]:
    said = {
        "attention_off": "attention of prompts against float32, windows too: off by",
        "experts_off": "the experts' grouped product against one expert after the other: off by",
    }
    for name, text in said.items():
        if name in run.get("bare", {}):
            off = run["bare"][name]
            worst = max(off.values()) if isinstance(off, dict) else off
            yield f"- {text} {worst:.1e}, root mean square."
    if "keys_off" in run.get("bare", {}):
        first = run["bare"]["keys_off"]["one piece"]
        yield (
            f"- Keys of a prompt by PyTorch and by decode steps: off by {first[0]:.1e} in the "
            f"first layer, {first[1]:.1e} in the second. With random weights the experts' scores "
            "lie close together, so tokens take other experts, and later layers part for good."
        )
    named = {
        "ragged": "eight streams of other lengths, temperatures and seeds say what they say alone",
        "seeded": "the same seed gives the same tokens, another one others",
        "tool_call": "a tool call under grammar, by the `openai` client",
        "preempted": "requests that outgrow the cache are preempted, and all end",
        "disconnected": "a client that hangs up ends its request",
    }
    for name, text in named.items():
        if name in run:
            yield f"- Passed: {text}."
        elif name in run["errors"]:
            yield f"- **Failed**: {text}."


def _losses(report: Data) -> Iterator[str]:
    """The aims that were missed; whoever commits the page adds what the numbers do not say."""
    run = report["runs"].get("full", {})
    missed = []
    if run.get("overhead_8", 0.0) > OVERHEAD:
        missed.append(f"The server adds {run['overhead_8']:.1%} to a step of eight.")
    first = run.get("first_token", {}).get("median_ms", 0.0)
    if first > PROMPT_MS:
        missed.append(f"A prompt of 8192 tokens has its first token after {_ms(first)}.")
    more = run.get("beside_long", {}).get("p99_more_ms", 0.0)
    if more > PAUSE_MS:
        missed.append(f"A long prompt adds {_ms(more)} to the p99 gap of those who decode.")
    for size, one in report["runs"].items():
        failed = [name for name in one["errors"] if name != "log"]
        if failed:
            missed.append(f"The {size} model: {', '.join(failed)} failed.")
    yield from (f"- {text}" for text in missed or ["No aim was missed in this run."])


def _count(streams: int) -> str:
    return f"{streams} stream{'s' if streams > 1 else ''}"


def _ms(value: float) -> str:
    return f"{value:.{2 if value < 1 else 1}f} ms" if value < 100 else f"{value:.0f} ms"
