"""The record of one round of an experiment: gangs, observations and notes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.engine import Heartbeat, Observation
from pytest_mnode.gang.timeline import (
    Gang,
    Sighting,
    State,
    Stretch,
    by_state,
    longest_unseen_s,
    sightings,
    stretches,
)
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Verdict, at_most, listed

KEY = "criteria.gang"
SMALL = "small"
"""Name of the job of one node that may run while a gang waits."""
CLEARED = "cleared up"
"""Note that marks the end of the experiment and the beginning of clearing up."""


def only_blocked(waits: Iterable[Sighting]) -> str:
    """The scheduler's last reason, if none of its reasons was a lack of nodes; else ""."""
    reasons = list(dropwhile(lambda one: not one.has_reason, waits))
    return reasons[-1].status if reasons and all(one.blocked for one in reasons) else ""


@dataclass(frozen=True, slots=True)
class Window:
    """One round, from the first submission to the last observation.

    title: such as "race 2". gangs: all submitted gangs and plain jobs. problem: why the round
    proves nothing; "" if it does. notes: (time, event), in order. not_free: nodes that were free at
    first but not at the end; None if the scheduler did not show them. taken: nodes that others use
    at the end, with their users. arena: the only nodes of all jobs. others: nodes that others used,
    or that were away, at any time, with the user or the reason.
    """

    title: str
    gangs: tuple[Gang, ...]
    observations: tuple[Observation, ...]
    problem: str = ""
    notes: tuple[tuple[float, str], ...] = ()
    not_free: tuple[str, ...] | None = ()
    taken: tuple[str, ...] = ()
    arena: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def began_s(self) -> float:
        """Time of the first submission or the first observation."""
        requested = [one.requested_s for one in self.observations]
        return min([gang.submitted_s for gang in self.gangs] + requested)

    @property
    def over_s(self) -> float:
        """Time when clearing up began; no waiting gang was cancelled before."""
        cleared = [at for at, text in self.notes if text == CLEARED]
        return cleared[0] if cleared else max(one.answered_s for one in self.observations)

    @property
    def known_until_s(self) -> float:
        """Time of the scheduler's last answer before clearing up began."""
        answered = [one.answered_s for one in self.observations if one.records is not None]
        return min(self.over_s, max(answered, default=self.began_s))

    @property
    def longest_unseen_s(self) -> float | None:
        """See `timeline.longest_unseen_s`."""
        return longest_unseen_s(self.observations, self.began_s)

    @property
    def real(self) -> tuple[Gang, ...]:
        """Gangs of more than one node."""
        return tuple(gang for gang in self.gangs if gang.size > 1)

    @property
    def names_of_jobs(self) -> dict[str, str]:
        return {job: gang.name for gang in self.gangs for job in gang.jobs}

    def gang(self, name: str) -> Gang:
        return next(gang for gang in self.gangs if gang.name == name)

    def seen(self, gang: Gang) -> list[Sighting]:
        return sightings(gang, self.observations)

    def states(self, gang: Gang) -> list[Stretch]:
        return stretches(self.seen(gang), gang.submitted_s, by_state)

    def beats(self, gang: Gang, restarts: int | None = None) -> list[Heartbeat]:
        """Heartbeats of a gang's ranks, in one start; in all if `restarts` is None."""
        every = (beat for one in self.observations for beat in one.beats)
        beats = [beat for beat in every if beat.job in gang.jobs]
        return [beat for beat in beats if restarts in (None, beat.restarts)]

    def first(self, gang: Gang, state: State) -> Stretch | None:
        """The gang's first stretch in this state; None if it was never in it."""
        return next((one for one in self.states(gang) if one.state is state), None)

    def blocked(self, gang: Gang, since_s: float = 0.0) -> str:
        """The scheduler's reason why a gang waited, if it was never a lack of nodes; else ""."""
        waits = [
            one
            for one in self.seen(gang)
            if one.state is State.WAITING and one.observation.answered_s >= since_s
        ]
        return only_blocked(waits)

    def blocked_note(self, gang: Gang, why: str) -> str:
        return f"{self.who(gang)} was blocked by something other than nodes: {why}"

    def status(self, gang: Gang) -> str:
        """The scheduler's words for a gang: for its failure, or the last before it was over."""
        seen = self.seen(gang)
        failed = (one.status for one in seen if one.failed)
        alive = (one.status for one in reversed(seen) if one.state is not State.OVER)
        return next(filter(None, (*failed, *alive)), "not shown")

    def who(self, gang: Gang) -> str:
        """Name of a gang with its round, such as "race 2: B"."""
        return f"{self.title}: {gang.name}"

    @property
    def unreadable(self) -> int:
        """Number of lines that were no heartbeats."""
        return sum(observation.unreadable for observation in self.observations)


def bound_of(limit_s: float, key: str) -> tuple[Bound, str]:
    """A bound of a time by a key of the criterion, and its source."""
    return at_most(limit_s).of(f"{KEY}.{key}", limit_s), f"{KEY}.{key}"


def counted(
    name: str,
    culprits: Iterable[str],
    source: str,
    unknown: str = "",
    note: str = "",
    *,
    headline: HeadlineMark | None = None,
) -> Measurement:
    """Measurement of a count that must be 0. Culprits are a failure in any case; without culprits,
    a reason in `unknown` makes the count inconclusive."""
    named = [Culprit.of(one) for one in culprits]
    if unknown and not named:
        return Measurement.unknown(name, unknown, source=source)
    return Measurement.none_allowed(name, named, source, note=note, headline=headline)


def unless_others(window: Window, judged: Iterable[Measurement]) -> list[Measurement]:
    """The measurements, with failures made inconclusive if others used the nodes or the nodes were
    away, because that may have delayed or prevented a start."""
    if not window.others:
        return list(judged)
    why = f"{window.title}: these nodes were used by others or unavailable: {listed(window.others)}"
    return [
        replace(one, value=None, note=why) if one.verdict is Verdict.FAIL else one for one in judged
    ]


def surely_within(least_s: float, most_s: float, limit_s: float) -> float | None:
    """The value to judge by a limit, of a time between `least_s` and `most_s`.

    It is `most_s` if that is within the limit, `least_s` if that exceeds it, else None.
    """
    if most_s <= limit_s:
        return max(0.0, most_s)
    return least_s if least_s > limit_s else None


def worst(some: Sequence[Measurement]) -> Measurement:
    """The largest failure, else an inconclusive measurement, else the largest value."""

    def badness(one: Measurement) -> tuple[int, float]:
        order = {Verdict.FAIL: 2, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 0, None: 0}
        return order[one.verdict], one.value or 0.0

    return max(some, key=badness)
