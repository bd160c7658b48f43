"""The page contains everything in the certificate, and no foreign text becomes HTML."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.page import page_text, pictures, render
from pytest_mnode.certificate.page.pictures import MISSING
from pytest_mnode.certificate.page.render import path_matrix
from pytest_mnode.charts import (
    Bars,
    Chart,
    Item,
    Layout,
    Level,
    Lines,
    Map,
    Matrix,
    Moment,
    Part,
    Place,
    Series,
    Span,
    Timeline,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Curve, Measurement, Point, at_least
from pytest_mnode.path_rates import PathRates
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.large import SLOW, composed

HOSTILE = """n0"'><script src=//evil></script><img src=x onerror=f()>{{7*7}} $\\frac{1}{2}$ &amp;"""
VOID = {"meta", "br", "img", "input", "path", "use", "rect"}


class Page(HTMLParser):
    """Tags with attributes, and the text that a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[str] = []
        self._style = False
        self.feed(html)
        self.text = " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self._texts.append(data)

    def values(self, *names: str) -> list[str]:
        return [v for _, attrs in self.tags for name, v in attrs.items() if name in names and v]


def charts(text: str) -> tuple[Chart, ...]:
    """One of each kind, and `text` wherever a chart has a text; two curves of one collective."""
    point = Point(1 << 20, 5, 9.5, 12, 9, 12, 0.1, 0.09, 0)
    larger = Point(1 << 22, 5, 9.5, 12, 9, 12, 0.2, 0.18, 0)
    span = Span(text, 0, 1.5, text, text)
    nodes = (text, "node1")
    return (
        Curve(text, text, text, 4, (point, larger), 0.2, at_least(0.1), (1 << 22,)),
        Curve(text, "default", text, 4, (point, larger), 0.2, at_least(0.1), (1 << 22,)),
        Lines(text, text, text, (Series(text, ((1, 1.0), (2, 0.9))),), (Level(text, 0.8),)),
        Bars(text, text, nodes, (Part(text, (1.5, -0.1)), Part("b", (0.5, 1)))),
        Matrix(text, text, nodes, nodes, ((None, 1.0), (2.0, None)), at_least(1.5)),
        Timeline(text, (text,), (span,), (Moment(1, text),)),
        Map(text, (Layout((text,), (Place(text, (Item(text, text, text, False),)),)),)),
    )


def page_of(*cases: CaseResult, **facts: Any) -> Page:
    return Page(page_text(certify(*cases, **facts)))


def with_charts(*drawn: Chart) -> CaseResult:
    return CaseResult("test_mesh.py::test", "?", "passed", charts=drawn)


@pytest.fixture(scope="module")
def hostile() -> Page:
    case = CaseResult(
        f"acceptance/test_mesh.py::test_it[{HOSTILE}]",
        HOSTILE,
        "failed",
        HOSTILE,
        HOSTILE,
        tuple(
            Measurement(HOSTILE, value, HOSTILE, at_least(2), HOSTILE, culprit, HOSTILE, HOSTILE)
            for value, culprit in ((1, Culprit(HOSTILE)), (3, Culprit("")))
        ),
        charts=charts(HOSTILE),
    )
    left_open = CaseResult("test_mesh.py::test_open", HOSTILE, "not promised", HOSTILE)
    promises: Any = {"promised": [HOSTILE], "not_promised": {"gang": HOSTILE}}
    texts = dict.fromkeys(("launcher", "emulated"), HOSTILE)
    lists = dict.fromkeys(("nodes", "doubts", "cut_short"), (HOSTILE,))
    return page_of(case, left_open, **promises, **texts, **lists)


def test_foreign_text_never_becomes_html(hostile: Page) -> None:
    made = {tag for tag, _ in hostile.tags}
    assert not made & {"script", "iframe", "object", "link", "base", "form"}
    assert all(tag != "img" for tag, _ in hostile.tags)
    assert not [name for _, attrs in hostile.tags for name in attrs if name.startswith("on")]
    assert hostile.text.count("<script src=//evil>") > 20
    assert "$\\frac{1}{2}$" in hostile.text  # pictures could read it as TeX
    assert "{{7*7}}" in hostile.text


def test_the_page_loads_no_external_file(hostile: Page) -> None:
    linked = hostile.values("src", "href", "xlink:href", "action", "srcset", "poster")
    assert linked
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in linked)
    styled = " ".join(hostile.values("style"))
    assert "var(--ink)" in styled
    assert not re.search(r"@import|url\((?!#)", styled)
    policy = hostile.values("content")
    assert any(value.startswith("default-src 'none'") for value in policy)


def test_ids_are_unique_and_references_resolve(hostile: Page) -> None:
    ids = Counter(hostile.values("id"))
    assert [name for name, times in ids.items() if times > 1] == []
    used = {link[1:] for link in hostile.values("href") if link.startswith("#")}
    used |= set(re.findall(r"url\(#([^)]+)\)", " ".join(hostile.values("style", "clip-path"))))
    assert len(used) > 5
    assert used <= ids.keys()


def test_the_page_has_every_measurement_culprit_and_reason() -> None:
    cases = [
        CaseResult(
            f"acceptance/test_preflight.py::test_clock[node{n}]",
            "Does the clock agree?",
            "failed" if n == 7 else "passed",
            "node7 is late" if n == 7 else "",
            measurements=(
                Measurement(
                    "skew", n + 0.25, "ms", at_least(5 if n == 7 else -9), "spec", Culprit("node7")
                ),
                Measurement(f"offset of node{n}", n * 1.5, "ms", note=f"by ptp{n}", where=f"me{n}"),
            ),
        )
        for n in range(60)
    ]
    cases[7] = CaseResult(**{**vars(cases[7]), "culprit": "ptp of node7"})
    unknown = Measurement.unknown(
        "busbw", "no counter", unit="GB/s", culprit=Culprit("node3 mlx5_0", "node3")
    )
    certificate = certify(
        *cases,
        CaseResult("acceptance/test_fabric.py::test_it", "Is it?", "passed", "", None, (unknown,)),
        promised=["preflight", "fabric", "restart"],
        not_promised={"gang": "no scheduler"},
        cut_short=("-k clock",),
    )
    html = page_text(certificate)
    page = Page(html)
    for reason in (*certificate.reasons, "no scheduler", "not certified"):
        assert reason in page.text
    for case in certificate.criteria[0].cases:
        for one in case.measurements:
            for text in (one.name, one.measured, one.note, one.where):
                assert text in page.text
    for text in ("ptp of node7", "node7 is late", "culprit: node3 mlx5_0", "no counter", "≥ 5"):
        assert text in page.text
    assert "+12.25 ms" in page.text  # the margin of node3: 3.25 against -9
    # The worst of 59 comes first in the table.
    assert page.text.index("0.25 ms") < page.text.index("59.25 ms")


def test_a_certified_page_has_its_expiry() -> None:
    case = CaseResult("test_mesh.py::test", "?", "passed", measurements=(RIGHT,))
    page = page_of(case, promised=["mesh"])
    assert "2026-11-28 02:06 UTC" in page.text
    assert MISSING not in page.text  # there is nothing to draw


def test_nodes_and_paths_have_their_state() -> None:
    rates = PathRates(
        ("node0", "node1", "node2"),
        ("fab0",),
        170.0,
        ("-pf", "p-p", "sp-"),
        ("- 185 92", "184 - 186", "- 181 -"),
        ("f", "p", "p"),
        ("92", "184", "186"),
    )
    culprit = Culprit("node0 fab0 tx", "node0")
    slow = Measurement("busbw", 92, "Mbit/s", at_least(170), "spec", culprit)
    case = CaseResult("test_fabric.py::test", "?", "failed", measurements=(slow,), paths=(rates,))
    certificate = certify(case, promised=["fabric"], nodes=rates.nodes, cluster_nodes=5)
    page = Page(page_text(certificate))
    assert certificate.coverage.nodes_in_words() in page.text
    assert "failed: node0" in page.text
    assert "6 of 20 measured" in page.text
    assert "fab0 failed, 92 Mbit/s" in page.text
    matrix = path_matrix(certificate.coverage)
    assert matrix is not None
    assert matrix.values == ((None, 185, 92), (184, None, 186), (None, 181, None))
    assert [t for t, attrs in page.tags if attrs.get("aria-label") == matrix.title] == ["svg"]
    assert path_matrix(certify().coverage) is None


def test_pictures_have_the_colours_of_the_page(hostile: Page) -> None:
    pictures = [attrs for tag, attrs in hostile.tags if tag == "svg"]
    assert len(pictures) == 5  # two curves in one chart; a map has none
    assert all(attrs["aria-label"] == " ".join(HOSTILE.split()) for attrs in pictures[1:])
    assert not re.search(r"#0([1-9a-f])0\1", " ".join(hostile.values("style", "fill", "stroke")))


def test_bounds_have_tolerance_and_source_if_there_is_one() -> None:
    point = Point(1 << 20, 5, 9.5, 12, 9, 12, 48.1, 48, 0)
    curve = Curve("all_reduce", "ring", "gloo", 4, (point,), 50, at_least(46, 0.5), (1 << 20,))
    measured = Measurement("busbw", 48, "GB/s", at_least(46, 0.5))
    case = replace(with_charts(curve), measurements=(measured,))
    page = page_of(case, promised=["fabric"])
    assert "bound ≥ 46 ± 0.5 GB/s, judged sizes" in page.text
    assert "Bound: its source is not given." in page.text


def test_without_the_extra_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = page_of(with_charts(*charts("all fine")), promised=["mesh"])
    assert MISSING in page.text
    assert "svg" not in {tag for tag, _ in page.tags}
    assert page.text.count("all fine") == 6  # of the map, which needs no extra


def test_a_picture_that_cannot_be_drawn_loses_no_page() -> None:
    huge = Lines("too far", "x", "y", (Series("it", ((1, 1.7e308), (2, -1.7e308))),))
    page = page_of(with_charts(huge), promised=["mesh"])
    assert "too far" in page.text
    assert "no picture: " in page.text


def test_a_page_of_512_nodes_is_small() -> None:
    page = page_text(composed(questions=6))
    assert len(page.encode()) < 1e6
    assert f"node{SLOW:04d} mlx5_3 tx" in page


def test_a_page_with_too_many_values_lists_the_worst_of_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes, questions = 90, 4
    monkeypatch.setattr(render, "MOST_VALUES", 200)
    certificate = composed(nodes, questions)
    most = render.most_listed(certificate.criteria)
    assert most == 40
    page = page_text(certificate)
    assert page.count("the worst 40 of 90 values: 90 pass; certificate.json has all") == questions
    assert page.count("is ahead of") == questions * (1 + most)
    worst = max(range(nodes), key=lambda n: n * 3 % 97)  # of question 3
    assert page.count(f"node{worst:04d} is ahead of") >= 2
    monkeypatch.undo()
    assert page_text(certificate).count("is ahead of") == questions * (1 + nodes)


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
