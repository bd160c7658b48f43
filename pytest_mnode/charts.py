"""Charts of values measured over sizes, paths, nodes or time; recorded, not judged.

All criteria share a few general kinds of charts. A certificate keeps the values; `certificate.page`
draws them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_mnode.evidence.row import MeasuredRows
from pytest_mnode.installed import Installed, RequestedKeys
from pytest_mnode.measurement import Bound, Curve
from pytest_mnode.path_rates import PathRates


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name and its (x, y) points, in ascending order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line, such as a bound, in the unit of y."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Lines:
    """A line chart. x, y: labels of the axes, with the unit in parentheses."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of every bar. values: one per bar, in the order of the bars."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart: one bar per label, stacked from parts; negative parts extend below the axis."""

    title: str
    unit: str
    labels: tuple[str, ...]
    parts: tuple[Part, ...]
    kind: Literal["bars"] = "bars"

    def __post_init__(self) -> None:
        if any(len(part.values) != len(self.labels) for part in self.parts):
            raise ValueError(f"{self.title}: a part needs a value for each of its labels")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Values by row and column; None if not measured. No cell is judged by itself.

    rows, columns: names, such as those of senders and receivers. expected: bound of every cell.
    """

    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    expected: Bound | None = None
    kind: Literal["matrix"] = "matrix"

    def __post_init__(self) -> None:
        if [len(self.columns)] * len(self.rows) != [len(row) for row in self.values]:
            raise ValueError(
                f"{self.title}: values are not {len(self.rows)} rows of {len(self.columns)} columns"
            )


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of a lane in one state, in seconds since the chart's start. text: details."""

    lane: str
    start_s: float
    end_s: float
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """An event, in seconds since the chart's start."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The states of several lanes over time.

    lanes: from top to bottom. states: all possible states; each has one colour in all charts.
    """

    title: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    moments: tuple[Moment, ...] = ()
    states: tuple[str, ...] = ()
    kind: Literal["timeline"] = "timeline"

    def __post_init__(self) -> None:
        if unknown := {span.lane for span in self.spans} - set(self.lanes):
            raise ValueError(f"{self.title}: no lane {', '.join(sorted(unknown))}")


@dataclass(frozen=True, slots=True)
class Item:
    """A device or process in a place. kind: such as "rank" or "nic". good: None if not judged."""

    kind: str
    name: str
    text: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a machine, such as a NUMA node, with its items."""

    name: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of one machine. names: all machines that have this layout."""

    names: tuple[str, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """The layouts of all machines."""

    title: str
    layouts: tuple[Layout, ...]
    kind: Literal["map"] = "map"


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """A metric under one setting. case: a size, or "" if there is only one. gain: over the first
    setting, per cent: lowest, estimate, highest; None of the first and of what does not decide."""

    case: str
    setting: str
    metric: str
    value: float
    unit: str
    gain: tuple[float, float, float] | None = None
    advised: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings that were tried in turns, and the lines that make the best of them last.

    rounds: measurements of each. took_s: of all. notes: what is not advised or measured, and why.
    """

    title: str
    rounds: int
    took_s: float
    rows: tuple[AdviceRow, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: Literal["advice"] = "advice"

    def table(self) -> list[tuple[str, str, str, str]]:
        """Case, setting, what was measured, and its gain, in words; headings first."""
        rows = [("case", "setting", "measured", "gain over the first (95 % interval)")]
        for one in self.rows:
            gain = ""
            if one.gain is not None:
                low, middle, high = one.gain
                gain = f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"
                gain += ", advised" * one.advised
            measured = f"{one.metric} {one.value:.4g} {one.unit}".rstrip()
            rows.append((one.case, one.setting, measured, gain))
        return rows

    @property
    def conclusion(self) -> tuple[str, ...]:
        """The lines to paste, or that nothing is to be changed; then the notes."""
        nothing = ("nothing is gained beyond noise: leave it as it is",) if self.rows else ()
        return (*(self.lines or nothing), *(f"# {note}" for note in self.notes))


Chart = (
    Curve
    | Lines
    | Bars
    | Matrix
    | Timeline
    | Map
    | Advice
    | PathRates
    | Installed
    | RequestedKeys
    | MeasuredRows
)
"""Every type that `measure.chart` accepts. A `Curve` is the bus bandwidth of a collective by size;
`PathRates` go to the certificate's coverage, `Installed` to its facts,
`RequestedKeys` to the promises of a case; `MeasuredRows` stay in the evidence of the run."""
