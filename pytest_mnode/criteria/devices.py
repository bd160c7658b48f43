"""Judges the speed and the results of single ranks, and their devices at the end of a load. Pure.

Measured by `measuring.devices` and `measuring.under_load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.machine.load_readings import Steady
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measurement import (
    HeadlineMark,
    Measurement,
    all_of,
    at_least,
    at_most,
    equals,
    listed,
)
from pytest_mnode.measuring.rank_rates import FALSE_ALARM, Comparison, PeerBound, RankRate
from pytest_mnode.spec import Spec
from pytest_mnode.spec.devices import LoadPromise, MatmulPromise, MemoryTestPromise, RankPromise

if TYPE_CHECKING:
    from pytest_mnode.measuring.memory_test import RankMemory
    from pytest_mnode.measuring.repeated_products import RepeatedProducts
    from pytest_mnode.measuring.results_of_ranks import SameSteps
    from pytest_mnode.measuring.under_load import RankLoad

_MOST_NAMED = 16
LARGEST_CHECKED = 2048
"""Largest size of a checked product: a check costs the host as much as the device gains."""

RULE_OF_THREE = 3.0
"""n right calls exclude a larger share of wrong ones than this divided by n, with 95 %. Source:
Hanley and Lippman-Hand, JAMA 249, 1983."""
_RISES_C = 2.0
"""A device whose last third differs by more is still warming. [choice] Sensors show whole °C."""


def comparisons(spec: Spec) -> int:
    """Number of comparisons of ranks that a certificate has, which share its false alarms."""
    return spec.criteria.devices.comparisons if spec.criteria.devices else 1


def judge_products(dtype: str, size: int, wrong: Mapping[str, int | None]) -> list[Measurement]:
    """Whether products are right. wrong: wrong rows by rank, from `measuring.wrong_products`."""
    bad = [_rank(rank, f"({count})") for rank, count in wrong.items() if count]
    every = all_of(bad, _MOST_NAMED, ", ")
    failed = [rank for rank, count in wrong.items() if count is None]
    return [
        Measurement.none_allowed(
            f"matmul {dtype}, wrong rows",
            [every] if every else [],
            f"whole numbers, {size} × {size}, exact in {dtype}",
            count=sum(count or 0 for count in wrong.values()),
            unsure=f"could not be computed by {', '.join(failed)}" if failed else "",
        )
    ]


def judge_steps(*turns: SameSteps) -> list[Measurement]:
    """Whether all ranks computed the same training steps, and which ranks did not."""
    wrong: Counter[str] = Counter()
    for turn in turns:
        wrong.update(turn.wrong)
    disagreeing = [culprit for turn in turns for culprit in turn.unresolved]
    rows = [row for turn in turns for row in turn.rows]
    failed = list(dict.fromkeys(f"{row.name}: {row.why}" for row in rows if row.why))
    each = sum(max((len(row.models) for row in turn.rows), default=0) for turn in turns)
    culprits = [_rank(name, f"({count} of {each})") for name, count in wrong.items()]
    alone = [row.name for row in turns[0].rows if len(set(row.models)) == 1]
    note = f"{each} models of {turns[0].steps} steps on each rank"
    if alone:
        note += f"; no other device of its kind to compare with: {listed(alone)}"
    return [
        Measurement(
            "training steps, digests that differ",
            None if failed and not wrong else sum(wrong.values()) + len(disagreeing),
            "",
            equals(0),
            "steps of one seed are equal bit by bit on devices of one kind",
            all_of([*culprits, *dict.fromkeys(disagreeing)]),
            f"could not be computed by {listed(failed)}" if failed else note,
            detection=smallest_share_wrong(each * turns[0].steps),
        )
    ]


def judge_repeated(found: RepeatedProducts) -> list[Measurement]:
    """Whether all ranks computed the same products, and which ranks did not."""
    count = sum(found.wrong.values()) + found.disputed
    culprits = [_rank(name, f"({bad} of {found.products})") for name, bad in found.wrong.items()]
    note = f"{found.products} products of {found.size} × {found.size} on each rank"
    note += f" in {found.seconds:.3g} s"
    if not count and found.products:
        note += f"; excludes more than 1 wrong in {found.products / RULE_OF_THREE:.0f} with 95 %"
    if found.alone:
        note += f"; compared with itself, as no other is of its kind: {listed(found.alone)}"
    return [
        Measurement(
            f"repeated products {found.dtype}, wrong",
            None if found.failed and not count else count,
            "",
            equals(0),
            "products of one seed are equal bit by bit on devices of one kind",
            all_of([*culprits, *found.unresolved], _MOST_NAMED),
            f"could not be computed by {listed(found.failed)}" if found.failed else note,
            detection=smallest_share_wrong(found.products),
        )
    ]


def judge_memory(ranks: Sequence[RankMemory], promise: MemoryTestPromise) -> list[Measurement]:
    """Whether all memory read as it was written, and where not."""
    bad, least = [], min(rank.tested_bytes for rank in ranks)
    for rank in ranks:
        if rank.wrong:
            where = f", {rank.device}" if rank.device else ""
            tested = f"({rank.wrong} wrong in {rank.tested_bytes / 2**30:.4g} GiB)"
            words = f"{rank.name}{where}: {listed(map(str, rank.first))} {tested}"
            devices = [Culprit.device("", node, rank.device) for node in rank.name.nodes]
            bad.append(Culprit.merged(words, [rank.name, *(devices if rank.device else [])]))
    every = all_of(bad, _MOST_NAMED)
    unsure = [f"{rank.name}: {rank.why}" for rank in ranks if rank.why]
    how = f"{promise.passes} × {', '.join(promise.patterns)}"
    seconds = max(rank.seconds for rank in ranks)
    return [
        Measurement.none_allowed(
            "memory, words read wrong",
            [every] if every else [],
            "each word reads as it was written",
            count=sum(rank.wrong for rank in ranks),
            unsure=listed(unsure),
        ),
        Measurement(
            "memory tested, least of ranks",
            least / 2**30,
            "GiB",
            note=f"{how}, {seconds:.3g} s",
        ),
    ]


def judge_rates(found: Comparison) -> list[Measurement]:
    """The slowest rank compared with the other ranks, and with the absolute promises."""
    bound, unknown = found.bound, [row for row in found.rows if row.rate is None]
    slowest = min((row.rate for row in found.rows if row.rate is not None), default=None)
    note = "; ".join(f"{row.name}: {row.why}" for row in unknown[:4])
    undecided = _undecided(found, bound) if bound and not bound.slow else ""
    measurements = [
        Measurement(
            f"{found.name}, slowest {found.of}",
            slowest if bound and not undecided else None,
            found.unit,
            at_least(bound.limit if bound else 0.0),
            bound.source if bound else "at_least_fraction × the median of ranks",
            _slow_ranks(found, bound) if bound else None,
            note
            or undecided
            or (found.how if bound else "a single rank has no other rank to be compared with"),
            detection=found.detection,
            false_alarm=found.false_alarm if bound else None,
            headline=_headline(found, bound) if bound else None,
        )
    ]
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


def _rank(name: str, text: str) -> Culprit:
    """A rank, by the name that has its node, with a text."""
    return Culprit.merged(f"{name} {text}", [name])


def _slow_ranks(found: Comparison, bound: PeerBound) -> Culprit | None:
    """Slow ranks; nodes of those that may be slow beside them are suspect."""
    slow = all_of(_named(found, bound, bound.slow), _MOST_NAMED)
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
        return _rank(row.name, f"({row.rate or 0.0:.4g} {found.unit}, {other}){why}")

    return [named(found.rows[index]) for index in ranks]


def _floor(
    found: Comparison,
    name: str,
    rates: Mapping[str, float | None],
    floor: float | None,
    how: str,
) -> Measurement:
    """The rate of the slowest rank, judged only if a floor is promised."""
    known = {rank: rate for rank, rate in rates.items() if rate is not None}
    missing = [rank for rank in rates if rank not in known]
    low = [
        _rank(n, f"({rate:.4g} {found.unit})") for n, rate in known.items() if rate < (floor or 0)
    ]
    return Measurement(
        f"{name}, slowest {found.of} against its floor" if floor else f"{name}, slowest {found.of}",
        min(known.values()) if known and len(known) == len(rates) else None,
        found.unit,
        None if floor is None else at_least(floor),
        f"promised rate of each rank, {how}" if floor else "",
        all_of(low, _MOST_NAMED),
        f"{how}; not measured: {listed(missing)}" if missing else how,
    )


def _clocks(name: str, loads: Mapping[str, Load], promise: MatmulPromise) -> list[Measurement]:
    """GPUs whose clocks were throttled under load, and the lowest SM clock."""
    most, least = promise.slowed_at_most_fraction, promise.at_least_sm_clock_mhz
    shares = {rank: load.share_slowed for rank, load in loads.items()}
    known = [share for share in shares.values() if share is not None]
    held = [
        _rank(rank, f"({loads[rank]})") for rank, share in shares.items() if (share or 0) > most
    ]
    mute = [rank for rank, share in shares.items() if share is None]
    measurements = [
        Measurement(
            f"{name}, samples under load with a throttled clock",
            100 * max(known) if held or (known and not mute) else None,
            "%",
            at_most(100 * most).of("slowed_at_most_fraction", most),
            f"matmul.slowed_at_most_fraction {most:g}",
            all_of(held, _MOST_NAMED),
            (
                f"NVML reports no throttling data for {listed(mute, separator=', ')}; it needs "
                "nvidia-ml-py there"
            )
            if mute
            else "",
        )
    ]
    if least is None:
        return measurements
    clocks = {rank: load.sm_clock_mhz for rank, load in loads.items() if load.sm_clock_mhz}
    slow = [_rank(rank, f"({clock:g} MHz)") for rank, clock in clocks.items() if clock < least]
    return [
        *measurements,
        Measurement(
            f"{name}, lowest SM clock under load",
            min(clocks.values()) if slow or len(clocks) == len(loads) else None,
            "MHz",
            at_least(least).of("at_least_sm_clock_mhz", least),
            "matmul.at_least_sm_clock_mhz",
            all_of(slow, _MOST_NAMED),
        ),
    ]


def _pcie(name: str, loads: Mapping[str, Load]) -> Measurement:
    """GPUs whose PCIe link under load is below the generation of card and slot."""
    read = {rank: (x.pcie_generation, x.full_pcie_generation) for rank, x in loads.items()}
    slow = [
        _rank(rank, f"(PCIe {now} of {full})")
        for rank, (now, full) in read.items()
        if now and full and now < full
    ]
    mute = [rank for rank, (now, full) in read.items() if not now or not full]
    return Measurement.none_allowed(
        f"{name}, PCIe links below their generation under load",
        slow,
        "the highest generation of both card and slot (NVML)",
        unsure=f"NVML does not report the generation for {', '.join(mute)}" if mute else "",
    )


def judge_load(
    ranks: Sequence[RankLoad], promise: LoadPromise, comparisons: int
) -> list[Measurement]:
    """comparisons: number of comparisons of ranks of the certificate, see `measuring.devices`."""
    seen = {rank.name: rank.seen for rank in ranks if rank.seen is not None}
    hidden = [f"{rank.name}: {rank.why}" for rank in ranks if rank.seen is None]
    how, above = _how(ranks), _above(ranks)
    reasons = {
        name: "".join(f", {reason} in {count} samples" for reason, count in one.reasons)
        for name, one in seen.items()
    }
    judged: list[tuple[str, str, Mapping[Culprit, float | None], float | None]] = [
        (
            *("temperature", "°C"),
            {name: one.temperature_c for name, one in seen.items()},
            promise.temperature_at_most_c,
        ),
        (
            *("memory temperature", "°C"),
            {name: one.memory_temperature_c for name, one in seen.items()},
            promise.memory_temperature_at_most_c,
        ),
        ("temperature above its place's", "°C", above, promise.temperature_spread_at_most_c),
        (
            *("time throttled", "s"),
            {name: one.throttled_s for name, one in seen.items()},
            promise.throttled_at_most_s,
        ),
    ]
    measurements = []
    for name, unit, values, most in judged:
        of = {
            rank: _Value(value, reasons[rank] if unit == "s" else "", _spread(seen[rank], name))
            for rank, value in values.items()
            if value is not None
        }
        mute = [*hidden, *(f"{rank}: not shown" for rank in values if rank not in of)]
        measurements.append(_highest(f"{name} under load, highest", unit, of, most, mute, how))
    for name, unit, value, fraction in (
        ("clock", "MHz", "clock_mhz", promise.clock_at_least_fraction),
        ("power", "W", "power_w", promise.power_at_least_fraction),
    ):
        shown = [None if rank.seen is None else getattr(rank.seen, value) for rank in ranks]
        rows = tuple(
            RankRate(rank.name, rate, "" if rate is not None else rank.why or "not shown")
            for rank, rate in zip(ranks, shown, strict=True)
        )
        if fraction is not None:
            alike = RankPromise(at_least_fraction=fraction)
            share = FALSE_ALARM / comparisons
            compared = Comparison(f"{name} under load", unit, alike, None, rows, how, False, share)
            measurements += judge_rates(compared)
        elif known := [row.rate for row in rows if row.rate is not None]:
            measurements.append(Measurement(f"{name} under load, lowest", min(known), unit))
    fans = [one.fan_percent for one in seen.values() if one.fan_percent is not None]
    if fans:
        measurements.append(Measurement("fans under load, fastest", max(fans), "%"))
    return [one for one in measurements if one.expected is not None or one.value is not None]


def _how(ranks: Sequence[RankLoad]) -> str:
    """Who read it, and devices whose temperature had not settled."""
    seen = [rank for rank in ranks if rank.seen is not None]
    by = listed({one.seen.by for one in seen if one.seen}, separator=", ")
    samples = min((one.seen.samples for one in seen if one.seen), default=0)
    ends = [(one.name, one.seen.temperature_range) for one in seen if one.seen]
    warming = [name for name, ends_c in ends if ends_c and ends_c[1] - ends_c[0] > _RISES_C]
    note = f"last third of {samples} samples by {by}" if seen else ""
    return note + (f"; not settled: {listed(warming, separator=', ')}" if warming else "")


def _above(ranks: Sequence[RankLoad]) -> dict[Culprit, float | None]:
    """How much hotter each device is than the median of those at its place on all nodes.

    Devices of a node stand in one stream of air, so that places differ where nodes do not.
    """
    places: dict[int, list[float]] = {}
    for rank in ranks:
        if rank.seen is not None and rank.seen.temperature_c is not None:
            places.setdefault(rank.place, []).append(rank.seen.temperature_c)
    return {
        rank.name: None
        if rank.seen.temperature_c is None
        else rank.seen.temperature_c - median(places[rank.place])
        for rank in ranks
        if rank.seen is not None
    }


@dataclass(frozen=True, slots=True)
class _Value:
    """spread: how far the samples went below and above the value; (0, 0) for exact values."""

    value: float
    why: str
    spread: tuple[float, float]


def _spread(seen: Steady, name: str) -> tuple[float, float]:
    ends = seen.temperature_range
    if not name.startswith("temperature") or ends is None or seen.temperature_c is None:
        return 0.0, 0.0
    return seen.temperature_c - ends[0], ends[1] - seen.temperature_c


def _highest(  # noqa: PLR0917  the parts of a measurement
    name: str,
    unit: str,
    values: Mapping[Culprit, _Value],
    most: float | None,
    mute: Sequence[str],
    how: str,
) -> Measurement:
    """The highest of all values, which is at most `most`; recorded without it."""
    order = sorted(values.items(), key=lambda one: -one[1].value)
    over = [
        Culprit.merged(f"{rank} ({one.value:.4g} {unit}{one.why})", [rank])
        for rank, one in order
        if most is not None and one.value > most
    ]
    worst = order[0][1] if order and (over or not mute) else None
    return Measurement(
        name,
        None if worst is None else worst.value,
        unit,
        None if most is None else at_most(most),
        "" if most is None else "devices.under_load",
        all_of(over, _MOST_NAMED),
        f"not known: {listed(mute)}" if mute and not over else how,
        interval=(
            (worst.value - worst.spread[0], worst.value + worst.spread[1])
            if worst and any(worst.spread)
            else None
        ),
    )
