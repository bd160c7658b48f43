"""How the rates of ranks compare: who is slow among equals, and why, as far as can be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_high

from pytest_mnode.detection import Detection, smallest_loss
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_cpu_limits
from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent
from pytest_mnode.spec.devices import RankPromise

NORMAL = 1.4826
"""Median deviations in a standard deviation, where values scatter normally."""
LEAST_SCALE = 0.01
"""Of the median: a spread below it says that few were measured, or that clocks are coarse."""
ENOUGH = 8
"""From here on the spread of ranks says what is usual. The median deviation of two is half of what
they differ by, and of three the lesser of two gaps: it would excuse, or accuse, by chance."""
LEAST_SHARE = 0.1
"""Of the time: a smaller share explains nothing."""
COOL = 0.75
"""Of a CPU's highest clock: below it, it is held back."""


@dataclass(frozen=True, slots=True)
class RankRate:
    """What one rank reached.

    rate: the median of its best round; None where it could not be measured. why: why it is slow or
    was not measured, as far as can be read. alone: what it reached while no other rank of its node
    worked; None where that was not measured. load: of its GPU, while it worked. repeats: the rates
    whose median is `rate`.
    """

    name: str
    rate: float | None
    why: str
    alone: float | None = None
    load: Load | None = None
    repeats: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks at one kind of work; the same on every rank.

    floor: what each rank has to reach in any case; None where that is not promised. how: how it was
    measured, in words. shared: nodes share a machine, whose other programs make noise.
    """

    name: str
    unit: str
    promise: RankPromise
    floor: float | None
    rows: tuple[RankRate, ...]
    how: str
    shared: bool = False

    @property
    def detection(self) -> Detection | None:
        """The loss of one rank that would have been found, by the noisiest; None: not known.

        Too much noise makes no value inconclusive where others make it: on a shared machine.
        """
        bound = self.bound
        if bound is None or bound.slow:
            return None
        tolerated = None if self.shared else 1 - self.promise.at_least_fraction
        found = [
            smallest_loss(row.repeats, bound.limit, tolerated, rounds_of_three=True)
            for row in self.rows
            if row.repeats
        ]
        known = [one for one in found if one is not None]
        whole = len(known) == len(self.rows)
        return max(known, key=lambda one: one.share) if whole else None

    @property
    def bound(self) -> PeerBound | None:
        """None where a rank could not be measured, or has no other to be compared with."""
        rates = [row.rate for row in self.rows if row.rate is not None]
        if len(rates) < max(2, len(self.rows)):
            return None
        return peer_bound(rates, self.promise.at_least_fraction, self.promise.at_most_spreads)

    def table(self) -> str:
        """One line per rank."""
        lines = [f"{self.name}, {self.unit} ({self.how})"]
        for row in self.rows:
            number = "-" if row.rate is None else f"{row.rate:.4g}"
            lines.append(f"{number:>10}  {row.name}  {row.why}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PeerBound:
    """What each rank has to reach beside the others.

    reference: the median; or the fastest rank where most ranks are slow. source: how `limit` came
    about, in words. slow: those below it, slowest first.
    """

    median: float
    reference: float
    most_are_slow: bool
    limit: float
    source: str
    slow: tuple[int, ...]


def peer_bound(rates: Sequence[float], fraction: float, spreads: float | None = None) -> PeerBound:
    """The bound that follows from the rates of two ranks or more; higher is better.

    A rank is slow below `fraction` of the reference, which needs no guess at what is usual, finds
    one slow rank of two, and is not blinded by the spread that the slow ones make themselves. The
    reference is the median, of an even number the upper of the middle two: of two ranks the slow
    one has no part in it. But if even the median is below `fraction` of the fastest rank, then most
    ranks are slow, because nothing makes one of equals that much faster: then the fastest rank is
    the reference. Where
    ranks are many, they also may be no further than `spreads` × 1.4826 × median
    deviation below the median: a narrow spread shows a rank that is slow by a little.
    """
    if len(rates) < 2:
        raise ValueError(f"{len(rates)} rank cannot be compared; give two or more")
    middle, fastest = median_high(rates), max(rates)
    most_are_slow = middle < fraction * fastest
    reference = fastest if most_are_slow else middle
    limit = fraction * reference
    name = (
        "fastest rank, because most are slow" if most_are_slow else f"median of {len(rates)} ranks"
    )
    source = f"at_least_fraction {fraction:g} × {reference:.4g}, the {name}"
    if spreads is not None and len(rates) >= ENOUGH and not most_are_slow:
        deviation = median(abs(rate - middle) for rate in rates)
        scale = max(NORMAL * deviation, LEAST_SCALE * middle)
        if middle - spreads * scale > limit:
            limit = middle - spreads * scale
            source = f"median {middle:.4g} less at_most_spreads {spreads:g} × {scale:.3g}"
    slow = sorted((i for i, rate in enumerate(rates) if rate < limit), key=lambda i: rates[i])
    return PeerBound(middle, reference, most_are_slow, limit, source, tuple(slow))


def cause(spent: Spent, shared: bool, load: Load | None, node: str) -> str:
    """What took this rank's time, or holds its device back, worst first.

    shared: whether the machine has other nodes. load: of the device whose time was measured.
    """
    held_back = [f"device {load}"] if load is not None and load.slowed else []
    return ", ".join([*_waiting(spent, shared, node), *_cold(), *held_back])


def _waiting(spent: Spent, shared: bool, node: str) -> list[str]:
    parts: list[tuple[float, str]] = []
    held_back_s = spent.held_back_s if shared else spent.throttled_s
    if held_back_s > 0:
        limits = read_cpu_limits()
        quota = "" if limits.quota_cpus is None else f" of {limits.quota_cpus:g} CPUs"
        group = f" ({limits.quota_group})" if limits.quota_group else ""
        parts.append((held_back_s, f"by its CPU quota{quota}{group}"))
    others_s = min(spent.idle_s, spent.others_s)
    busiest = f", most of all {spent.busiest}" if spent.busiest else ""
    parts.append((others_s, f"by other processes of {node} on its CPUs{busiest}"))
    if not shared:
        rest_s = min(spent.delayed_s or 0.0, spent.idle_s) - others_s
        parts.append((rest_s, "waiting for a CPU, with no process seen that had it"))
    of_s = spent.own_s if shared else spent.wall_s
    return [
        f"kept from running {part_s / of_s:.0%} of its time {what}"
        for part_s, what in sorted(parts, reverse=True)
        if of_s > 0 and part_s / of_s >= LEAST_SHARE
    ]


def _cold() -> list[str]:
    """CPUs of this rank that run far below their highest clock."""
    found = []
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq")
        now, highest = (
            sysfs.count(folder / name) for name in ("scaling_cur_freq", "cpuinfo_max_freq")
        )
        if now and highest and now < COOL * highest:
            found.append(f"CPU {cpu} at {now / 1e6:.1f} of {highest / 1e6:.1f} GHz")
    return found[:1]
