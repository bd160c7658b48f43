"""What is measured over sizes, paths, nodes or time, as a picture needs it; recorded, not judged.

A few general kinds stand for every criterion. A certificate keeps the values; `certificate.page`
draws them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_mnode.installed import Asked, Installed
from pytest_mnode.measurement import Bound, Curve
from pytest_mnode.path_rates import PathRates


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name, and (x, y) with x rising."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line, such as a bound, in the unit of y."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Lines:
    """Values over a number. x, y: what the axes show, with the unit in parentheses."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of every bar, in their order."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each label, stacked from parts; parts below 0 go down from the axis."""

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
    """Values by row and column. None: not measured; no cell is judged by itself.

    rows, columns: names, such as those of senders and receivers. expected: of every cell.
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
    """A stretch of a lane in one state. text: more about it. Seconds since the chart began."""

    lane: str
    start_s: float
    end_s: float
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, in seconds since the chart's beginning."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What was in which state when.

    lanes: from the top. states: all that there may be, so that each has one colour in all charts.
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
    """Something in a place. kind: such as "rank" or "nic". good: None where nobody judged it."""

    kind: str
    name: str
    text: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a machine, such as a NUMA node, and what is in it."""

    name: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """One machine, and what is where in it. names: of all machines that look like this."""

    names: tuple[str, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """What is where, by machine."""

    title: str
    layouts: tuple[Layout, ...]
    kind: Literal["map"] = "map"


Chart = Curve | Lines | Bars | Matrix | Timeline | Map | PathRates | Installed | Asked
"""Everything that `measure.chart` takes. A `Curve` is the bus bandwidth of a collective by size;
`PathRates` go to the certificate's coverage, `Installed` to its facts,
`Asked` to the promises of a case."""
