"""Comparison of the rates of ranks: which ranks are slow among equals, and why if known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import NormalDist, median, median_high
from typing import TYPE_CHECKING, Any

from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection, smallest_loss
from pytest_mnode.evidence.row import Row
from pytest_mnode.intervals import t_quantile
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_cpu_limits
from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent, parse_stat
from pytest_mnode.measuring.naming import named_rank
from pytest_mnode.spec.devices import RankPromise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NORMAL = 1.4826
"""Standard deviation divided by median absolute deviation, for a normal distribution."""
LEAST_SCALE = 0.01
"""Least scale of ranks' rates, as a share of their mean: less means few values or coarse clocks."""
ENOUGH = 8
"""Least number of ranks whose spread shows what is usual. The median deviation of two values is
half of their difference, and of three the smaller of two gaps, so it would pass or fail ranks by
chance."""
FALSE_ALARM = 0.01
"""Share of certificates of healthy ranks, however many ranks they compare, that call one slow."""
UNDECIDED = 4.0
"""So many times as many of them leave a rank undecided: what the spread of healthy ranks explains
no more often than that, and is not called slow, is not called healthy either. [choice]"""
COMPARISONS = 8
"""Number of comparisons of a certificate that share `FALSE_ALARM`, unless a spec says it."""
HEALTHY_SPREAD = 0.03
"""Standard deviation of the rates of equal, healthy devices, as a share of the median, that is
assumed for fewer than `ENOUGH` ranks, which cannot show it."""
WIDEST_SPREAD = 0.08
"""Largest standard deviation of healthy ranks: further below than this explains no rank is healthy,
however much they differ."""
_DOUBTFUL = 0.045
"""Ranks whose estimated spread is a larger share of the median are of two kinds, not of one."""
MANY = 0.25
"""Least share of fast ranks that shows most of a few ranks to be slow; fewer are odd themselves."""
HELD = 0.1
"""The same of many ranks: the reference is a rate that a tenth of the ranks hold."""
TWICE = 2.0
"""A single rank shows that most are slow if it is this many times as fast as the median; if it is
less, it may be odd itself, or read wrongly."""
_SETTINGS = ("unit", "how", "of", "shared")
_LOAD = tuple(one.name for one in fields(Load) if one.name != "slowed")
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

    def to_rows(self, metric: str, unit: str) -> Iterator[Row]:
        """Rows of what it has, below `metric`."""
        name, load = Culprit.of(self.name), self.load
        at: dict[str, Any] = {
            "node": next(iter(name.nodes), ""),
            "rank": next(iter(name.parts.ranks), None),
            "device": next((device for _, device in name.parts.devices), ""),
        }
        if not self.repeats:
            yield Row(metric=metric, value=self.rate, unit=unit, **at)
        for number, rate in enumerate(self.repeats):
            yield Row(metric=metric, value=rate, unit=unit, repeat=number, **at)
        beside = {"why": self.why or None, "alone": self.alone}
        if load is not None:
            beside |= {f"load {key}": getattr(load, key) for key in _LOAD}
            beside |= {f"slowed {reason}": count for reason, count in load.slowed}
        for key, value in beside.items():
            if value is not None:
                yield Row(metric=f"{metric}: {key}", value=value, **at)

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> RankRate:
        """The inverse of `to_rows`."""
        node, rank, device = rows[0].node, rows[0].rank, rows[0].device
        name = Culprit(node, node)
        if rank is not None:
            name = named_rank(node, rank)
        elif device:
            name = Culprit.device(f"{device} of {node}", node, device)
        own = [one for one in rows if ":" not in one.metric]
        rates = [float(one.value) for one in own if one.value is not None]
        repeats = tuple(rates) if own[0].repeat is not None else ()
        beside: dict[str, Any] = {one.metric.partition(": ")[2]: one.value for one in rows}
        load = None
        if "load samples" in beside:
            slowed = tuple(
                (key.removeprefix("slowed "), count)
                for key, count in beside.items()
                if key.startswith("slowed ")
            )
            read: dict[str, Any] = {key: beside.get(f"load {key}") for key in _LOAD}
            load = Load(slowed=slowed, **read)
        rate, why = median(rates) if rates else None, beside.get("why", "")
        return cls(name, rate, why, beside.get("alone"), load, repeats)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates of all ranks at one kind of work; the same on every rank.

    floor: absolute rate that each rank must reach; None if not promised. how: the method of
    measuring, in words. shared: whether nodes share a machine, whose other programs make noise.
    false_alarm: see `peer_bound`. of: what is compared, if not ranks.
    """

    name: str
    unit: str
    promise: RankPromise
    floor: float | None
    rows: tuple[RankRate, ...]
    how: str
    shared: bool = False
    false_alarm: float = FALSE_ALARM / COMPARISONS
    of: str = "rank"

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
        """The ranks' bound; None if a rank was not measured, there is only one, or none has a rate
        above 0."""
        rates = [row.rate for row in self.rows if row.rate is not None and math.isfinite(row.rate)]
        if len(rates) < max(2, len(self.rows)) or max(rates) <= 0:
            return None
        fraction, spreads = self.promise.at_least_fraction, self.promise.at_most_spreads
        return peer_bound(rates, fraction, spreads, self.false_alarm)

    def to_rows(self) -> Iterator[Row]:
        """All of it but what is promised, and whose false alarms it shares."""
        for key in _SETTINGS:
            value = getattr(self, key)
            yield Row(metric=f"{self.name}, {key}", value=int(value) if key == "shared" else value)
        for one in self.rows:
            yield from one.to_rows(self.name, self.unit)

    @classmethod
    def from_rows(
        cls,
        name: str,
        rows: Sequence[Row],
        promise: RankPromise,
        floor: float | None,
        false_alarm: float,
    ) -> Comparison:
        """The inverse of `to_rows`, by another promise."""
        found: dict[str, Any] = {
            key: one.value for one in rows for key in _SETTINGS if one.metric == f"{name}, {key}"
        }
        of_each: dict[tuple[object, ...], list[Row]] = {}
        for one in rows:
            if one.node and one.metric.partition(":")[0] == name:
                of_each.setdefault((one.node, one.rank, one.device), []).append(one)
        rates = tuple(RankRate.from_rows(some) for some in of_each.values())
        of, how, shared = found["of"], found["how"], bool(found["shared"])
        return cls(name, found["unit"], promise, floor, rates, how, shared, false_alarm, of)

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


def peer_bound(
    rates: Sequence[float],
    fraction: float,
    spreads: float | None = None,
    false_alarm: float = FALSE_ALARM / COMPARISONS,
) -> PeerBound:
    """The bound that follows from the rates of two ranks or more; higher is better.

    A rank must reach `fraction` of the reference, or what the spread of at least `ENOUGH` ranks
    explains (in all but `UNDECIDED` × `false_alarm` of comparisons) if that is less. The reference
    is the median, which no single rank moves; of an even number it is the upper of the middle two,
    so that of two ranks the slow one does not affect it.

    Below that, a rank is slow if it stands apart from the faster ranks as healthy ranks do in no
    more than `false_alarm` of comparisons (`_apart`), or is further from the median than
    `WIDEST_SPREAD` explains; of fewer than `ENOUGH` ranks, `HEALTHY_SPREAD`. Else it is unsure.

    Ranks that stand apart as fast ones are the reference if there are enough of them (`_held`):
    most ranks are slow. If there are fewer, nothing tells whether they are odd or the others slow;
    they say nothing about the spread. A single fast rank counts only if it is `TWICE` as fast, or
    one of fewer than `ENOUGH`.

    If there are at least `ENOUGH` ranks, none may be more than `spreads` × 1.4826 × median
    deviation below the median either: a narrow spread shows small losses.
    """
    import numpy as np  # not where a spec is read

    count = len(rates)
    if count < 2:
        raise ValueError(f"{count} rank cannot be compared; give two or more")
    middle = median_high(rates)
    deviation = NORMAL * median(abs(rate - middle) for rate in rates)
    healthy = _healthy_spreads(count, false_alarm)
    enough = count >= ENOUGH
    # Three ways to be called slow share the false alarms of ranks that show their spread.
    to_slow, to_fast, to_wide = (false_alarm * share for share in (1 / 2, 1 / 3, 1 / 10))
    surely = (
        _healthy_spreads(count, to_wide) * WIDEST_SPREAD if enough else healthy * HEALTHY_SPREAD
    )
    order = sorted(range(count), key=lambda i: -rates[i])
    ordered = np.array([rates[i] for i in order])
    far = ordered > middle * max(1 + surely, 1 / fraction)
    apart = _apart(-ordered, to_fast) if enough else int(far.sum())
    # Of a slow half the others stand apart too, down to the median.
    fast = order[:apart] if apart and middle < fraction * ordered[apart - 1] else []
    sure = len(fast) > 1 or (len(fast) == 1 and rates[fast[0]] >= TWICE * middle)
    if sure and len(fast) >= _held(count):
        reference = median_high(rates[i] for i in fast)
        limit = fraction * reference
        name = "fastest rank" if len(fast) == 1 else f"median of the {len(fast)} fastest ranks"
        source = (
            f"at_least_fraction {fraction:g} × {reference:.4g}, the {name}, because most are slow"
        )
        slow_at = float(ordered[len(fast)]) if enough else reference * (1 - surely)
        return _bound(rates, middle, reference, limit, slow_at, source, most_are_slow=True)
    slow_at = middle * (1 - surely)
    if enough and (last := _apart(ordered[len(fast) :][::-1], to_slow)):
        slow_at = max(slow_at, float(ordered[count - last]))
    limit = fraction * middle
    source = f"at_least_fraction {fraction:g} × {middle:.4g}, the median of {count} ranks"
    usual = _healthy_spreads(count, UNDECIDED * false_alarm)
    if enough and deviation <= _DOUBTFUL * middle and middle - usual * deviation < limit:
        limit = middle - usual * deviation
        source = (
            f"median {middle:.4g} of {count} ranks less {usual:.3g} × their spread "
            f"{deviation:.3g}; below at_least_fraction {fraction:g}"
        )
    if spreads is not None and enough:
        scale = max(deviation, LEAST_SCALE * middle)
        if middle - spreads * scale > limit:
            limit = middle - spreads * scale
            source = f"median {middle:.4g} less at_most_spreads {spreads:g} × {scale:.3g}"
    odd = tuple(fast if sure or not enough else ())
    return _bound(rates, middle, middle, limit, slow_at, source, odd=odd)


def _bound(  # noqa: PLR0917  the parts of a bound
    rates: Sequence[float],
    middle: float,
    reference: float,
    limit: float,
    slow_at: float,
    source: str,
    *,
    most_are_slow: bool = False,
    odd: tuple[int, ...] = (),
) -> PeerBound:
    """slow_at: ranks below the limit that are no faster than this are slow, the others unsure."""
    below = sorted((i for i, rate in enumerate(rates) if rate < limit), key=lambda i: rates[i])
    slow = tuple(i for i in below if rates[i] <= slow_at)
    unsure = tuple(below[len(slow) :])
    return PeerBound(middle, reference, most_are_slow, limit, source, slow, unsure, odd)


def _apart(ordered: NDArray[np.float64], false_alarm: float) -> int:
    """Number of leading values, at most half, that stand apart from all later ones.

    ordered: ascending; those of `ENOUGH` ranks or more. The values after the first k are taken for
    healthy ones: the first k stand apart if even the last of them is further below their mean than
    the lowest of so many normal values is in all but `false_alarm` of cases, by the deviation of
    the healthy ones, which no number of slow ranks widens, and by `LEAST_SCALE`, which is known and
    not estimated. The largest such k counts.

    For one value that is the test of a single outlier by the deviation of the others: Student's t
    with n - 2 degrees of freedom, at the error divided by n (Grubbs, Annals of Mathematical
    Statistics 21, 1950). For the choice of k one degree is taken off: then 0.9 to 1.3 times
    `false_alarm` were simulated for 8 to 4,096 values.
    """
    import numpy as np

    count = len(ordered)
    later = np.arange(count - 1, max((count + 1) // 2, min(ENOUGH, count // 2 + 1)) - 1, -1)
    shifted = ordered - ordered[count // 2]
    sums, squares = (np.cumsum(values[::-1])[later - 1] for values in (shifted, shifted**2))
    means = sums / later
    deviations = np.sqrt(np.maximum(squares - later * means**2, 0) / (later - 1))
    least = LEAST_SCALE * np.abs(means + ordered[count // 2])
    estimated, known = (
        t_quantile(1 - false_alarm / count, count - 3),
        NormalDist().inv_cdf(1 - false_alarm / count),
    )
    reach = np.maximum(estimated * deviations, known * least) * np.sqrt(1 + 1 / later)
    apart = np.flatnonzero(means - shifted[count - later - 1] > reach)
    return int(apart[-1]) + 1 if apart.size else 0


def _held(count: int) -> float:
    """Least number of fast ranks that are the reference for all: a tenth of many, a quarter of few,
    and four between the two."""
    return max(HELD * count, min(MANY * count, 4))


def _healthy_spreads(count: int, false_alarm: float) -> float:
    """Distance below their median, in standard deviations, that the lowest of `count` normal values
    exceeds in `false_alarm` of cases.

    By Bonferroni; the root is for the error of the median, and exact for two values.
    """
    return NormalDist().inv_cdf(1 - false_alarm / count) * math.sqrt(1 + 2 / count)


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
    if shared:  # else it may have waited for its device
        others_s = min(others_s, spent.idle_s - spent.stopped_s)
        parts.append((spent.stopped_s, "while it was stopped, by a signal or a freezer"))
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
