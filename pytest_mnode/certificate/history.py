"""The history of runs: trends of measurements, and nodes that failed repeatedly. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.run_facts import UtcTime
from pytest_mnode.certificate.text import with_case
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import listed

FEWEST = 3
"""Fewest earlier values from which the spread of a measurement is estimated."""


@dataclass(frozen=True)
class PastRun:
    """One run. passed, total: number of nodes with a pass at its end, and of all nodes."""

    date: UtcTime
    verdict: str
    passed: NonNegativeInt
    total: NonNegativeInt


@dataclass(frozen=True)
class Trend:
    """A measurement over runs.

    values: oldest first, this run last; None if a run has none. usual: median of the earlier values
    that did not fail; None with fewer than 3. spread: the usual largest distance of a value from
    `usual`, in the unit of the values (3 standard deviations, estimated from the median distance;
    at least one last digit as printed, except for counts). changed: whether this run's value is
    further away. which: distinguishes it from others of its name in its test; empty if there are
    none.
    """

    test: str
    name: str
    unit: str
    values: tuple[float | None, ...]
    usual: float | None
    spread: float | None
    changed: bool
    which: str = ""

    @property
    def label(self) -> str:
        """Its name, with the case of its test and `which`."""
        return with_case(self.name, self.test, self.which)

    def __str__(self) -> str:
        now, usual, spread = self.values[-1], self.usual, self.spread
        if now is None or usual is None or spread is None:
            return f"{self.label}: fewer than {FEWEST} earlier values that did not fail"
        share = f" ({(now - usual) / abs(usual):+.1%})" if usual else ""
        return (
            f"{self.label} {now:.6g} {self.unit}".rstrip()
            + f"{share}, usually {usual:.6g} ± {spread:.2g}"
        )


@dataclass(frozen=True)
class RepeatedFailure:
    """A node that failed in several runs. tested: runs with it. evidence: of the last failure."""

    node: str
    failed: NonNegativeInt
    tested: NonNegativeInt
    evidence: str

    def __str__(self) -> str:
        return f"{self.node} failed in {self.failed} of {count(self.tested, 'run')}"


@dataclass(frozen=True)
class History:
    """This run and the earlier runs against the same spec.

    runs: oldest first, this one last. trends: changed ones first, then by size of the change.
    left_out: certificates that could not be read, and why. since: changes since the run before this
    one: nodes, versions, drivers, settings, and values that moved by more than noise. notes: how
    earlier runs were read, such as "2 runs of schema version 4".
    """

    runs: tuple[PastRun, ...]
    trends: tuple[Trend, ...]
    failing: tuple[RepeatedFailure, ...]
    left_out: tuple[str, ...] = ()
    since: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.runs) < 1 + bool(self.since) or not all(one.values for one in self.trends):
            raise ValueError("a history without its runs, or a trend without values")

    def lines(self) -> Iterator[str]:
        """Lines for a terminal."""
        yield f"history: {count(len(self.runs), 'run')} since {self.runs[0].date:%Y-%m-%d}"
        for node in self.failing:
            yield f"repeated failures: {node} (last: {node.evidence})"
        if changed := [str(trend) for trend in self.trends if trend.changed]:
            yield f"unusual: {listed(changed, 8)}"
        if self.since:
            yield f"since {self.runs[-2].date:%Y-%m-%d %H:%M}: {listed(self.since, 8)}"
        for note in self.notes:
            yield f"history: {note}"
        for why in self.left_out:
            yield f"left out of history: {why}"
