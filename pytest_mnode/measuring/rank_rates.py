"""Comparison of the rates of ranks: which ranks are slow among equals, and why if known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, median, median_high

from pytest_mnode.detection import Detection, smallest_loss
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_cpu_limits
from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent, parse_stat
from pytest_mnode.spec.devices import RankPromise

NORMAL = 1.4826
"""Standard deviation divided by median absolute deviation, for a normal distribution."""
LEAST_SCALE = 0.01
"""Least scale of `at_most_spreads`, as a share of the median: less means few values, or coarse
clocks."""
ENOUGH = 8
"""Least number of ranks whose spread shows what is usual. The median deviation of two values is
half of their difference, and of three the smaller of two gaps, so it would pass or fail ranks by
chance."""
FALSE_ALARM = 0.001
"""Share of comparisons of healthy ranks, however many ranks they compare, that call one slow."""
HEALTHY_SPREAD = 0.03
"""Largest standard deviation of the rates of equal, healthy devices, as a share of the median."""
_DOUBTFUL = 1.5
"""Ranks whose estimated spread is this many times `HEALTHY_SPREAD` are of two kinds, not of one."""
_SPREADS = {
    **{3: math.inf, 4: 45.0, 6: 19.5, 8: 13.3, 10: 10.9, 12: 9.2, 15: 8.1, 20: 6.8},
    **{24: 6.3, 32: 5.8, 48: 5.3, 64: 5.1, 128: 4.82},
}
"""Largest distance of the lowest of n normal values below their median, in estimated spreads
(`NORMAL` × median deviation), in all but `FALSE_ALARM` of cases, by n. Simulated by 300,000 to
4,000,000 draws for each n. Factors of few values are large because these say little about their
spread."""
MANY = 0.25
"""Least share of fast ranks that shows most ranks to be slow; fewer are odd themselves."""
TWICE = 2.0
"""A single rank shows that most are slow if it is this many times as fast as the median; if it is
less, it may be odd itself, or read wrongly."""
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
        if bound is None or bound.slow or bound.unsure:
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

    reference: the median, or the rate of the fast ranks if most ranks are slow. source: how `limit`
    was computed, in words. slow: ranks that are below `limit` by more than healthy ranks ever are,
    slowest first. unsure: other ranks below `limit`, which these few or odd ranks cannot judge.
    odd: ranks so much faster than most that either they are odd or most are slow, fastest first.
    """

    median: float
    reference: float
    most_are_slow: bool
    limit: float
    source: str
    slow: tuple[int, ...]
    unsure: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()


def peer_bound(rates: Sequence[float], fraction: float, spreads: float | None = None) -> PeerBound:
    """The bound that follows from the rates of two ranks or more; higher is better.

    A rank must reach `fraction` of the reference, or what the spread of at least `ENOUGH` ranks
    explains if that is less. The reference is the median, which no single rank moves; of an even
    number it is the upper of the middle two, so that of two ranks the slow one does not affect it.

    Below that, a rank is slow if it is further from the median than the lowest of so many healthy
    ranks is in all but `FALSE_ALARM` of cases: by the estimated spread, or, where few ranks cannot
    show their spread, by `HEALTHY_SPREAD`. Otherwise it is unsure.

    If at least `MANY` of the ranks are as far above the median, most ranks are slow and the fast
    ones are the reference; if fewer, nothing tells whether they are odd or the others slow. A
    single fast rank counts only if it is `TWICE` as fast, or one of fewer than `ENOUGH`.

    If there are at least `ENOUGH` ranks, a rank is also slow more than `spreads` × 1.4826 × median
    deviation below the median: a narrow spread shows small losses.
    """
    count = len(rates)
    if count < 2:
        raise ValueError(f"{count} rank cannot be compared; give two or more")
    middle = median_high(rates)
    deviation = NORMAL * median(abs(rate - middle) for rate in rates)
    healthy = _healthy_spreads(count)
    surely = healthy * HEALTHY_SPREAD * middle
    apart = min(surely, _estimated_spreads(count) * deviation) if deviation else 0.0
    fast = sorted(
        (i for i, r in enumerate(rates) if middle < fraction * r), key=lambda i: -rates[i]
    )
    far = [i for i in fast if rates[i] > middle + surely]
    sure = len(far) > 1 or (far and rates[far[0]] >= TWICE * middle)
    if sure and len(far) >= MANY * count:
        reference = median_high(rates[i] for i in far)
        limit, surely_slow = fraction * reference, reference * (1 - healthy * HEALTHY_SPREAD)
        name = "fastest rank" if len(far) == 1 else f"median of the {len(far)} fastest ranks"
        source = (
            f"at_least_fraction {fraction:g} × {reference:.4g}, the {name}, because most are slow"
        )
        return _bound(rates, middle, reference, limit, surely_slow, source, most_are_slow=True)
    agreeing = [i for i in fast if rates[i] > middle + apart]
    together = len(agreeing) > 1 and len(agreeing) >= MANY * count
    limit, surely_slow = fraction * middle, middle - apart
    source = f"at_least_fraction {fraction:g} × {middle:.4g}, the median of {count} ranks"
    explains = count >= ENOUGH and deviation <= _DOUBTFUL * HEALTHY_SPREAD * middle
    if explains and middle - healthy * deviation < limit:
        limit = middle - healthy * deviation
        source = (
            f"median {middle:.4g} of {count} ranks less {healthy:.3g} × their spread "
            f"{deviation:.3g}; below at_least_fraction {fraction:g}"
        )
    if spreads is not None and count >= ENOUGH:
        scale = max(deviation, LEAST_SCALE * middle)
        if middle - spreads * scale > limit:
            limit = surely_slow = middle - spreads * scale
            source = f"median {middle:.4g} less at_most_spreads {spreads:g} × {scale:.3g}"
    odd = tuple(agreeing if together else far if sure or count < ENOUGH else ())
    return _bound(rates, middle, middle, limit, surely_slow, source, odd=odd)


def _bound(  # noqa: PLR0917  the parts of a bound
    rates: Sequence[float],
    middle: float,
    reference: float,
    limit: float,
    surely_slow: float,
    source: str,
    *,
    most_are_slow: bool = False,
    odd: tuple[int, ...] = (),
) -> PeerBound:
    below = sorted((i for i, rate in enumerate(rates) if rate < limit), key=lambda i: rates[i])
    slow = tuple(i for i in below if rates[i] < surely_slow)
    unsure = tuple(below[len(slow) :])
    return PeerBound(middle, reference, most_are_slow, limit, source, slow, unsure, odd)


def _healthy_spreads(count: int) -> float:
    """Distance below their median, in standard deviations, that the lowest of `count` normal values
    exceeds in `FALSE_ALARM` of cases.

    By Bonferroni; the root is for the error of the median, and exact for two values.
    """
    return NormalDist().inv_cdf(1 - FALSE_ALARM / count) * math.sqrt(1 + 2 / count)


def _estimated_spreads(count: int) -> float:
    """As `_healthy_spreads`, in standard deviations that are estimated from the same values."""
    known = _SPREADS[max((n for n in _SPREADS if n <= count), default=3)]
    return max(known, _healthy_spreads(count))


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
