"""Charts as SVG by matplotlib, which is imported only when a chart is drawn."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pytest_mnode.certificate.text import fit, one_line
from pytest_mnode.charts import Advice, Bars, Chart, Lines, Map, Matrix, Timeline
from pytest_mnode.measurement import Bound, Curve
from pytest_mnode.spec.quantity import SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Placeholder colours, each replaced by a variable of the page's style (`pictures`).
INK, FAINT, GRID, GOOD, BAD, UNSURE, PAPER = (f"#{n:02x}{n:02x}{n:02x}" for n in range(1, 8))
SERIES = tuple(f"#{n:02x}{n:02x}{n:02x}" for n in range(8, 16))
_LONGEST_NAME = 36
_WIDE = 8
"""Ratio of the last x to the first above which the axis is logarithmic."""
FEW_CELLS = 10
"""Maximum number of rows of a matrix whose cells show their values as text."""
_MOST_CELLS = 128
"""Maximum number of rows of a matrix that have cells of their own; more share cells."""
FEW_NAMES = 40
"""Maximum number of named rows of a matrix, and of moments shown in a timeline."""
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


def _name(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def curves(axes: Axes, curves: Sequence[Curve]) -> None:
    from matplotlib.ticker import NullLocator

    for curve, colour in zip(curves, _colours(len(curves)), strict=True):
        sizes = [p.size_bytes for p in curve.points]
        rates = [p.busbw_gbytes_s for p in curve.points]
        label = f"{curve.algorithm}: median, slowest to fastest repeat"
        axes.plot(sizes, rates, marker="o", markersize=4, color=colour, label=label)
        low, high = (
            [p.busbw_gbytes_s * p.time_median_us / t if t else 0.0 for p, t in pairs]
            for pairs in (
                [(p, p.time_max_us) for p in curve.points],
                [(p, p.time_min_us) for p in curve.points],
            )
        )
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
    bounds = dict.fromkeys((c.expected, c.judged_bytes) for c in curves if c.expected)
    for bound, judged in bounds:
        least, most = (judged[0], judged[-1]) if judged else axes.get_xlim()
        what = f"bound {bound.short('GB/s')}, judged sizes"
        start = least / 1.15 if least == most else least
        axes.hlines(bound.limit, start, most * 1.15, color=BAD, linewidth=1.5, label=what)
    for line in dict.fromkeys(c.line_gbytes_s for c in curves if c.line_gbytes_s):
        axes.axhline(line, color=FAINT, linestyle="--", label=f"line rate {line:.4g}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({p.size_bytes for c in curves for p in c.points}))
    axes.xaxis.set_major_formatter(lambda value, _: SIZE.text(int(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", rotation=45 if len(axes.get_xticks()) > 8 else 0)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="size", ylabel="bus bandwidth (GB/s)")
    axes.legend(loc="best")


def lines(axes: Axes, chart: Lines) -> None:
    for series, colour in zip(chart.series, _colours(len(chart.series)), strict=True):
        xs, ys = zip(*series.points, strict=True) if series.points else ((), ())
        axes.plot(xs, ys, marker="o", markersize=4, color=colour, label=_name(series.name))
    for level in chart.levels:
        label = f"{_name(level.name)} {level.value:.4g}"
        axes.axhline(level.value, color=BAD, linewidth=1.2, label=label)
    numbers = sorted({x for s in chart.series for x, _ in s.points})
    if numbers and numbers[0] > 0 and numbers[-1] > _WIDE * numbers[0]:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if len(numbers) <= FEW_CELLS:
        axes.set_xticks(numbers)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low), high + 0.05 * abs(high))  # markers at the top are not cut
    axes.set(xlabel=_name(chart.x), ylabel=_name(chart.y))
    axes.legend(loc="best")


def bars(axes: Axes, chart: Bars) -> None:
    places = range(len(chart.labels))
    right, left = [0.0] * len(places), [0.0] * len(places)
    for part, colour in zip(chart.parts, _colours(len(chart.parts)), strict=True):
        starts = [r if v >= 0 else x for v, r, x in zip(part.values, right, left, strict=True)]
        axes.barh(places, part.values, left=starts, color=colour, label=_name(part.name))
        right = [r + max(v, 0) for r, v in zip(right, part.values, strict=True)]
        left = [x + min(v, 0) for x, v in zip(left, part.values, strict=True)]
    axes.axvline(0, color=FAINT, linewidth=0.8)
    axes.set_yticks(places, [_name(label) for label in chart.labels])
    axes.invert_yaxis()
    axes.set_xlabel(_name(chart.unit))
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3)


def matrix(axes: Axes, chart: Matrix) -> None:
    import numpy as np
    from matplotlib.patches import Patch

    values = np.array([[math.nan if v is None else v for v in row] for row in chart.values])
    values = _worst_of_blocks(values, side := -(-len(chart.rows) // _MOST_CELLS))
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if chart.expected is not None:  # so that values within noise look alike
        low = min(low, 0.9 * chart.expected.limit)
    # Light to dark in a hue that red-blind readers tell from the red of a broken bound.
    share = np.nan_to_num((values - low) / (high - low or 1.0))[..., None]
    pixels = (1 - share) * (0.80, 0.89, 0.96) + share * (0.13, 0.44, 0.71)
    pixels[~np.isfinite(values)] = (0.72, 0.72, 0.72)
    broken = _broken(values, chart.expected)
    pixels[broken] = (0.80, 0.15, 0.15)
    axes.imshow(pixels, interpolation="none", aspect="equal")
    if len(chart.rows) > FEW_NAMES:  # a dot marks each, because cells are too small to see
        rows, columns = np.nonzero(broken)
        axes.scatter(columns, rows, s=12, color="#cc2626", linewidths=0)
    handles = []
    if (kept := values[np.isfinite(values) & ~broken]).size:
        label = f"{kept.min():.6g} to {kept.max():.6g} {chart.unit}"
        handles.append(Patch(color="#2271b5", label=label))
    if broken.any() and chart.expected:
        handles.append(Patch(color="#cc2626", label=f"not {chart.expected.short(chart.unit)}"))
    if not np.isfinite(values).all():
        handles.append(Patch(color="#b8b8b8", label="not measured"))
    if len(chart.rows) <= FEW_CELLS:
        for (y, x), value in np.ndenumerate(values):
            if math.isfinite(value):
                dark = bool(broken[y, x]) or share[y, x, 0] > 0.5
                colour = "#ffffff" if dark else "#111111"
                text = f"{value:.3g}" if value < 1000 else f"{value / 1000:.3g}k"
                axes.text(x, y, text, ha="center", va="center", color=colour, fontsize=7)
    if len(chart.rows) <= FEW_NAMES:
        small: dict[str, Any] = {"fontsize": 8 if len(chart.rows) <= 16 else 5}
        axes.set_xticks(range(len(chart.columns)), map(_name, chart.columns), rotation=90, **small)
        axes.set_yticks(range(len(chart.rows)), map(_name, chart.rows), **small)
    axes.grid(visible=False)
    if side > 1:
        axes.set_xlabel(f"each cell is the worst of {side} × {side} pairs")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value * side:.0f}")
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)


def _worst_of_blocks(values: Any, side: int) -> Any:
    """The lowest value of each block, so that one bad path of many is visible; nan if none."""
    import numpy as np

    if side <= 1:
        return values
    rows, columns = (-(-length // side) for length in values.shape)
    padded = np.full((rows * side, columns * side), np.inf)
    padded[: values.shape[0], : values.shape[1]] = np.nan_to_num(values, nan=np.inf)
    worst = padded.reshape(rows, side, columns, side).min(axis=(1, 3))
    worst[np.isinf(worst)] = np.nan
    return worst


def _broken(values: Any, expected: Bound | None) -> Any:
    import numpy as np

    if expected is None:
        return np.zeros(values.shape, dtype=bool)
    low, high = expected.accepted
    return np.isfinite(values) & ((values < low) | (values > high))


def timeline(axes: Axes, chart: Timeline) -> None:
    row = {lane: n for n, lane in enumerate(chart.lanes)}
    states = list(dict.fromkeys((*chart.states, *(span.state for span in chart.spans))))
    colours = dict(zip(states, _colours(len(states)), strict=True))
    ends = [s.end_s for s in chart.spans] + [m.at_s for m in chart.moments] + [0.1]
    begins = [s.start_s for s in chart.spans] + [m.at_s for m in chart.moments] + [0.0]
    least_s = (max(ends) - min(begins)) / 300  # so that a short span is visible
    labelled: set[str] = set()
    for span in chart.spans:
        label = "_nolegend_" if span.state in labelled else _name(span.state)
        labelled.add(span.state)
        seconds = max(span.end_s - span.start_s, least_s)
        axes.barh(
            row[span.lane],
            seconds,
            left=span.start_s,
            height=0.62,
            color=colours[span.state],
            label=label,
        )
        if span.text and seconds > 0.025 * len(span.text) * (max(ends) - min(begins)):
            axes.text(
                span.start_s + seconds / 2,
                row[span.lane],
                _name(span.text),
                ha="center",
                va="center",
                fontsize=7,
                color=PAPER,
            )
    under = len(chart.lanes)
    for number, moment in enumerate(chart.moments[:FEW_NAMES]):
        at, y = moment.at_s, under + 0.55 * number
        late = at > min(begins) + 0.6 * (max(ends) - min(begins))
        axes.vlines(at, -0.5, y, color=INK, linewidth=0.8, linestyle=":")
        text = one_line(moment.text)[:90]
        where: dict[str, Any] = {"ha": "right" if late else "left", "va": "center"}
        axes.text(at, y, f" {at:.1f} s {text} ", fontsize=7.5, **where)
    axes.set_yticks(range(under), [_name(lane) for lane in chart.lanes])
    axes.set_ylim(under + 0.55 * min(len(chart.moments), FEW_NAMES) - 0.2, -0.6)
    axes.set_xlim(min(begins), max(ends) + least_s)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("s")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5)


def _colours(count: int) -> list[str]:
    return [SERIES[n % len(SERIES)] for n in range(count)]


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
                curves(axes, [c for c in charts if isinstance(c, Curve)])
            case Lines():
                lines(axes, first)
            case Bars():
                bars(axes, first)
            case Matrix():
                matrix(axes, first)
            case Timeline():
                timeline(axes, first)
            case Map() | Advice():
                raise TypeError("maps and advice are drawn by the template")
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    return inlined(file.getvalue(), prefix, escape(fit(title_of(first))))


def _height(chart: Drawn) -> float:
    match chart:
        case Timeline(lanes=lanes, moments=moments):
            return 0.9 + 0.3 * len(lanes) + 0.17 * min(len(moments), FEW_NAMES)
        case Matrix(rows=rows):
            return 4.6 if len(rows) > FEW_CELLS else 1.2 + 0.34 * len(rows)
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
