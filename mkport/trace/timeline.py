"""A trace as a picture: one lane a worker, one colour an op, grey for waiting, white for idle.

Here are the page and the file; the lanes themselves are in `lanes`. The page is laid out in
inches, so that its type keeps its proportion at every width. Matplotlib is imported only when a
picture is drawn.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkport.errors import UserError
from mkport.extras import install
from mkport.files import replace_file
from mkport.trace.palette import FAINT, INK
from mkport.trace.trace import Trace
from mkport.trace.window import Window, cut

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_IN = 8.0  # so 100 px an inch at 800 px wide, where 8 pt type is 11 px high
MARGIN_IN = 0.14
LEFT_IN, RIGHT_IN = 0.78, 0.3  # beside the lanes
LANE_IN = 0.52  # a lane's height while there are few
LANES_IN = (0.9, 4.0)  # least and greatest height of all lanes together
TITLE_IN = 0.3
SCALE_IN = 0.46  # the time axis with its numbers and name
LINE_IN = 0.2  # a line of the legend or of the caption
SWATCH_IN = 0.105
CAPTION_CHARS = 118  # a line of the caption at 7.5 pt


def draw(
    trace: Trace,
    path: str | Path,
    width: int = 1600,
    title: str | None = None,
    first_ns: int | None = None,
    last_ns: int | None = None,
    many: int | None = None,
) -> None:
    """Write a picture of the trace, PNG or SVG by the path's suffix, whole or not at all.

    The same trace gives the same bytes with the same matplotlib.

    Args:
        trace: what to draw.
        path: where to, ending in .png or .svg.
        width: pixels; an SVG has no pixels of its own, but its image of many tasks has.
        title: the line at the top, "" for none; by default tasks, workers and microseconds.
        first_ns: where the picture begins, in ns after the first task was picked up.
        last_ns: where it ends; by default where the last task was signalled.
        many: the most tasks that are drawn one by one; of more the picture shows the mean colour
            of each stretch, which keeps the file small. By default what can still be told apart.

    Raises:
        UserError: another suffix, an empty window, a width outside 200..20,000, a file that
            cannot be written, or no matplotlib.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise UserError(f"Cannot draw {path}: the name must end in .png or .svg.")
    picture = figure(trace, width, title, first_ns, last_ns, many)
    stamps = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with _settings():
        replace_file(
            path,
            lambda at: picture.savefig(at, format=kind, dpi=width / PAGE_IN, metadata=stamps),
        )


def figure(
    trace: Trace,
    width: int = 1600,
    title: str | None = None,
    first_ns: int | None = None,
    last_ns: int | None = None,
    many: int | None = None,
) -> Figure:
    """The picture that `draw` writes, as a matplotlib figure; arguments as there.

    Raises UserError for an empty window, a width outside 200..20,000, or no matplotlib.
    """
    if not 200 <= width <= 20_000:
        raise UserError(f"Cannot draw a timeline {width} pixels wide: ask for 200 to 20000.")
    window = cut(trace, first_ns, last_ns)
    with _settings():
        from matplotlib.figure import Figure

        from mkport.trace.lanes import MANY_TASKS, draw_lanes

        legend = _legend_lines(window)
        caption = textwrap.wrap(trace.caption, CAPTION_CHARS)
        heading = _heading(window) if title is None else title
        top_in = MARGIN_IN + TITLE_IN * bool(heading)
        above_in = top_in + LINE_IN * len(legend) + 0.08
        lanes_in = min(max(trace.workers * LANE_IN, LANES_IN[0]), LANES_IN[1])
        below_in = SCALE_IN + LINE_IN * len(caption) + MARGIN_IN / 2
        page_in = above_in + lanes_in + below_in
        wide_in = PAGE_IN - LEFT_IN - RIGHT_IN
        picture = Figure(figsize=(PAGE_IN, page_in), dpi=width / PAGE_IN, facecolor="white")
        axes = picture.add_axes(
            (LEFT_IN / PAGE_IN, below_in / page_in, wide_in / PAGE_IN, lanes_in / page_in)
        )
        lane_in = lanes_in / trace.workers
        columns = round(wide_in * width / PAGE_IN)
        draw_lanes(axes, window, lane_in, wide_in, columns, MANY_TASKS if many is None else many)
        if heading:
            _write(picture, MARGIN_IN, MARGIN_IN + 0.1, heading, fontsize=10.5, fontweight="bold")
        for line, entries in enumerate(legend):
            for x_in, name, colour in entries:
                y_in = top_in + LINE_IN * (line + 0.5)
                _swatch(picture, x_in, y_in, colour)
                _write(picture, x_in + 0.16, y_in, name)
        for line, text in enumerate(caption):
            y_in = page_in - MARGIN_IN / 2 - LINE_IN * (len(caption) - line - 0.5)
            _write(picture, MARGIN_IN, y_in, text, fontsize=7.5, color=FAINT)
    return picture


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Matplotlib's own defaults instead of the user's, a bundled font, and stable SVG ids."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "Drawing a timeline needs matplotlib, which is not installed here: "
            f"install the extra that has it, {install('plot')}."
        ) from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"font.family": "DejaVu Sans", "svg.hashsalt": "mkport", "svg.fonttype": "path"}
        )
        yield


def _heading(window: Window) -> str:
    def count(number: int, noun: str) -> str:
        return f"{number:,} {noun}" + ("" if number == 1 else "s")

    long_us = window.last - window.first
    tasks, workers = count(window.tasks, "task"), count(window.workers, "worker")
    return f"{tasks} on {workers} in {long_us:,.{0 if long_us >= 100 else 1}f} µs"


def _legend_lines(window: Window) -> list[list[tuple[float, str, str]]]:
    """Entries (x in inches, text, colour) broken into lines, with the share of worker time."""
    lines: list[list[tuple[float, str, str]]] = [[]]
    x_in = MARGIN_IN
    for span in window.spans:
        share = 100 * window.share(span)
        text = f"{span.name} {'<1' if 0 < share < 1 else f'{share:.0f}'} %"
        wide_in = 0.16 + _text_in(text)
        if x_in + wide_in > PAGE_IN - MARGIN_IN / 2 and lines[-1]:
            lines.append([])
            x_in = MARGIN_IN
        lines[-1].append((x_in, text, span.colour))
        x_in += wide_in + 0.18
    return lines


def _text_in(text: str) -> float:
    """How wide a line of legend text is, in inches."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=8).get_extents().width) / 72


def _write(picture: Figure, x_in: float, y_in: float, text: str, **style: Any) -> None:
    """Put text at inches from the left and from the top."""
    x, y = x_in / PAGE_IN, 1 - y_in / picture.get_figheight()
    style = {"va": "center", "color": INK, "fontsize": 8, "parse_math": False, **style}
    picture.text(x, y, text, **style)


def _swatch(picture: Figure, x_in: float, y_in: float, colour: str) -> None:
    """Put a square of a colour at inches from the left and, its middle, from the top."""
    from matplotlib.patches import Rectangle

    page_in = picture.get_figheight()
    at = (x_in / PAGE_IN, 1 - (y_in + SWATCH_IN / 2) / page_in)
    size = (SWATCH_IN / PAGE_IN, SWATCH_IN / page_in)
    picture.add_artist(Rectangle(at, *size, facecolor=colour, linewidth=0))
