"""The timeline, checked on the objects drawn and on the files written."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.trace import Trace, draw, figure
from mkport.trace.palette import MUTED, WAITING, op_colours
from mkport.trace.window import cut

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex, to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


def boxes(picture: Figure) -> dict[str, list[tuple[float, float, float, float]]]:
    """(left, right, top, bottom) of every box, by label: us and lanes."""
    found = {}
    for collection in picture.axes[0].collections:
        corners = [path.vertices for path in collection.get_paths()]
        found[str(collection.get_label())] = [
            (*np.unique(at[:, 0]).tolist(), *np.unique(at[:, 1]).round(3).tolist())
            for at in map(np.asarray, corners)
        ]
    return found


def texts(picture: Figure) -> list[str]:
    return [text.get_text() for text in picture.texts]


def test_boxes_stand_where_the_tasks_ran(tiny: Trace) -> None:
    picture = figure(tiny)
    assert boxes(picture) == {
        "attention": [(0.4, 0.6, 0.62, 1.38)],
        "gemm": [(0.0, 0.4, -0.38, 0.38), (0.6, 1.0, -0.38, 0.38)],
        "waiting": [(0.1, 0.4, 0.62, 1.38), (0.5, 0.6, -0.38, 0.38)],
    }
    axes = picture.axes[0]
    assert axes.get_xlim() == (0, 1)
    assert axes.get_ylim() == (1.5, -0.5)  # worker 0 at the top
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["worker 0", "worker 1"]
    assert axes.get_xlabel() == "time (µs)"
    colours = {
        str(one.get_label()): to_hex(np.asarray(one.get_facecolor())[0]) for one in axes.collections
    }
    assert colours == {"attention": MUTED[0], "gemm": MUTED[1], "waiting": WAITING}
    assert to_hex(axes.get_facecolor()) == "#ffffff"  # idle


def test_title_legend_and_caption(tiny: Trace) -> None:
    legend = ["attention 10 %", "gemm 40 %", "waiting 20 %"]
    assert texts(figure(tiny)) == ["3 tasks on 2 workers in 1.0 µs", *legend, "simulated, by hand"]
    assert texts(figure(tiny, title="a step"))[0] == "a step"
    assert texts(figure(tiny, title=""))[0] == legend[0]


def test_dollars_are_text_and_no_formula(tiny: Trace, tmp_path: Path) -> None:
    draw(tiny, tmp_path / "step.png", width=200, title=r"$\frac$")


def test_a_window_cuts_tasks_and_keeps_colours(tiny: Trace) -> None:
    picture = figure(tiny, first_ns=500, last_ns=700)
    assert boxes(picture) == {
        "attention": [(0.5, 0.6, 0.62, 1.38)],
        "gemm": [(0.6, 0.7, -0.38, 0.38)],
        "waiting": [(0.5, 0.6, -0.38, 0.38)],
    }
    assert picture.axes[0].get_xlim() == (0.5, 0.7)
    assert texts(picture)[0] == "2 tasks on 2 workers in 0.2 µs"
    assert "gemm 25 %" in texts(picture)
    late = figure(tiny, first_ns=700)
    (gemm,) = [one for one in late.axes[0].collections if one.get_label() == "gemm"]
    assert to_hex(np.asarray(gemm.get_facecolor())[0]) == MUTED[1]
    assert "attention" not in " ".join(texts(late))


def test_short_tasks_have_no_edge_to_hide_them(tiny: Trace) -> None:
    times = tiny.times.copy()
    times[2, 1] = 5999
    picture = figure(Trace(2, tiny.worker, tiny.record, tiny.node, times, tiny.nodes, ""))
    (gemm,) = [one for one in picture.axes[0].collections if one.get_label() == "gemm"]
    assert (np.asarray(gemm.get_linewidth()) > 0).tolist() == [True, False]


def test_edges_are_left_out_where_most_tasks_are_short(step: Callable[..., Trace]) -> None:
    def edges(picture: Figure) -> float:
        return max(np.asarray(one.get_linewidth()).max() for one in picture.axes[0].collections)

    trace = step(2, 26)
    assert edges(figure(trace)) == 0
    assert edges(figure(trace, first_ns=2_000_000, last_ns=3_000_000)) > 0


def test_many_tasks_become_an_image_whose_mean_is_exact(step: Callable[..., Trace]) -> None:
    trace = step(132, 5)
    picture = figure(trace, width=800)
    axes = picture.axes[0]
    assert not axes.collections
    (shown,) = axes.images
    image = np.asarray(shown.get_array())  # [workers, columns, rgb]
    box = axes.get_window_extent()
    assert image.shape == (132, round(box.width), 3)
    window = cut(trace, None, None)
    mean = np.ones(3)
    for span in window.spans:
        mean -= window.share(span) * (1 - np.array(to_rgb(span.colour)))
    assert image.mean(axis=(0, 1)) == pytest.approx(mean, abs=1e-9)
    row = image[7, : image.shape[1] // 2].mean(axis=0)
    half = cut(trace, 0, trace.span_ns // 2)
    expected = np.ones(3)
    for span in half.spans:
        spent = (span.end - span.begin)[span.worker == 7].sum() / half.last
        expected -= spent * (1 - np.array(to_rgb(span.colour)))
    assert row == pytest.approx(expected, abs=2 / image.shape[1])


def test_few_lanes_of_many_tasks_keep_their_gaps(step: Callable[..., Trace]) -> None:
    (shown,) = figure(step(4, 150), width=400).axes[0].images
    image = np.asarray(shown.get_array())
    assert image.shape[0] == 4 * 25
    assert (image[[0, 2, 22, 24, 25, 27]] == 1).all()
    assert (image[3:22].mean(axis=(0, 1)) < 0.9).any()


def test_files_have_the_width_asked_for_and_the_same_bytes(
    step: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = step(2, 4)
    for suffix in ("png", "svg"):
        draw(trace, tmp_path / f"one.{suffix}", width=640)
        with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red"}):
            draw(trace, tmp_path / f"two.{suffix}", width=640)
        content = (tmp_path / f"one.{suffix}").read_bytes()
        assert content == (tmp_path / f"two.{suffix}").read_bytes()
    content = (tmp_path / "one.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">I", content[16:20]) == (640,)
    svg = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "dc:date" not in svg
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        f"{name}.{suffix}" for name in ("one", "two") for suffix in ("png", "svg")
    )


def test_the_largest_step_is_drawn(step: Callable[..., Trace], tmp_path: Path) -> None:
    draw(step(132, 33), tmp_path / "step.svg")
    assert (tmp_path / "step.svg").stat().st_size < 1_000_000  # an image, not 40,000 boxes


def test_a_step_without_tasks_is_drawn_empty(tmp_path: Path) -> None:
    none = np.zeros(0, np.int32)
    trace = Trace(2, none, none, none, np.zeros((0, 3), np.int64), (), "nothing ran")
    draw(trace, tmp_path / "none.png")
    assert texts(figure(trace)) == ["0 tasks on 2 workers in 1.0 µs", "waiting 0 %", "nothing ran"]


def test_a_long_legend_and_caption_stay_on_the_page(tiny: Trace) -> None:
    ops = tuple((f"node {i}", f"quite_a_long_op_name_{i:02}") for i in range(24))
    n = len(ops)
    start = np.arange(n) * 10
    picture = figure(
        Trace(
            workers=1,
            worker=np.zeros(n, np.int32),
            record=np.arange(n, dtype=np.int32),
            node=np.arange(n, dtype=np.int32),
            times=np.stack([start, start, start + 10], axis=1),
            nodes=ops,
            caption="measured on a machine with a long name, " * 8,
        )
    )
    page = picture.bbox
    for text in picture.texts:
        extent = text.get_window_extent()
        assert page.x0 <= extent.x0 and extent.x1 <= page.x1, text.get_text()
        assert page.y0 <= extent.y0 and extent.y1 <= page.y1, text.get_text()
        assert not extent.overlaps(picture.axes[0].get_window_extent()), text.get_text()


def test_colours_follow_the_names_alone() -> None:
    assert op_colours(["b", "a", "b"]) == op_colours(["a", "b"]) == {"a": MUTED[0], "b": MUTED[1]}
    many = op_colours(f"{i:02}" for i in range(18))
    assert len(set(many.values())) == 18
    assert many["09"] == "#9990c4"  # half way from the first colour to white


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "step.pdf"}, r"step\.pdf.*\.png or \.svg"),
        ({"path": "step"}, r"must end in"),
        ({"path": "nowhere/step.png"}, r"Cannot write .*existing folder"),
        ({"width": 10}, r"10 pixels wide"),
        ({"first_ns": 700, "last_ns": 700}, r"from 700 to 700 ns"),
        ({"first_ns": 1000}, r"1000 ns long"),
        ({"first_ns": -5}, r"begin at 0 ns or later"),
        ({"last_ns": 0}, r"from 0 to 0 ns"),
    ],
)
def test_what_cannot_be_drawn_is_a_user_error(
    tiny: Trace, tmp_path: Path, arguments: dict[str, object], says: str
) -> None:
    path = tmp_path / str(arguments.pop("path", "step.png"))
    with pytest.raises(UserError, match=says):
        draw(tiny, path, **arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_error_names_the_extra(
    tiny: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"\[plot\]"):
        draw(tiny, tmp_path / "step.png")


def test_importing_the_package_imports_no_matplotlib() -> None:
    check = "import mkport.trace, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
