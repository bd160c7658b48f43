"""The chance that a certificate accuses a healthy cluster: that of all its judgements together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import computed_field
from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.results import CriterionResult
from pytest_mnode.detection import PROBABILITY
from pytest_mnode.measurement import Measurement

_AT_ONCE = 1 - PROBABILITY
"""Chance that noise alone takes a value across its bound from the end of its interval."""


@dataclass(frozen=True)
class Family:
    """The judgements of one criterion that rest on noise.

    judgements: their number. chance: that noise breaks any of their bounds, at most: the sum of
    their chances (Bonferroni), and 1 at most.
    """

    criterion: str
    judgements: int
    chance: float


@dataclass(frozen=True)
class FalseAlarms:
    """The judgements of a certificate that rest on noise, by criterion.

    A healthy cluster is one as good as this one where it kept its bound, and one that just keeps
    it elsewhere. Exact judgements, such as counts, add nothing.
    """

    families: tuple[Family, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def judgements(self) -> int:
        """Number of judgements that rest on noise."""
        return sum(one.judgements for one in self.families)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def chance(self) -> float:
        """Chance that a healthy cluster fails any of them, at most."""
        return min(1.0, sum(one.chance for one in self.families))

    @property
    def text(self) -> str:
        """The chance of the whole and of each family; "" if no judgement rests on noise."""
        if not self.families:
            return ""
        each = ", ".join(
            f"{one.criterion} {_percent(one.chance)} of {one.judgements}" for one in self.families
        )
        several = "judgements that rest" if self.judgements > 1 else "judgement that rests"
        return (
            f"a healthy cluster fails with a chance of {_percent(self.chance)} at most, by "
            f"{self.judgements} {several} on noise ({each})"
        )


def false_alarms(criteria: Sequence[CriterionResult]) -> FalseAlarms:
    """The chances of all judged values of these criteria."""
    return FalseAlarms(tuple(_families(criteria)))


def _families(criteria: Sequence[CriterionResult]) -> Iterator[Family]:
    for criterion in criteria:
        judged = (one for case in criterion.judged for one in case.measurements)
        chances = [chance for one in judged if (chance := chance_of(one)) is not None]
        if chances:
            yield Family(criterion.name, len(chances), min(1.0, sum(chances)))


def chance_of(one: Measurement) -> float | None:
    """Chance that noise breaks the bound of a healthy cluster, at most; None for exact values.

    At the bound it is what its judge says (`Measurement.false_alarm`), else 1 of 100. The distance
    of a value from its bound makes it smaller, in units of the longer part of its interval, or of
    what its noise exceeds in 1 of 100 cases: by the square, as the tail of Student's t with two
    degrees of freedom falls, which three repeats have; that of more repeats falls faster.
    """
    if one.expected is None:
        return None
    at_bound = _AT_ONCE if one.false_alarm is None else one.false_alarm
    margin = max(0.0, one.margin or 0.0)
    if one.interval is not None and one.known is not None:
        # A value breaks its bound if its whole interval does.
        half = max(abs(end - one.known) for end in one.interval)
        return at_bound / (1 + margin / half) ** 2 if half else 0.0
    if one.false_alarm is not None:
        return one.false_alarm
    blur = one.detection.blur if one.detection else None
    if blur is None or one.known is None:
        return None
    noise = blur * abs(one.known)
    if not noise:
        return 0.0
    return min(0.5, _AT_ONCE * (noise / margin) ** 2) if margin else 0.5


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else "less than 0.01 %"
