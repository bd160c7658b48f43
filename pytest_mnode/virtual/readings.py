"""What nodes of a virtual cluster read for checks that read by themselves.

A check's own rule says what it would have: it is asked once with rows that are not there, and the
bounds that it sets are kept by healthy nodes, and broken by those that have the fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement, Verdict

_Pair = tuple[Sequence[Row], Sequence[Row]]
"""Rows that keep a bound, and rows that break it."""
_VALUES: tuple[float | str, ...] = (0, 1, 1 << 60, "yes", "no", "other", "0.0.1", "999.0")
"""What a row may have, where only the rule knows which of it is right."""


@dataclass(frozen=True, slots=True)
class _Asked(Rows):
    """Rows that note what is asked of them."""

    made: list[_Pair] = field(default_factory=list, compare=False)

    def _note(self, good: Sequence[Row], bad: Sequence[Row]) -> Measurement:  # type: ignore[override]
        self.made.append((good, bad))
        return Measurement("", 0, "")

    def equals(self, metric: str, wanted: float | str, *, part: str = "") -> Measurement:
        return self.none(metric, "", lambda one: one.value != wanted, part=part, wanted=wanted)

    def none(
        self,
        metric: str,
        name: str,  # noqa: ARG002
        is_bad: Callable[[Row], bool],
        source: str = "",  # noqa: ARG002
        *,
        part: str = "",
        wanted: float | str = "",
    ) -> Measurement:
        return self._chosen(metric, lambda one: not is_bad(one), 1, part, wanted)

    def number(
        self, metric: str, name: str, counts: Callable[[Row], bool], limit: int, *, part: str = ""
    ) -> Measurement:
        del name
        return self._chosen(metric, counts, limit, part)

    def _chosen(
        self,
        metric: str,
        is_good: Callable[[Row], bool],
        count: int,
        part: str,
        wanted: float | str = "",
    ) -> Measurement:
        words = re.findall(r"[^\s,'\"()\[\]{}]+", str(self._promised(part)))
        known: dict[bool, list[Row]] = {True: [], False: []}
        for value in (wanted, *words, *_VALUES):
            with suppress(AssertionError, AttributeError, TypeError, ValueError):
                one = row(metric, value)
                known[bool(is_good(one))].append(one)
        good, bad = known[True][:1] * count, known[False][:1]
        return self._note(_numbered(good), _numbered([*bad, *good[1:]]))

    def count(self, metric: str, wanted: int) -> Measurement:
        good = _numbered([row(metric, 1)] * wanted)
        return self._note(good, good[1:])

    def at_least(self, metric: str, limit: float, unit: str = "", **_: Any) -> Measurement:
        return self._note(
            [row(metric, limit, unit)],
            [row(metric, limit // 2 if isinstance(limit, int) else limit / 2, unit)],
        )

    def at_most(self, metric: str, limit: float, unit: str = "", **_: Any) -> Measurement:
        return self._note([row(metric, limit, unit)], [row(metric, 2 * limit + 1, unit)])

    def total(self, metric: str, limit: float, **_: Any) -> Measurement:
        return self.at_most(metric, limit)

    def same(self, *metrics: str, what: str = "", absent: str | None = "none") -> Measurement:
        del absent
        names = metrics or (what or self.key,)
        return self._note([row(one, "usual") for one in names], [row(one, "odd") for one in names])


def _numbered(rows: Sequence[Row]) -> list[Row]:
    several = len(rows) > 1
    return [row(o.metric, o.value, device=f"part {i}" * several) for i, o in enumerate(rows)]


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """Rows by node, as `evidence.check.Evidence`."""

    by_node: Mapping[str, Sequence[Row]]

    def rows(self, case: str) -> Mapping[str, Sequence[Row]]:  # noqa: ARG002
        return self.by_node


def judged(
    check: Check, nodes: Sequence[str], odd: Sequence[str] = ()
) -> Iterator[tuple[str, list[Measurement]]] | None:
    """Findings about each node, of which `odd` break the promise; None for a check whose rule asks
    for more than bounds of its rows, so that these would not pass, or not fail."""
    asked = _Asked(nodes[0], check.key, check.promise, dict.fromkeys(nodes, ()))
    try:
        list(check.rule(asked))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    good, bad = ([one for pair in asked.made for one in pair[i]] for i in (0, 1))
    first, *rest = nodes

    def verdicts(mine: Sequence[Row]) -> set[Verdict | None]:
        read = _Read(dict.fromkeys(rest, good) | {first: mine})
        return {one.verdict for one in check.judge(read, first)}

    if verdicts(good) != {Verdict.PASS} or (rest and Verdict.FAIL not in verdicts(bad)):
        return None
    read = _Read({node: bad if node in odd else good for node in nodes})
    return ((node, list(check.judge(read, node))) for node in nodes)
