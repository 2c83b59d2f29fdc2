"""Draws the picture of the home page: `python docs/generate/home.py`.

Two layers of a model on eight workers of a machine that is made up, so that everybody gets the same
bytes. Pictures of real machines are in the recipes, the README and the results.
"""

from pathlib import Path

from mkport.models import family_of, parse_config
from mkport.models.sizes import config_of
from mkport.models.step import StepShape
from mkport.plan import Schedule, deal
from mkport.trace import Trace, draw
from mkport.trace.simulate import Costs, simulate

FILE = Path(__file__).resolve().parents[1] / "images/home.svg"
TITLE = "Two layers, eight workers, one launch"
LAYERS, WORKERS, CONTEXT = 2, 8, 1024
COSTS = Costs(bytes_per_s=40e9, task_ns=700, signal_ns=1000, ahead=32 << 10)
CAPTION = (
    "two layers of a Qwen3 model with experts (64, of which 8 a token), 8 workers, 40 GB/s each"
)


def made_up() -> tuple[Schedule, Trace]:
    """The schedule and its times."""
    fields = config_of("qwen3_moe", "small")
    step = family_of(fields).build(parse_config(fields), StepShape(rows=1, context=CONTEXT))
    last = max(n for n, node in enumerate(step.nodes) if f"layer {LAYERS - 1} /" in node.label)
    schedule = deal(step.first(last + 1), workers=WORKERS)
    return schedule, simulate(schedule, COSTS, CAPTION, context=CONTEXT)


def main() -> None:
    """Writes the picture."""
    _, trace = made_up()
    draw(trace, FILE, title=TITLE)
    print(f"wrote {FILE}: {trace.span_ns / 1000:.0f} us")


if __name__ == "__main__":
    main()
