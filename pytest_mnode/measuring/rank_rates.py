"""Comparison of the rates of ranks: which ranks are slow among equals, and why if known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_high

from pytest_mnode.detection import Detection, smallest_loss
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_cpu_limits
from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent, parse_stat
from pytest_mnode.spec.devices import RankPromise

NORMAL = 1.4826
"""Standard deviation divided by median absolute deviation, for a normal distribution."""
LEAST_SCALE = 0.01
"""Least scale, as a share of the median: less means few values, or coarse clocks."""
ENOUGH = 8
"""Least number of ranks whose spread shows what is usual. The median deviation of two values is
half of their difference, and of three the smaller of two gaps, so it would pass or fail ranks by
chance."""
LEAST_SHARE = 0.1
"""Least share of a rank's time that explains a slow rank."""
COOL = 0.75
"""Share of a CPU's highest clock below which the CPU is throttled."""


@dataclass(frozen=True, slots=True)
class RankRate:
    """The rate of one rank.

    rate: median of its best round; None if not measured. why: why it is slow or was not measured,
    as far as known. alone: its rate while no other rank of its node worked; None if not measured.
    load: load of its GPU during the work. repeats: the rates whose median is `rate`.
    """

    name: str
    rate: float | None
    why: str
    alone: float | None = None
    load: Load | None = None
    repeats: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates of all ranks at one kind of work; the same on every rank.

    floor: absolute rate that each rank must reach; None if not promised. how: the method of
    measuring, in words. shared: whether nodes share a machine, whose other programs make noise.
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
        """Smallest loss of one rank that would be detected, by the noisiest rank; None if unknown.

        On a shared machine others make the noise, so noise does not make a value inconclusive.
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
        """The ranks' bound; None if a rank was not measured, or there is only one."""
        rates = [row.rate for row in self.rows if row.rate is not None]
        if len(rates) < max(2, len(self.rows)):
            return None
        return peer_bound(rates, self.promise.at_least_fraction, self.promise.at_most_spreads)

    def table(self) -> str:
        """One line per rank: rate, name, and why it is slow or was not measured."""
        lines = [f"{self.name}, {self.unit} ({self.how})"]
        for row in self.rows:
            number = "-" if row.rate is None else f"{row.rate:.4g}"
            lines.append(f"{number:>10}  {row.name}  {row.why}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PeerBound:
    """The rate that each rank must reach compared with the others.

    reference: the median, or the fastest rank if most ranks are slow. source: how `limit` was
    computed, in words. slow: ranks below `limit`, slowest first.
    """

    median: float
    reference: float
    most_are_slow: bool
    limit: float
    source: str
    slow: tuple[int, ...]


def peer_bound(rates: Sequence[float], fraction: float, spreads: float | None = None) -> PeerBound:
    """The bound that follows from the rates of two ranks or more; higher is better.

    A rank is slow below `fraction` of the reference. This needs no estimate of the usual spread,
    finds one slow rank of two, and is not blinded by the spread that slow ranks cause. The
    reference is the median; of an even number it is the upper of the middle two, so that of two
    ranks the slow one does not affect it. If even the median is below `fraction` of the fastest
    rank, most ranks are slow, because nothing makes one of equals that much faster; then the
    fastest rank is the reference. If there are at least `ENOUGH` ranks, a rank is also slow more
    than `spreads` × 1.4826 × median deviation below the median: a narrow spread shows small losses.
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


def cause(spent: Spent, shared: bool, load: Load | None, node: str, root: Path = Path("/")) -> str:
    """Causes that cost this rank time or slow its device down, worst first.

    shared: whether the machine has other nodes. load: load of the measured device, if it has one;
    its rate does not follow the clock of CPUs.
    """
    slowed = _throttled(root) if load is None else f"device {load}" if load.slowed else ""
    return ", ".join(filter(None, [*_waiting(spent, shared, node), slowed]))


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
        parts.append((rest_s, "waiting for a CPU that no observed process used"))
    of_s = spent.own_s if shared else spent.wall_s
    return [
        f"kept from running {part_s / of_s:.0%} of its time {what}"
        for part_s, what in sorted(parts, reverse=True)
        if of_s > 0 and part_s / of_s >= LEAST_SHARE
    ]


def _throttled(root: Path) -> str:
    """The CPU of this thread if it runs far below its highest clock; "" if not, or unknown.

    Other CPUs may be idle, and so at a low clock. With all cores busy a CPU is slower than its
    highest clock, but not than its base clock.
    """
    thread = parse_stat(sysfs.text(root / "proc/thread-self/stat") or "", 1)
    cpu = thread.last_cpu if thread is not None else None
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
    now, highest, base = (
        sysfs.count(folder / name)
        for name in ("scaling_cur_freq", "cpuinfo_max_freq", "base_frequency")
    )
    if not now or not highest or now >= min(COOL * highest, base or highest):
        return ""
    return f"CPU {cpu} at {now / 1e6:.1f} of {highest / 1e6:.1f} GHz"
