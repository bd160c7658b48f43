"""What charts of the page show: names on their axes, values, and which of them broke a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pytest_mnode.certificate.page import pictures
from pytest_mnode.charts import Bars, Level, Lines, Matrix, Moment, Part, Series, Span, Timeline
from pytest_mnode.measurement import Curve, Point, at_least


def drawn(plot: Callable[[Axes, Any], None], chart: object) -> Axes:
    axes = Figure().subplots()
    plot(axes, chart)
    axes.figure.canvas.draw()  # labels of ticks are made now
    return axes


def ticks(axes: Axes) -> tuple[list[str], list[str]]:
    """Labels of the horizontal and of the vertical axis."""
    of_x, of_y = axes.get_xticklabels(), axes.get_yticklabels()
    return [one.get_text() for one in of_x], [one.get_text() for one in of_y]


def legend(axes: Axes) -> list[str]:
    shown = axes.get_legend()
    assert shown is not None
    return [text.get_text() for text in shown.get_texts()]


def test_a_matrix_names_rows_and_columns_and_shows_values() -> None:
    values = ((None, 1.0), (2.0, 1234.0))
    axes = drawn(
        pictures.matrix, Matrix("t", "GB/s", ("a", "b"), ("c", "d"), values, at_least(1.5))
    )
    assert ticks(axes) == (["c", "d"], ["a", "b"])
    cells = {one.get_position(): one.get_text() for one in axes.texts}
    assert cells == {(1, 0): "1", (0, 1): "2", (1, 1): "1.23k"}
    kept, broken, missing = legend(axes)
    assert kept == "2 to 1234 GB/s"
    assert "1.5" in broken
    assert missing == "not measured"
    image = axes.images[0].get_array()
    assert image is not None
    assert tuple(image[0, 1]) == (0.80, 0.15, 0.15)
    assert image[0, 0, 0] == image[0, 0, 1] == image[0, 0, 2]


def test_a_large_matrix_shows_the_worst_of_each_block() -> None:
    size = 256
    names = tuple(f"n{number}" for number in range(size))
    rows = [[5.0] * size for _ in names]
    rows[7][200] = 1.0
    chart = Matrix("t", "GB/s", names, names, tuple(map(tuple, rows)), at_least(4.0))
    axes = drawn(pictures.matrix, chart)
    image = axes.images[0].get_array()
    assert image is not None
    assert image.shape[:2] == (128, 128)
    assert tuple(image[3, 100]) == (0.80, 0.15, 0.15)
    assert axes.get_xlabel() == "each cell is the worst of 2 × 2 pairs"
    assert not axes.texts
    assert {"80", "240"} <= set(ticks(axes)[0])  # of nodes, not of cells


def test_bars_are_named_and_stacked() -> None:
    parts = (Part("compute", (2.0, 3.0)), Part("wait", (1.0, 1.5)), Part("less", (-1.0, 0.0)))
    axes = drawn(pictures.bars, Bars("t", "ms", ("node0", "node1"), parts))
    assert ticks(axes)[1] == ["node0", "node1"]
    assert legend(axes) == ["compute", "wait", "less"]
    starts = [[round(bar.get_x(), 3) for bar in part] for part in axes.containers]
    assert starts == [[0, 0], [2, 3], [0, 4.5]]
    assert axes.get_xlabel() == "ms"


@pytest.mark.parametrize(("last", "scale"), [(8, "linear"), (64, "log")])
def test_lines_are_named_with_their_levels(last: int, scale: str) -> None:
    series = (Series("measured", ((1, 2.0), (last, 3.0))),)
    axes = drawn(pictures.lines, Lines("t", "nodes", "share", series, (Level("bound", 0.9),)))
    assert legend(axes) == ["measured", "bound 0.9"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("nodes", "share")
    assert axes.get_xscale() == scale
    assert axes.get_ylim()[0] == 0


def test_curves_show_bound_and_line_rate_once() -> None:
    points = tuple(Point(1 << n, 3, 10.0, 20.0, 8.0, 20.0, 9.0, 10.0 * n, 0) for n in (20, 22))
    made = [
        Curve("all_reduce", name, "nccl", 4, points, 400.0, at_least(150.0), (1 << 22,))
        for name in ("ring", "tree")
    ]
    axes = drawn(pictures.curves, made)
    assert [text.partition(":")[0] for text in legend(axes)[:2]] == ["ring", "tree"]
    assert [text for text in legend(axes) if "line rate" in text] == ["line rate 400"]
    assert len([text for text in legend(axes) if text.startswith("bound")]) == 1
    assert ticks(axes)[0] == ["1 MiB", "4 MiB"]


def test_a_timeline_has_a_bar_for_each_span() -> None:
    spans = (Span("node0", 1.0, 3.0, "runs"), Span("node1", 2.0, 2.5, "waits"))
    chart = Timeline("t", ("node0", "node1"), spans, (Moment(4.0, "killed"),))
    axes = drawn(pictures.timeline, chart)
    shown = [(bar.get_x(), bar.get_width()) for part in axes.containers for bar in part]
    assert shown == [(1.0, 2.0), (2.0, 0.5)]
    assert ticks(axes)[1] == ["node0", "node1"]
