"""What changed over runs: trends of measurements, and nodes that fail again and again. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.run_facts import UtcTime
from pytest_mnode.certificate.text import with_case
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import listed

FEWEST = 3
"""Earlier values from which the spread of a measurement is estimated."""


@dataclass(frozen=True)
class PastRun:
    """One run. passed, total: nodes with a pass, and all nodes of the cluster, as of its end."""

    date: UtcTime
    verdict: str
    passed: NonNegativeInt
    total: NonNegativeInt


@dataclass(frozen=True)
class Trend:
    """A measurement over runs.

    values: oldest first, this run last; None where a run has none. usual: median of the earlier
    ones that did not fail; None with fewer than 3. spread: how far a value usually lies from it, at
    most, in the unit of the values (3 standard deviations, estimated from the median distance; at
    least one last digit as printed, but for counts). changed: whether this run's value lies
    further off. which: tells it from others of its name in its test; empty where there are none.
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
        """Its name, which of its test's cases it is of, and which it is there."""
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
    """A node that failed in several runs. tested: runs that took it. evidence: of the last one."""

    node: str
    failed: NonNegativeInt
    tested: NonNegativeInt
    evidence: str

    def __str__(self) -> str:
        return f"{self.node} failed in {self.failed} of {count(self.tested, 'run')}"


@dataclass(frozen=True)
class History:
    """The runs before this one that were certified against the same spec.

    runs: oldest first, this one last. trends: those that changed first, then by how much.
    left_out: certificates that could not be read, and why. since: what is another than in the run
    before this one: nodes, versions, drivers, settings, and values that moved by more than noise.
    """

    runs: tuple[PastRun, ...]
    trends: tuple[Trend, ...]
    failing: tuple[RepeatedFailure, ...]
    left_out: tuple[str, ...] = ()
    since: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.runs) < 1 + bool(self.since) or not all(one.values for one in self.trends):
            raise ValueError("a history without its runs, or a trend without values")

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"history: {count(len(self.runs), 'run')} since {self.runs[0].date:%Y-%m-%d}"
        for node in self.failing:
            yield f"again and again: {node} (last: {node.evidence})"
        if changed := [str(trend) for trend in self.trends if trend.changed]:
            yield f"unusual: {listed(changed, 8)}"
        if self.since:
            yield f"since {self.runs[-2].date:%Y-%m-%d %H:%M}: {listed(self.since, 8)}"
        for why in self.left_out:
            yield f"history without {why}"
