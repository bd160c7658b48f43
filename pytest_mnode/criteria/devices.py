"""Judges the speed and the results of single ranks, and their devices at the end of a load. Pure.

Measured by `measuring.devices` and `measuring.under_load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.machine.load_readings import Steady
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measurement import (
    Bound,
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

R = TypeVar("R", bound=str)
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


def _worst(  # noqa: PLR0917  the parts of a measurement
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
    worst = pick(known.values()) if broken or (known and len(known) == len(values)) else None
    below, above = next((spread(r) for r, v in known.items() if v == worst), (0.0, 0.0))
    return Measurement(
        name,
        worst,
        unit,
        bound,
        source if bound else "",
        all_of((_rank(rank, words(rank)) for rank in broken), _MOST_NAMED),
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
    return _worst(
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
    yield _worst(
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
        yield _worst(
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
    seen = {rank.name: rank.seen for rank in ranks}
    how = _how(ranks)

    def shown(value: str) -> dict[Culprit, float | None]:
        found = seen.items()
        return {name: None if one is None else getattr(one, value) for name, one in found}

    def why(values: Mapping[Culprit, float | None]) -> dict[str, str]:
        return {r.name: r.why or "not shown" for r in ranks if values[r.name] is None}

    def highest(
        name: str, unit: str, values: Mapping[Culprit, float | None], most: float | None
    ) -> Measurement:
        def words(rank: Culprit) -> str:
            throttled = one.reasons if (one := seen[rank]) and unit == "s" else ()
            reasons = "".join(f", {reason} in {count} samples" for reason, count in throttled)
            return f"({values[rank]:.4g} {unit}{reasons})"

        return _worst(
            f"{name} under load, highest",
            unit,
            values,
            None if most is None else at_most(most),
            "devices.under_load",
            words,
            f"not known: {listed(map(': '.join, mute.items()))}" if (mute := why(values)) else how,
            spread=lambda rank: _spread(seen[rank], name),
        )

    measurements = [
        highest(*one)
        for one in (
            ("temperature", "°C", shown("temperature_c"), promise.temperature_at_most_c),
            (
                *("memory temperature", "°C", shown("memory_temperature_c")),
                promise.memory_temperature_at_most_c,
            ),
            (
                *("temperature above its place's", "°C", _above(ranks)),
                promise.temperature_spread_at_most_c,
            ),
            ("time throttled", "s", shown("throttled_s"), promise.throttled_at_most_s),
        )
    ]
    for name, unit, value, fraction in (
        ("clock", "MHz", "clock_mhz", promise.clock_at_least_fraction),
        ("power", "W", "power_w", promise.power_at_least_fraction),
    ):
        rates = shown(value)
        mute = why(rates)
        rows = tuple(RankRate(name, rate, mute.get(name, "")) for name, rate in rates.items())
        if fraction is not None:
            alike = RankPromise(at_least_fraction=fraction)
            share = FALSE_ALARM / comparisons
            compared = Comparison(f"{name} under load", unit, alike, None, rows, how, False, share)
            measurements += judge_rates(compared)
        elif known := [rate for rate in rates.values() if rate is not None]:
            measurements.append(Measurement(f"{name} under load, lowest", min(known), unit))
    fans = [percent for percent in shown("fan_percent").values() if percent is not None]
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
        if rank.seen is None or rank.seen.temperature_c is None
        else rank.seen.temperature_c - median(places[rank.place])
        for rank in ranks
    }


def _spread(seen: Steady | None, name: str) -> tuple[float, float]:
    ends = seen and seen.temperature_range
    if not (name.startswith("temperature") and seen and ends) or seen.temperature_c is None:
        return 0.0, 0.0
    return seen.temperature_c - ends[0], ends[1] - seen.temperature_c
