"""Pictures of what a step on a GPU is made of: some layers of traces that
`python -m mkport.engine.bench.gpu_decode --trace FILE` recorded.

    python docs/results/gpu_steps.py 1=trace1.json 8=trace8.json 64=trace64.json

cuts each batch's trace down to `LAYERS` layers from the middle, keeps them in `gpu_steps/`, draws
them, and prints when each op ran. Without arguments it draws again what is kept.
"""

import sys
from pathlib import Path

from mkport.trace import Trace, draw, render, summarise
from mkport.trace.excerpt import excerpt
from mkport.trace.trace import END, READY

HERE = Path(__file__).parent / "gpu_steps"
LAYERS = {1: 2, 8: 2, 64: 1}  # that a picture shows, by batch
EVERY = {64: 3}  # one worker in so many is shown


def window(trace: Trace, layers: int) -> tuple[int, int]:
    """From when the first worker may begin a middle layer's first op until the last one has ended
    its last, in ns after the trace's begin."""
    names = [label.split(" / ")[0] for label, _ in trace.nodes]
    count = 1 + max(int(n.split()[1]) for n in names if n.startswith("layer "))
    shown = {f"layer {count // 2 + i}" for i in range(layers)}
    mine = [names[n] in shown for n in trace.node]
    times = trace.times[mine] - trace.first_ns
    return int(times[:, READY].min()), int(times[:, END].max())


def table(trace: Trace) -> str:
    """When each op of a middle layer ran, as Markdown: us after the layer's first task could."""
    begin, end = window(trace, 1)
    count = 1 + max(int(n.split()[1]) for n, _ in trace.nodes if n.startswith("layer "))
    name = f"layer {count // 2} / "
    chosen = [(n, label) for n, (label, _) in enumerate(trace.nodes) if label.startswith(name)]
    lines = [
        "| op | first may begin | last may begin | first ends | last ends | a task takes |",
        "|---|---|---|---|---|---|",
    ]
    for n, label in chosen:
        times = (trace.times[trace.node == n] - trace.first_ns - begin) / 1e3
        ready, done = times[:, READY], times[:, END]
        cells = (ready.min(), ready.max(), done.min(), done.max(), (done - ready).mean())
        numbers = " | ".join(f"{x:.1f}" for x in cells)
        lines.append(f"| {label.removeprefix(name)} | {numbers} |")
    return "\n".join([*lines, "", f"The layer takes {(end - begin) / 1e3:.1f} us."])


def main() -> None:
    """See the head of this file."""
    HERE.mkdir(exist_ok=True)
    for given in sys.argv[1:]:
        batch, _, file = given.partition("=")
        trace = Trace.load(file)
        first, last = window(trace, LAYERS[int(batch)])
        kept = excerpt(trace, first, last, EVERY.get(int(batch), 1))
        kept.save(HERE / f"batch{batch}.json")
        print(f"## batch {batch}\n\n{table(trace)}\n\n```\n{render(summarise(trace))}\n```\n")
    for file in sorted(HERE.glob("batch*.json")):
        draw(Trace.load(file), file.with_suffix(".png"), title="")


if __name__ == "__main__":
    main()
