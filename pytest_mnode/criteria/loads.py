"""Judges what devices showed of themselves at the end of a load (`measuring.under_load`). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.criteria.devices import judge_rates
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.load_readings import Steady
from pytest_mnode.measurement import Measurement, all_of, at_most, listed
from pytest_mnode.measuring.rank_rates import FALSE_ALARM, Comparison, RankRate
from pytest_mnode.spec.devices import LoadPromise, RankPromise

if TYPE_CHECKING:
    from pytest_mnode.measuring.under_load import RankLoad

_MOST_NAMED = 16
_RISES_C = 2.0
"""A device whose last third differs by more is still warming. [choice] Sensors show whole °C."""


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
