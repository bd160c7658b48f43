"""A row: one thing that was read or measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_mnode.culprit import Culprit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing read or measured, before anything is judged.

    metric: what, such as "cpu governor". value: a number in `unit`, or a text; None if it could not
    be read. why: the reason why it is None. node: set by whoever collects the rows of nodes.
    device: a NIC, GPU, port, CPU or setting on the node. peer: the node, or the rank, at the other
    end. size_bytes: of the message. communicator, repeat: numbers from 0, where what is measured is
    nested. time_s: seconds since 1970.
    """

    metric: str
    value: int | float | str | None = None  # of JSON, an int stays one
    why: str = ""
    unit: str = ""
    node: str = ""
    rank: int | None = None
    device: str = ""
    peer: str = ""
    size_bytes: int | None = None
    communicator: int | None = None
    repeat: int | None = None
    time_s: float | None = None

    @property
    def shown(self) -> str:
        """The value with its unit, or why there is none."""
        if self.value is None:
            return self.why or "not read"
        whole = isinstance(self.value, str | int)
        text = str(self.value) if whole else f"{self.value:g}"
        return f"{text} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """What all ranks of a world measured together, from one of them, for the evidence of a run."""

    rows: tuple[Row, ...]
    kind: Literal["rows"] = "rows"


def row(
    metric: str, value: int | float | str | None = None, unit: str = "", **about: object
) -> Row:
    """A row; further keywords are those of `Row`."""
    return Row(metric=metric, value=value, unit=unit, **about)  # type: ignore[arg-type]


def finite(one: Row) -> Row:
    """The row as JSON can hold it: without a value that is no finite number, and why."""
    if not isinstance(one.value, float) or math.isfinite(one.value):
        return one
    return replace(one, value=None, why=one.why or f"read {one.value}")


@dataclass(frozen=True, slots=True)
class RankRows:
    """The rows of one rank of a world, in the order in which it read them."""

    rank: int
    node: str
    rows: tuple[Row, ...]

    @classmethod
    def each(cls, rows: Iterable[Row]) -> list[RankRows]:
        """The rows of all ranks, by rank."""
        of_each: dict[tuple[int, str], list[Row]] = {}
        for one in rows:
            of_each.setdefault((one.rank or 0, one.node), []).append(one)
        return [cls(*at, tuple(found)) for at, found in sorted(of_each.items())]

    @property
    def name(self) -> Culprit:
        """The rank as a culprit, such as "rank 3 on node1"."""
        return Culprit.rank(f"rank {self.rank} on {self.node}", self.node, self.rank)

    def of(self, metric: str) -> list[Row]:
        """Its rows of a metric."""
        return [one for one in self.rows if one.metric == metric]

    def value(self, metric: str) -> Any:
        """The value of its first row of a metric; None without one."""
        return next((one.value for one in self.rows if one.metric == metric), None)

    def by_device(self, metric: str) -> dict[str, Any]:
        """The values of its rows of a metric, by device."""
        return {one.device: one.value for one in self.rows if one.metric == metric}

    def why(self, metric: str) -> str:
        """Why the first row of a metric has no value; "" if it says nothing."""
        return next((one.why for one in self.rows if one.metric == metric), "")


def of_rank(rows: Iterable[Row], rank: int, node: str) -> tuple[Row, ...]:
    """Rows with the rank that read them, and its node."""
    return tuple(replace(finite(one), rank=rank, node=node) for one in rows)


def seen(rows: Mapping[str, Sequence[Row]], metric: str) -> list[float | str]:
    """Different values of a metric on all nodes, in order; [] if a node has none, or could not read
    one. rows: by node."""
    found = [[one.value for one in of_node if one.metric == metric] for of_node in rows.values()]
    if not all(found):
        return []
    values = {value for values in found for value in values if value is not None}
    missing = any(value is None for values in found for value in values)
    return [] if missing else sorted(values, key=lambda value: (isinstance(value, str), value))
