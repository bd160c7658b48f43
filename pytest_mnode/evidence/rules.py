"""Reducers of rules: from the rows of all nodes to findings about one of them. Pure.

Each names the node, and the device where a row has one, with its value; where nobody can say which
of several nodes is wrong, all of these are suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_mnode import measurement
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.row import Row
from pytest_mnode.measurement import Bound, Measurement, at_least, at_most, equals


@dataclass(frozen=True, slots=True)
class Subject:
    """A measurement of a node without its value."""

    name: str
    unit: str
    bound: Bound
    source: str

    def unknown(self, why: str, culprit: Culprit | None = None) -> Measurement:
        """Inconclusive measurement of a value that could not be read, with the reason."""
        return Measurement.unknown(
            self.name, why, unit=self.unit, expected=self.bound, source=self.source, culprit=culprit
        )

    def measured(self, value: float, culprit: str | None = None, note: str = "") -> Measurement:
        """Measurement with its value. culprit: to blame if the bound is broken; a plain text is a
        fault of the node that is judged."""
        named = None if culprit is None else Culprit.of(culprit)
        return Measurement(self.name, value, self.unit, self.bound, self.source, named, note)


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a node has no rows."""

    why: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one check, for judging one node.

    key: of the spec, such as "preflight.huge_pages". promise: its value, for the source of bounds.
    by_node: rows by node, in the order of nodes, or why a node has none.
    """

    node: str
    key: str
    promise: object
    by_node: Mapping[str, Sequence[Row] | Unread]

    @property
    def mine(self) -> Sequence[Row]:
        """The rows of the node that is judged; () if it has none."""
        found = self.by_node[self.node]
        return () if isinstance(found, Unread) else found

    @property
    def _was_read(self) -> bool:
        return not isinstance(self.by_node[self.node], Unread)

    def of(self, metric: str) -> list[Row]:
        """The node's rows of a metric."""
        return [one for one in self.mine if one.metric == metric]

    def where(self, keep: Callable[[Row], bool]) -> Rows:
        """Only those rows of all nodes that `keep` is true of."""
        by_node = {
            name: found if isinstance(found, Unread) else [one for one in found if keep(one)]
            for name, found in self.by_node.items()
        }
        return replace(self, by_node=by_node)

    def equals(self, metric: str, wanted: float | str, *, part: str = "") -> Measurement:
        """Number of rows of a metric that have another value than `wanted`: none is allowed."""
        name = f"{metric} other than {wanted}"
        return self.none(metric, name, lambda one: one.value != wanted, part=part)

    def none(
        self,
        metric: str,
        name: str,
        is_bad: Callable[[Row], bool],
        source: str = "",
        *,
        part: str = "",
    ) -> Measurement:
        """Number of rows of a metric that must not be. A metric without a row is inconclusive.

        name: of the measurement. part: key below the promise, if the promise has several.
        """
        source = source or self._source(part)
        return self._counted(metric, name, is_bad, self._bound(equals(0), part), source)

    def number(
        self, metric: str, name: str, counts: Callable[[Row], bool], limit: int, *, part: str = ""
    ) -> Measurement:
        """Number of rows of a metric that count: `limit` at least. No row at all is zero.

        It is inconclusive if rows without a value could make up for what lacks.
        """
        rows, bound, source = (
            self.of(metric),
            self._bound(at_least(limit), part),
            self._source(part),
        )
        why = self._why_unread(rows, metric) if rows or not self._was_read else ""
        known = [one for one in rows if one.value is not None]
        found = [one for one in known if counts(one)]
        if why and (not rows or len(found) < limit <= len(found) + len(rows) - len(known)):
            return Measurement.unknown(name, why, expected=bound, source=source)
        others = [f"{one.device or one.metric} ({one.shown})" for one in rows if one not in found]
        note = f"{self.node}: {measurement.listed(others, 4) or 'all count'}"
        words = f"{self.node} {name}: {len(found)} of {limit}"
        return Measurement(name, len(found), "", bound, source, Culprit(words, self.node), note)

    def at_least(
        self,
        metric: str,
        limit: float,
        unit: str = "",
        *,
        part: str = "",
        tolerance: float = 0.0,
        source: str = "",
    ) -> Measurement:
        """The least value of a metric. part: key below the promise, if the promise has several."""
        bound = self._bound(at_least(limit, tolerance), part)
        return self._worst(metric, bound, unit, min, source or self._source(part))

    def at_most(
        self,
        metric: str,
        limit: float,
        unit: str = "",
        *,
        part: str = "",
        tolerance: float = 0.0,
        source: str = "",
    ) -> Measurement:
        """The largest value of a metric; as `at_least`."""
        bound = self._bound(at_most(limit, tolerance), part)
        return self._worst(metric, bound, unit, max, source or self._source(part))

    def same(self, *metrics: str) -> Measurement:
        """Number of values that are unlike those of most nodes: all rows, or those of `metrics`.

        Values are compared by metric and device. A single node has no other to be compared with.
        """
        of_nodes = {
            name: {
                (one.metric, one.device): one
                for one in found
                if not metrics or one.metric in metrics
            }
            for name, found in self.by_node.items()
            if not isinstance(found, Unread)
        }
        what = ", ".join(metrics) or self.key.partition(".")[2].replace("_", " ")
        name, source = f"{what} unlike that of other nodes", "the value of most nodes"
        if why := self._why_unread(of_nodes.get(self.node, {}).values(), what):
            return Measurement.unknown(name, why, source=source)
        if len(of_nodes) < 2:
            why = f"no other node than {self.node} could be read"
            return Measurement.unknown(name, why, source=source)
        mine, odd = of_nodes[self.node], dict[str, Difference]()
        for item in sorted({item for rows in of_nodes.values() for item in rows}):
            values = {
                node: rows[item].shown if item in rows else "none"
                for node, rows in of_nodes.items()
                if item not in rows or rows[item].value is not None
            }
            if self.node in values and (found := difference(values, self.node)) is not None:
                label = item[0] + f" {item[1]}" * bool(item[1])
                odd[f"{label}: {values[self.node]}, {found.usual} on {found.who}"] = found
        shown = measurement.listed([*odd] or [one.shown for one in mine.values()], 2)
        return Measurement(
            name,
            len(odd),
            "",
            equals(0),
            source,
            unlike(f"{self.node} {what}", self.node, odd.values()),
            f"{self.node}: {shown}",
        )

    def _promised(self, part: str) -> object:
        """The promise, or the value of one of its keys."""
        if not part:
            return self.promise
        dump = getattr(self.promise, "model_dump", None)
        values: Any = dump(by_alias=True) if dump else self.promise
        return values[part]

    def _key(self, part: str) -> str:
        return f"{self.key}.{part}" if part else self.key

    def _source(self, part: str) -> str:
        return f"{self._key(part)} {self._promised(part)}"

    def _bound(self, bound: Bound, part: str) -> Bound:
        """The bound with the key of the spec that it comes from."""
        promise = self._promised(part)
        if isinstance(promise, bool) or not isinstance(promise, int | float | str):
            return bound
        return bound.of(f"criteria.{self._key(part)}", promise)

    def _why_unread(self, rows: Iterable[Row], metric: str) -> str:
        """Why a metric of the node is not known; "" if all its rows have a value."""
        found = self.by_node[self.node]
        if isinstance(found, Unread):
            return f"{self.node}: {found.why}"
        rows = list(rows)
        if not rows:
            return f"{self.node}: no {metric} was found"
        missing = [f"{one.device or one.metric}: {one.shown}" for one in rows if one.value is None]
        return f"{self.node}: {measurement.listed(missing, 2)}" if missing else ""

    def _worst(
        self,
        metric: str,
        bound: Bound,
        unit: str,
        pick: Callable[[Iterable[float]], float],
        source: str,
    ) -> Measurement:
        rows = self.of(metric)
        known = {row: row.value for row in rows if isinstance(row.value, int | float)}
        bad = [row for row, value in known.items() if not bound.holds(value)]
        unit = unit or next((one.unit for one in rows), "")
        why = self._why_unread(rows, metric)
        if not known or (why and not bad):
            why = why or f"{self.node}: {metric} is no number: {rows[0].shown}"
            return Measurement.unknown(metric, why, unit=unit, expected=bound, source=source)
        return Measurement(
            metric,
            pick(known.values()),
            unit,
            bound,
            source,
            self._named(bad) if bad else None,
            why,
        )

    def _counted(
        self,
        metric: str,
        name: str,
        is_bad: Callable[[Row], bool],
        bound: Bound,
        source: str,
    ) -> Measurement:
        rows = self.of(metric)
        bad = [one for one in rows if one.value is not None and is_bad(one)]
        why = self._why_unread(rows, metric)
        if why and not bad:
            return Measurement.unknown(name, why, expected=bound, source=source)
        note = why or f"{self.node}: {measurement.listed((one.shown for one in rows), 2)}"
        return Measurement(
            name, len(bad), "", bound, source, self._named(bad) if bad else None, note
        )

    def _named(self, bad: Sequence[Row]) -> Culprit:
        """The node, with its devices or the metric, and their values."""
        words = [f"{one.device or one.metric} ({one.shown})" for one in bad]
        named = f"{self.node} {measurement.listed(words, separator=', ')}"
        return Culprit.device(named, self.node, *(one.device or one.metric for one in bad))


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a node from other nodes: `usual` is their value, `who` names them.

    tied: whether no value is that of most nodes, so that nobody knows which of them is wrong.
    """

    usual: str
    who: str
    tied: bool = False


def difference(values: Mapping[str, str], node: str) -> Difference | None:
    """Difference of a node from the most frequent value; None if the node has that value.

    values: by node name. If no value is the most frequent, every node differs.
    """
    counted = Counter(values.values()).most_common()
    usual, count = counted[0]
    tied = len(counted) > 1 and counted[1][1] == count
    if not tied:
        if values[node] == usual:
            return None
        return Difference(usual, f"{count} of {len(values)} nodes")
    others = [name for name, value in values.items() if value != values[node]]
    who = f"{measurement.listed(others, separator=', ')}, and no majority says who is right"
    return Difference(values[others[0]], who, tied=True)


def unlike(words: str, name: str, found: Iterable[Difference]) -> Culprit:
    """The culprit of a node's differences: only a suspect if all of them are ties."""
    if all(one.tied for one in found):
        return Culprit(words, either=[[name]])
    return Culprit(words, name)
