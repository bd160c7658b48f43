"""A row: one thing that was read or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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


def row(
    metric: str, value: int | float | str | None = None, unit: str = "", **about: object
) -> Row:
    """A row; further keywords are those of `Row`."""
    return Row(metric=metric, value=value, unit=unit, **about)  # type: ignore[arg-type]


def seen(rows: Mapping[str, Sequence[Row]], metric: str) -> list[float | str]:
    """Different values of a metric on all nodes, in order; [] if a node has none, or could not read
    one. rows: by node."""
    found = [[one.value for one in of_node if one.metric == metric] for of_node in rows.values()]
    if not all(found):
        return []
    values = {value for values in found for value in values if value is not None}
    missing = any(value is None for values in found for value in values)
    return [] if missing else sorted(values, key=lambda value: (isinstance(value, str), value))
