"""Temperature, clock, power and throttling of all devices at the end of a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.devices import judge_rates, worst_of
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.measurement import Measurement, at_most, listed
from pytest_mnode.measuring.rank_rates import FALSE_ALARM, Comparison, RankRate
from pytest_mnode.spec.devices import LoadPromise, RankPromise

if TYPE_CHECKING:
    import torch

    from pytest_mnode.machine.load_readings import Steady
    from pytest_mnode.measuring.under_load import RankLoad
    from pytest_mnode.rank.world import World

_RISES_C = 2.0
"""A device whose last third differs by more is still warming. [choice] Sensors show whole °C."""


@check("devices.under_load")
class DevicesStayCoolAndFastUnderLoad(WorldCheck):
    """Is every device as cool and as fast as promised at the end of a load?"""

    promise: LoadPromise
    """Temperature, clock, power and throttling of all devices at the end of a load."""

    @property
    def comparisons(self) -> int:
        fractions = (self.promise.clock_at_least_fraction, self.promise.power_at_least_fraction)
        return sum(one is not None for one in fractions)

    @property
    def duration_s(self) -> float:
        return self.promise.duration_s

    def measure(self, world: World, device: torch.device) -> Iterator[tuple[RankLoad, ...]]:
        from pytest_mnode.measuring.under_load import devices_under_load

        yield devices_under_load(self.promise, world, device)

    def rule(self, found: tuple[RankLoad, ...]) -> list[Measurement]:
        return judge_load(found, self.promise, self.family)


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

        return worst_of(
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
        # No device that works has a clock of 0, or draws nothing: its sensor tells nothing.
        rates = {rank: rate or None for rank, rate in shown(value).items()}
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
