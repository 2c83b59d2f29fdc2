"""The lanes of a timeline, drawn into matplotlib axes: boxes while the tasks can be told apart,
an exactly averaged image when there are too many. Legend, title and caption are in `timeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from mkport.trace.palette import FRAME, INK
from mkport.trace.window import WAITING_NAME, Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED_LANES = 16  # above this many, lanes are numbered on a scale
MANY_TASKS = 5000  # above this many, an image takes the place of boxes
GAP_IN = 0.05  # narrower lanes have no gap between them
GAP_PARTS, LANE_PARTS = 3, 25  # white at each side of a lane, of its height
EDGED_IN = 0.04  # a task wider than this gets a white edge, which would hide a narrower one
EDGE_PT = 0.5


def draw_lanes(
    axes: Axes, window: Window, lane_in: float, wide_in: float, columns: int, many: int = MANY_TASKS
) -> None:
    """Fill axes `wide_in` inches wide with lanes `lane_in` inches high, worker 0 at the top.

    `columns` is how many pixels the axes are wide; the image that takes the place of more than
    `many` tasks has as many, so none is resampled.
    """
    gap = GAP_PARTS / LANE_PARTS if lane_in > GAP_IN else 0.0
    axes.set_xlim(window.first, window.last)
    axes.set_ylim(window.workers - 0.5, -0.5)
    if window.tasks > many:
        _draw_image(axes, window, gap > 0, columns)
    else:
        _draw_boxes(axes, window, 0.5 - gap, EDGED_IN / wide_in * (window.last - window.first))
    _draw_scales(axes, window)


def averaged(window: Window, columns: int) -> NDArray[np.float64]:
    """Red, green, blue in 0..1 of every lane at every column: [workers, columns, 3].

    Each is the mean colour of that stretch of the lane, with idle time white, so that no task is
    too short to count and the picture's mean is the step's.
    """
    edges = np.linspace(window.first, window.last, columns + 1)
    image = np.ones((window.workers, columns, 3))
    for span in window.spans:
        ink = 1.0 - np.array(to_rgb(span.colour))  # [3] what the colour takes from white
        order = np.argsort(span.worker, kind="stable")
        bounds = np.searchsorted(span.worker[order], np.arange(window.workers + 1))
        for worker in range(window.workers):
            mine = order[bounds[worker] : bounds[worker + 1]]
            if not len(mine):
                continue
            corners = np.stack([span.begin[mine], span.end[mine]], axis=1).ravel()  # [2 k] us
            spent = np.cumsum(span.end[mine] - span.begin[mine])
            reached = np.stack([np.append(0.0, spent[:-1]), spent], axis=1).ravel()  # [2 k] us
            cover = np.diff(np.interp(edges, corners, reached)) / np.diff(edges)  # [columns]
            image[worker] -= cover[:, None] * ink
    return np.clip(image, 0.0, 1.0)


def _draw_image(axes: Axes, window: Window, gaps: bool, columns: int) -> None:
    image = averaged(window, columns)
    if gaps:
        image = np.repeat(image, LANE_PARTS, axis=0)
        part = np.arange(len(image)) % LANE_PARTS
        image[(part < GAP_PARTS) | (part >= LANE_PARTS - GAP_PARTS)] = 1.0
    axes.imshow(
        image,
        extent=(window.first, window.last, window.workers - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
    )


def _draw_boxes(axes: Axes, window: Window, half: float, edged_us: float) -> None:
    """One collection for each op and for waiting, labelled with its name.

    White edges part the tasks if most of them are wider than `edged_us`.
    """
    running = [one.end - one.begin for one in window.spans if one.name != WAITING_NAME]
    if running and np.median(np.concatenate(running)) <= edged_us:
        edged_us = np.inf
    for span in window.spans:
        waiting = span.name == WAITING_NAME
        edged = (span.end - span.begin > edged_us) & (not waiting)
        low, high = span.worker - half, span.worker + half
        xs = np.stack([span.begin, span.end, span.end, span.begin], axis=1)
        ys = np.stack([low, low, high, high], axis=1)
        boxes = PolyCollection(
            np.stack([xs, ys], axis=2),  # type: ignore[arg-type]  # [k, 4 corners, xy]
            facecolors=span.colour,
            edgecolors="white",
            linewidths=np.where(edged, EDGE_PT, 0.0),
            label=span.name,
            zorder=1 if waiting else 2,
        )
        axes.add_collection(boxes, autolim=False)


def _draw_scales(axes: Axes, window: Window) -> None:
    named = window.workers <= NAMED_LANES
    axes.set_xlabel("time (µs)", fontsize=8, color=INK, labelpad=3)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.10g}"))
    if named:
        axes.set_yticks(range(window.workers), [f"worker {w}" for w in range(window.workers)])
    else:
        axes.set_ylabel("worker", fontsize=8, color=INK, labelpad=3)
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.tick_params(labelsize=8, labelcolor=INK, color=FRAME, length=3, width=0.8)
    axes.tick_params(axis="y", length=0)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom" or not named, color=FRAME, linewidth=0.8)
