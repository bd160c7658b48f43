"""Reducers of the checks of devices: rates of ranks beside each other, and the worst rank. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    all_of,
    at_least,
    at_most,
    listed,
    with_suspects,
)
from pytest_mnode.measuring.rank_rates import Comparison, PeerBound, RankRate
from pytest_mnode.spec import Spec
from pytest_mnode.spec.devices import MatmulPromise

R = TypeVar("R", bound=str)
MOST_NAMED = 16


def comparisons(spec: Spec) -> int:
    """Number of comparisons of ranks that a certificate has, which share its false alarms."""
    return max(1, spec.criteria.devices.comparisons) if spec.criteria.devices else 1


def judge_rates(found: Comparison) -> list[Measurement]:
    """The slowest rank compared with the other ranks, and with the absolute promises."""
    bound, unknown = found.bound, [row for row in found.rows if row.rate is None]
    slowest = min((row.rate for row in found.rows if row.rate is not None), default=None)
    note = "; ".join(f"{row.name}: {row.why}" for row in unknown[:4])
    undecided = _undecided(found, bound) if bound and not bound.slow else ""
    single = f"a single {found.of} has no other to be compared with"
    if len(found.rows) > 1:
        single = f"no rates above 0 of all {found.of}s"
    elif found.of == "node":
        single += "; the promise's model_at_least_fraction judges it by the model"
    measurements = [
        Measurement(
            f"{found.name}, slowest {found.of}",
            slowest if bound and not undecided else None,
            found.unit,
            at_least(bound.limit if bound else 0.0),
            bound.source if bound else "at_least_fraction × the median of ranks",
            _slow_ranks(found, bound) if bound else None,
            note or undecided or (found.how if bound else single),
            detection=found.detection,
            false_alarm=found.false_alarm if bound else None,
            headline=_headline(found, bound) if bound else None,
        )
    ]
    if len(found.rows) == 1 and found.of == "node" and found.floor is not None:
        measurements = []
    if bound:
        measurements.append(
            Measurement(f"{found.name}, median of {found.of}s", bound.median, found.unit)
        )
    if found.floor is not None:
        rates = {row.name: row.rate for row in found.rows}
        measurements.append(_floor(found, found.name, rates, found.floor, found.how))
    alone = {row.name: row.alone for row in found.rows}
    floor = getattr(found.promise, "alone_at_least_gbytes_s", None)
    if floor is not None or any(rate is not None for rate in alone.values()):
        how = "one rank of a node at a time"
        measurements.append(_floor(found, f"{found.name} alone", alone, floor, how))
    loads = {row.name: row.load for row in found.rows if row.load is not None}
    if loads and isinstance(found.promise, MatmulPromise):
        measurements += _clocks(found.name, loads, found.promise)
    elif loads and found.name in ("host to device", "device to host"):
        measurements.append(_pcie(found.name, loads))
    return measurements


def _headline(found: Comparison, bound: PeerBound) -> HeadlineMark:
    """Matrix products answer for a device; without them, copies."""
    order = 0 if isinstance(found.promise, MatmulPromise) else 1
    after, whole = f"in {found.name}", "the median"
    return HeadlineMark(f"slowest {found.of}", after, bound.median, whole, order=order)


def rank_with(name: str, text: str) -> Culprit:
    """A rank, by the name that has its node, with a text."""
    return Culprit.merged(f"{name} {text}", [name])


def _slow_ranks(found: Comparison, bound: PeerBound) -> Culprit | None:
    """Slow ranks; nodes of those that may be slow beside them are suspect."""
    slow = all_of(_named(found, bound, bound.slow), MOST_NAMED)
    unsure = (one.suspected for one in _named(found, bound, bound.unsure))
    return slow and Culprit.merged(slow, [slow, *unsure])


def _undecided(found: Comparison, bound: PeerBound) -> str:
    """Why the ranks cannot judge each other, and what would; "" if they can.

    A promised floor that all ranks reach shows that not most of them are slow.
    """
    floored = found.floor is not None and all((row.rate or 0) >= found.floor for row in found.rows)
    if bound.odd and not floored:
        odd = listed(_named(found, bound, bound.odd))
        return (
            f"most ranks are slow, or these are of another kind; an absolute floor decides: {odd}"
        )
    if bound.unsure:
        unsure = listed(_named(found, bound, bound.unsure))
        return (
            f"{len(found.rows)} ranks cannot tell a slow rank from the spread of healthy ones; "
            f"compare more ranks, or promise less and an absolute floor: {unsure}"
        )
    return ""


def _named(found: Comparison, bound: PeerBound, ranks: Sequence[int]) -> list[Culprit]:
    """Rank, rate, what it is compared with, and why it is slow."""
    other = f"{'fastest' if bound.most_are_slow else 'median'} {bound.reference:.4g}"

    def named(row: RankRate) -> Culprit:
        why = f": {row.why}" if row.why else ""
        return rank_with(row.name, f"({row.rate or 0.0:.4g} {found.unit}, {other}){why}")

    return [named(found.rows[index]) for index in ranks]


def worst_of(  # noqa: PLR0917  the parts of a measurement
    name: str,
    unit: str,
    values: Mapping[R, float | None],
    bound: Bound | None,
    source: str,
    words: Callable[[R], str],
    note: str = "",
    pick: Callable[[Iterable[float]], float] = max,
    spread: Callable[[R], tuple[float, float]] = lambda _: (0.0, 0.0),
) -> Measurement:
    """The worst value of all ranks; recorded without a bound. It is not known where a rank has
    none, unless another one breaks the bound.

    words: what is said of a rank that does. spread: how far its samples went below and above.
    """
    known = {rank: value for rank, value in values.items() if value is not None}
    ordered = sorted(known, key=known.__getitem__, reverse=pick is max)
    broken = [rank for rank in ordered if bound and not bound.holds(known[rank])]
    named = [rank_with(rank, words(rank)) for rank in broken]
    unread = [Culprit.of(rank) for rank in values if rank not in known and bound]
    worst = pick(known.values()) if broken or (known and len(known) == len(values)) else None
    below, above = next((spread(r) for r, v in known.items() if v == worst), (0.0, 0.0))
    return Measurement(
        name,
        worst,
        unit,
        bound,
        source if bound else "",
        with_suspects(all_of(named, MOST_NAMED), unread),
        note,
        interval=(worst - below, worst + above) if worst is not None and below + above else None,
    )


def _floor(
    found: Comparison,
    name: str,
    rates: Mapping[str, float | None],
    floor: float | None,
    how: str,
) -> Measurement:
    """The rate of the slowest rank, judged only if a floor is promised."""
    missing = [rank for rank, rate in rates.items() if rate is None]
    return worst_of(
        f"{name}, slowest {found.of} against its floor" if floor else f"{name}, slowest {found.of}",
        found.unit,
        rates,
        None if floor is None else at_least(floor),
        f"promised rate of each rank, {how}",
        lambda rank: f"({rates[rank]:.4g} {found.unit})",
        f"{how}; not measured: {listed(missing)}" if missing else how,
        min,
    )


def _clocks(name: str, loads: Mapping[str, Load], promise: MatmulPromise) -> Iterator[Measurement]:
    """GPUs whose clocks were throttled under load, and the lowest SM clock."""
    most, least = promise.slowed_at_most_fraction, promise.at_least_sm_clock_mhz
    mute = [rank for rank, load in loads.items() if load.share_slowed is None]
    yield worst_of(
        f"{name}, samples under load with a throttled clock",
        "%",
        {r: None if x.share_slowed is None else 100 * x.share_slowed for r, x in loads.items()},
        at_most(100 * most).of("slowed_at_most_fraction", most),
        f"matmul.slowed_at_most_fraction {most:g}",
        lambda rank: f"({loads[rank]})",
        f"NVML reports no throttling data for {listed(mute, separator=', ')}; it needs "
        "nvidia-ml-py there"
        if mute
        else "",
    )
    if least is not None:
        yield worst_of(
            f"{name}, lowest SM clock under load",
            "MHz",
            {rank: load.sm_clock_mhz or None for rank, load in loads.items()},
            at_least(least).of("at_least_sm_clock_mhz", least),
            "matmul.at_least_sm_clock_mhz",
            lambda rank: f"({loads[rank].sm_clock_mhz:g} MHz)",
            pick=min,
        )


def _pcie(name: str, loads: Mapping[str, Load]) -> Measurement:
    """GPUs whose PCIe link under load is below the generation of card and slot."""
    read = {rank: (x.pcie_generation, x.full_pcie_generation) for rank, x in loads.items()}
    slow = [
        rank_with(rank, f"(PCIe {now} of {full})")
        for rank, (now, full) in read.items()
        if now and full and now < full
    ]
    mute = [rank for rank, (now, full) in read.items() if not now or not full]
    return Measurement.none_allowed(
        f"{name}, PCIe links below their generation under load",
        slow,
        "the highest generation of both card and slot (NVML)",
        unsure=f"NVML does not report the generation for {', '.join(mute)}" if mute else "",
        unread=map(Culprit.of, mute),
    )
