"""Ranks compared at one kind of work: what each reached, who is slow, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent
from pytest_mnode.measuring import outliers
from pytest_mnode.spec.devices import MatmulPromise, RankPromise

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure


@dataclass(frozen=True, slots=True)
class RankRate:
    """One rank: its best round's median, None where it could not be measured; why it is slow, as
    far as can be read. spent: over all its repeats. load: of its GPU, while it worked."""

    name: str
    rate: float | None
    why: str
    spent: Spent | None = None
    alone: float | None = None
    """What it reached while no other rank of its node worked; None where that was not asked."""
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """All ranks at one kind of work; the same on every rank."""

    name: str
    unit: str
    promise: RankPromise
    floor: float | None
    rows: tuple[RankRate, ...]
    how: str

    @property
    def line(self) -> outliers.Line | None:
        """None where a rank could not be measured, or has nobody to be compared with."""
        rates = [row.rate for row in self.rows if row.rate is not None]
        if len(rates) < max(2, len(self.rows)):
            return None
        promise = self.promise
        return outliers.line(rates, promise.at_least_fraction, promise.at_most_spreads)

    def record(self, measure: Measure) -> None:
        """The slowest rank against the others, and against what is promised in any case."""
        line, unknown = self.line, [row for row in self.rows if row.rate is None]
        slowest = min((r for r in self.rows if r.rate is not None), key=_rate, default=None)
        measure(
            f"{self.name}, slowest rank",
            _rate(slowest) if line and slowest else None,
            self.unit,
            at_least=line.limit if line else 0.0,
            source=line.source if line else "at_least_fraction × the median of ranks",
            culprit=self._slow(line) if line else None,
            note="; ".join(f"{row.name}: {row.why}" for row in unknown[:4])
            or (self.how if line else "one rank has nobody to be compared with"),
        )
        if line:
            measure(f"{self.name}, median of ranks", line.median, self.unit)
        if self.floor is not None:
            rates = {row.name: row.rate for row in self.rows}
            self._record_floor(measure, self.name, rates, self.floor, self.how)
        alone = {row.name: row.alone for row in self.rows}
        floor = getattr(self.promise, "alone_at_least_gbytes_s", None)
        if floor is not None or any(rate is not None for rate in alone.values()):
            how = "one rank of a node at a time"
            self._record_floor(measure, f"{self.name} alone", alone, floor, how)

        if isinstance(self.promise, MatmulPromise):
            self._record_load(measure, self.promise)
        elif self.name in ("host to device", "device to host"):
            self._record_pcie(measure)

    def _record_pcie(self, measure: Measure) -> None:
        """PCIe links of GPUs that are slower under load than card and slot can."""
        loads = {row.name: row.load for row in self.rows if row.load is not None}
        read = {n: (x.pcie_generation, x.full_pcie_generation) for n, x in loads.items()}
        slow = [
            f"{n} (PCIe {now} of {full})"
            for n, (now, full) in read.items()
            if now and full and now < full
        ]
        mute = [n for n, (now, full) in read.items() if not now or not full]
        if loads:
            measure(
                f"{self.name}, PCIe links below their generation under load",
                None if mute and not slow else len(slow),
                equals=0,
                source="the most that card and slot can (NVML)",
                culprit="; ".join(slow) or None,
                note=f"NVML does not tell that of {', '.join(mute)}" if mute else "",
            )

    def _record_floor(
        self,
        measure: Measure,
        name: str,
        rates: Mapping[str, float | None],
        floor: float | None,
        how: str,
    ) -> None:
        """The slowest rank; judged where a floor is promised."""
        known = {rank: rate for rank, rate in rates.items() if rate is not None}
        low = [f"{n} ({_digits(r)} {self.unit})" for n, r in known.items() if r < (floor or 0)]
        measure(
            f"{name}, slowest rank against its floor" if floor else f"{name}, slowest rank",
            min(known.values()) if known and len(known) == len(rates) else None,
            self.unit,
            at_least=floor,
            source=f"what each rank is promised to reach, {how}" if floor else "",
            culprit="; ".join(low) or None,
            note=how,
        )

    def _record_load(self, measure: Measure, promise: MatmulPromise) -> None:
        """GPUs that were held back while they worked, and their clocks."""
        loads = {row.name: row.load for row in self.rows if row.load is not None}
        if not loads:
            return
        most, least = promise.slowed_at_most_fraction, promise.at_least_sm_clock_mhz
        shares = {name: load.share_slowed for name, load in loads.items()}
        known = [share for share in shares.values() if share is not None]
        held = [f"{n} ({loads[n]})" for n, share in shares.items() if (share or 0) > most]
        mute = [n for n, share in shares.items() if share is None]
        measure(
            f"{self.name}, samples under load with a clock held back",
            100 * max(known) if held or (known and not mute) else None,
            "%",
            at_most=100 * most,
            source=f"matmul.slowed_at_most_fraction {most:g}",
            culprit="; ".join(held) or None,
            note=f"NVML tells nothing of {', '.join(mute)}" if mute else "",
        )
        if least is None:
            return
        clocks = {n: load.sm_clock_mhz for n, load in loads.items() if load.sm_clock_mhz}
        slow = [f"{n} ({clock:g} MHz)" for n, clock in clocks.items() if clock < least]
        measure(
            f"{self.name}, lowest SM clock under load",
            min(clocks.values()) if slow or len(clocks) == len(loads) else None,
            "MHz",
            at_least=least,
            source="matmul.at_least_sm_clock_mhz",
            culprit="; ".join(slow) or None,
        )

    def _slow(self, line: outliers.Line) -> str | None:
        other = f"{'fastest' if line.most_are_slow else 'median'} {_digits(line.reference)}"
        told = []
        for row in (self.rows[index] for index in line.slow):
            why = f": {row.why}" if row.why else ""
            told.append(f"{row.name} ({_digits(_rate(row))} {self.unit}, {other}){why}")
        return "; ".join(told) or None

    def table(self) -> str:
        """A line a rank."""
        lines = [f"{self.name}, {self.unit} ({self.how})"]
        for row in self.rows:
            number = "-" if row.rate is None else _digits(row.rate)
            lines.append(f"{number:>10}  {row.name}  {row.why}".rstrip())
        return "\n".join(lines)


def _rate(row: RankRate) -> float:
    return row.rate or 0.0


def _digits(value: float) -> str:
    return f"{value:.4g}"
