"""Reducers of rules: from the rows of all nodes to findings about one of them. Pure.

Each names the node, and the device where a row has one, with its value; where nobody can say which
of several nodes is wrong, all of these are suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pytest_mnode import measurement
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.row import Row
from pytest_mnode.measurement import Bound, Measurement, at_least, at_most, equals


def listed(words: Sequence[str], most: int = 4) -> str:
    """Up to `most` distinct words joined by commas, and the number of further ones."""
    return measurement.listed(words, most, ", ")


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
class Unread(Sequence[Row]):
    """No rows, and why a node has none."""

    why: str

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        return ()[index]


UNREAD = "(not read)"
"""Metric of a row that says why a rank has no rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one check, for judging one node.

    key: of the spec, such as "preflight.huge_pages". promise: its value, for the source of bounds.
    by_node: rows by node, in the order of nodes, or why a node has none. compared: what `same`
    found out about all nodes, shared by all `Rows` of one check.
    """

    node: str
    key: str
    promise: object
    by_node: Mapping[str, Sequence[Row]]
    compared: dict[tuple[object, ...], _Compared] = field(default_factory=dict, compare=False)

    @property
    def mine(self) -> Sequence[Row]:
        """The rows of the node that is judged; () if it has none."""
        return self.by_node[self.node]

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
        return replace(self, by_node=by_node, compared={})

    def under(self, key: str, promise: object) -> Rows:
        """The same rows, for a bound that comes from another key of the spec."""
        return replace(self, key=key, promise=promise)

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
        bound, source = self._bound(equals(0), part), source or self._source(part)
        rows = self.of(metric)
        bad = [one for one in rows if one.value is not None and is_bad(one)]
        why = self._why_unread(rows, metric)
        if why and not bad:
            return Measurement.unknown(name, why, expected=bound, source=source)
        note = why or self._note(bad or rows)
        culprit = self._named(bad, shown=True) if bad else None
        return Measurement(name, len(bad), "", bound, source, culprit, note)

    def count(self, metric: str, wanted: int) -> Measurement:
        """Number of rows of a metric that have a value: as many as `wanted`."""
        bound, rows, source = self._bound(equals(wanted), ""), self.of(metric), self._source("")
        if not self._was_read:
            why = self._why_unread((), metric)
            return Measurement.unknown(metric, why, expected=bound, source=source)
        lost = [one for one in rows if one.value is None]
        culprit = self._named(lost) if lost else Culprit(f"{self.node} {metric}", self.node)
        note, value = self._note(lost) if lost else "", len(rows) - len(lost)
        return Measurement(metric, value, "", bound, source, culprit, note)

    def number(
        self, metric: str, name: str, counts: Callable[[Row], bool], limit: int, *, part: str = ""
    ) -> Measurement:
        """Number of rows of a metric that count: `limit` at least. No row at all is zero.

        It is inconclusive if rows without a value could make up for what lacks.
        """
        rows, source = self.of(metric), self._source(part)
        bound = self._bound(at_least(limit), part)
        why = self._why_unread(rows, metric) if rows or not self._was_read else ""
        known = [one for one in rows if one.value is not None]
        others = [one for one in rows if one.value is None or not counts(one)]
        count = len(rows) - len(others)
        if why and (not rows or count < limit <= count + len(rows) - len(known)):
            return Measurement.unknown(name, why, expected=bound, source=source)
        shown = [f"{one.device or one.metric} ({one.shown})" for one in others]
        note = f"{self.node}: {measurement.listed(shown) or 'all count'}"
        words = f"{self.node} {name}: {count} of {limit}"
        return Measurement(name, count, "", bound, source, Culprit(words, self.node), note)

    def at_least(
        self,
        metric: str,
        limit: float,
        unit: str = "",
        *,
        part: str = "",
        tolerance: float = 0.0,
        source: str = "",
        note: str = "",
    ) -> Measurement:
        """The least value of a metric. part: key below the promise, if the promise has several."""
        bound = self._bound(at_least(limit, tolerance), part)
        return self._worst(metric, bound, unit, min, source or self._source(part), note)

    def at_most(
        self,
        metric: str,
        limit: float,
        unit: str = "",
        *,
        part: str = "",
        tolerance: float = 0.0,
        source: str = "",
        note: str = "",
    ) -> Measurement:
        """The largest value of a metric; as `at_least`."""
        bound = self._bound(at_most(limit, tolerance), part)
        return self._worst(metric, bound, unit, max, source or self._source(part), note)

    def total(
        self, metric: str, limit: float, *, part: str = "", source: str = "", note: str = ""
    ) -> Measurement:
        """The sum of a metric, at most `limit`: each row that adds to it is to blame."""
        bound = self._bound(at_most(limit), part)
        return self._worst(metric, bound, "", sum, source or self._source(part), note)

    def same(self, *metrics: str, what: str = "", absent: str | None = "none") -> Measurement:
        """Number of values that are unlike those of most nodes: all rows, or those of `metrics`.

        Values are compared by metric and device. A single node has no other to be compared with.
        what: in words, with all values. absent: what a node has that has no row of a device which
        others have; None if that says nothing.
        """
        if (metrics, absent) not in self.compared:
            self.compared[metrics, absent] = _Compared.of(self.by_node, metrics, absent)
        every = self.compared[metrics, absent]
        of_nodes, items = every.of_nodes, every.items
        what = what or ", ".join(metrics) or self.key.partition(".")[2].replace("_", " ")
        name, source = f"{what} unlike that of other nodes", "the value of most nodes"

        def unknown(why: str) -> Measurement:
            return Measurement.unknown(name, why, source=source)

        if self.node not in of_nodes or not items:
            return unknown(self._why_unread((), what))
        if len(of_nodes) < 2:
            return unknown(f"no other node than {self.node} could be read")
        mine, odd, compared = of_nodes[self.node], dict[str, Difference](), 0
        alike = len({metric for metric, _ in items}) == 1
        for item in items:
            values = every.values[item]
            if self.node not in values or len(values) == 1:
                continue
            compared += 1
            if (found := difference(values, self.node, every.counted[item])) is not None:
                label = item[1] if alike and item[1] else " ".join(filter(None, item))
                odd[f"{label}: {values[self.node]}, {found.usual} on {found.who}"] = found
        why = self._why_unread(mine.values(), what) if mine else ""
        if (why and not odd) or not compared:
            # Equal errors on all nodes do not prove that what they hide is equal.
            return unknown(why or f"{self.node}: no {what} that another node shows too")
        first = [one.shown for one in mine.values()][:2] if len(mine) < 3 else []
        note = measurement.listed([*odd] or first, 3) or f"{compared} compared"
        if compared < len(items):
            note += f"; {len(items) - compared} unreadable here or absent on all other nodes"
        if missing := len(self.by_node) - len(of_nodes):
            note += f"; nothing is known about {missing} nodes"
        culprit = unlike(f"{self.node} {what}", self.node, odd.values())
        note = f"{self.node}: {note}"
        return Measurement(name, len(odd), "", equals(0), source, culprit, note)

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
        key = self._key(part)
        return bound.of(f"criteria.{key}" if key.startswith("preflight.") else key, promise)

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

    def _worst(  # noqa: PLR0917  of one call
        self,
        metric: str,
        bound: Bound,
        unit: str,
        pick: Callable[[Iterable[float]], float],
        source: str,
        note: str = "",
    ) -> Measurement:
        rows = self.of(metric)
        known = [(one, one.value) for one in rows if isinstance(one.value, int | float)]
        worst = pick([value for _, value in known]) if known else None
        text = next((one for one in rows if isinstance(one.value, str)), None)
        why = self._why_unread(rows, metric)
        why = why or (f"{self.node}: {metric} is no number: {text.shown}" if text else "")
        unit = unit or next((one.unit for one in rows), "")
        if worst is None or (why and bound.holds(worst)):
            return Measurement.unknown(metric, why, unit=unit, expected=bound, source=source)
        if bound.holds(worst):
            return Measurement(metric, worst, unit, bound, source, None, note)
        bad = [one for one, value in known if (value if pick is sum else not bound.holds(value))]
        note = "; ".join(filter(None, [note or self._note(bad), why]))
        return Measurement(metric, worst, unit, bound, source, self._named(bad), note)

    def _note(self, rows: Iterable[Row]) -> str:
        """The node's values of these rows, with their devices."""
        shown = (": ".join(filter(None, (one.device, one.shown))) for one in rows)
        return f"{self.node}: {measurement.listed(shown)}"

    def _named(self, bad: Sequence[Row], *, shown: bool = False) -> Culprit:
        """The node, with its devices or the metric, and their values if they are words."""
        named = [one.device or one.metric for one in bad]
        if shown:
            named = [f"{name} ({one.shown})" for name, one in zip(named, bad, strict=True)]
        words = f"{self.node} {measurement.listed(named, separator=', ')}"
        return Culprit.device(words, self.node, *(one.device or one.metric for one in bad))


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a node from other nodes: `usual` is their value, `who` names them.

    tied: whether no value is that of most nodes, so that nobody knows which of them is wrong.
    """

    usual: str
    who: str
    tied: bool = False


@dataclass(frozen=True, slots=True)
class _Compared:
    """Rows of all nodes beside each other. of_nodes: by node, then by item, a metric and a device.
    values: by item, then by node, as they are compared. counted: by item, the most frequent first.
    """

    of_nodes: Mapping[str, Mapping[_Item, Row]]
    items: Sequence[_Item]
    values: Mapping[_Item, Mapping[str, str]]
    counted: Mapping[_Item, Sequence[tuple[str, int]]]

    @classmethod
    def of(
        cls,
        by_node: Mapping[str, Sequence[Row]],
        metrics: Sequence[str],
        absent: str | None,
    ) -> Self:
        """metrics, absent: as of `Rows.same`."""
        of_nodes = {
            name: {
                (one.metric, one.device): one
                for one in found
                if not metrics or one.metric in metrics
            }
            for name, found in by_node.items()
            if not isinstance(found, Unread)
        }
        items = sorted({item for rows in of_nodes.values() for item in rows})
        values = {
            item: {
                node: rows[item].shown if item in rows else str(absent)
                for node, rows in of_nodes.items()
                if (rows[item].value is not None if item in rows else absent is not None)
            }
            for item in items
        }
        counted = {item: Counter(found.values()).most_common() for item, found in values.items()}
        return cls(of_nodes, items, values, counted)


_Item = tuple[str, str]


def difference(
    values: Mapping[str, str], node: str, counted: Sequence[tuple[str, int]] = ()
) -> Difference | None:
    """Difference of a node from the most frequent value; None if the node has that value.

    values: by node name. If no value is the most frequent, every node differs. counted: how often
    each value is there, the most frequent first, if that is known.
    """
    counted = counted or Counter(values.values()).most_common()
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
