"""Charts as SVG by matplotlib, which is imported only when a chart is drawn."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

from pytest_mnode.certificate.page import plots
from pytest_mnode.certificate.page.plots import BAD, FAINT, GOOD, GRID, INK, PAPER, SERIES, UNSURE
from pytest_mnode.certificate.text import fit
from pytest_mnode.charts import Advice, Bars, Chart, Lines, Map, Matrix, Timeline
from pytest_mnode.measurement import Curve

MISSING = "without pictures, because matplotlib is missing: pip install 'pytest-mnode[report]'"
_WIDTH_IN = 6.6

Drawn = Curve | Lines | Bars | Matrix | Timeline | Map | Advice
"""Kinds of charts that are drawn; others have fields of their own in the certificate."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mnode",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}

_VARIABLES = {
    **{INK: "ink", FAINT: "faint", GRID: "grid", PAPER: "paper"},
    **{GOOD: "good", BAD: "bad", UNSURE: "unsure"},
    **{colour: f"c{n}" for n, colour in enumerate(SERIES)},
}
"""Placeholder colours, each replaced by a variable of the page's style, whose value depends on
whether the page is light, dark or printed."""

_PROLOG = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_SIZE = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')
_COLOUR = re.compile("|".join(_VARIABLES))


def can_draw() -> bool:
    """Whether the extra `report` is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def title_of(chart: Drawn) -> str:
    """The picture's title."""
    if isinstance(chart, Curve):
        return f"Bus bandwidth by size: {chart.collective}, {chart.ranks} ranks, {chart.backend}"
    return chart.title


def together(charts: Iterable[Chart]) -> Iterator[tuple[Drawn, ...]]:
    """Charts grouped by picture: curves of one collective share one."""
    drawn = (chart for chart in charts if isinstance(chart, Drawn))
    for _, group in groupby(
        enumerate(drawn),
        lambda one: title_of(one[1]) if isinstance(one[1], Curve) else one[0],
    ):
        yield tuple(chart for _, chart in group)


def draw(charts: Sequence[Drawn], prefix: str) -> str:
    """One picture, for inlining. prefix: of its ids; no other picture has the same prefix."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    first = charts[0]
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names without room, missing glyphs, huge values
        figure = Figure(figsize=(_WIDTH_IN, _height(first)), layout="constrained")
        axes = figure.subplots()
        match first:
            case Curve():
                plots.curves(axes, [c for c in charts if isinstance(c, Curve)])
            case Lines():
                plots.lines(axes, first)
            case Bars():
                plots.bars(axes, first)
            case Matrix():
                plots.matrix(axes, first)
            case Timeline():
                plots.timeline(axes, first)
            case Map() | Advice():
                raise TypeError("maps and advice are drawn by the template")
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    return inlined(file.getvalue(), prefix, escape(fit(title_of(first))))


def _height(chart: Drawn) -> float:
    match chart:
        case Timeline(lanes=lanes, moments=moments):
            return 0.9 + 0.3 * len(lanes) + 0.17 * min(len(moments), plots.FEW_NAMES)
        case Matrix(rows=rows):
            return 4.6 if len(rows) > plots.FEW_CELLS else 1.2 + 0.34 * len(rows)
        case Bars(labels=labels):
            return 1.3 + 0.36 * len(labels)
    return 3.0


def inlined(svg: str, prefix: str, label: str) -> str:
    """An SVG file as an element of the page.

    prefix: makes its ids differ from those of other pictures. label: escaped, for screen readers.
    """
    svg = _PROLOG.sub("", svg).strip()
    used = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", svg)
    svg = svg.replace('xlink:href="#', f'href="#{prefix}').replace("xlink:href", "href")
    svg = svg.replace("url(#", f"url(#{prefix}")
    svg = _COLOUR.sub(lambda m: f"var(--{_VARIABLES[m[0]]})", svg)
    return _SIZE.sub(
        lambda m: f'<svg viewBox="0 0 {m[1]} {m[2]}" role="img" aria-label="{label}">', svg, count=1
    )
