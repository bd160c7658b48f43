"""The record of one round of an experiment: gangs, observations and notes; and the states of a gang
at each observation, with their durations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import dropwhile, groupby, pairwise
from math import inf

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.engine import Heartbeat, JobRecord, Observation, Phase
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Verdict, at_most, listed


class State(StrEnum):
    """State of a gang, by the number of nodes it has."""

    WAITING = "waiting"
    """It has no node."""
    PART = "a part"
    """It has some of its nodes."""
    WHOLE = "whole"
    ENDING = "ending"
    """It was whole and lost some nodes, or it is being terminated."""
    OVER = "over"


BLIND_S = 5.0
"""If two answers are farther apart, a gang may have come and gone unseen between them."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang as it was submitted. size: number of nodes. jobs: ids of the jobs it consists of."""

    name: str
    size: int
    jobs: tuple[str, ...]
    runs_s: float
    submitted_s: float


@dataclass(frozen=True, slots=True)
class Sighting:
    """A gang at one observation."""

    observation: Observation
    state: State
    nodes: tuple[str, ...]
    status: str
    restarts: int
    failed: bool = False
    blocked: bool = False

    @property
    def has_reason(self) -> bool:
        """Whether the status has a reason in brackets; jobs not yet considered have none."""
        return "(" in self.status


def sightings(gang: Gang, observations: Iterable[Observation]) -> list[Sighting]:
    """The gang at each answered observation after its submission."""
    found: list[Sighting] = []
    was_whole = False
    for observation in observations:
        if observation.records is None or observation.requested_s < gang.submitted_s:
            continue
        shown = observation.records
        records = [record for job in gang.jobs if (record := shown.get(job)) is not None]
        gone = len(gang.jobs) - len(records)
        held = tuple(node for r in records if r.phase is Phase.HOLDING for node in r.nodes)
        state = _state(gang.size, len(held), [r.phase for r in records], gone, was_whole)
        was_whole = state is State.WHOLE or (was_whole and state is not State.WAITING)
        restarts = max((record.restarts for record in records), default=0)
        failed = any(record.failed for record in records)
        waiting = [record.blocked for record in records if record.phase is Phase.WAITING]
        blocked = bool(waiting) and all(waiting)
        found.append(
            Sighting(observation, state, held, _status(records), restarts, failed, blocked)
        )
    return found


def _state(size: int, held: int, phases: Sequence[Phase], gone: int, was_whole: bool) -> State:
    waits = Phase.WAITING in phases
    if held >= size:
        return State.WHOLE
    if held:
        some_over = gone > 0 or Phase.OVER in phases or Phase.ENDING in phases
        return State.ENDING if was_whole and some_over and not waits else State.PART
    if Phase.ENDING in phases and not waits:
        return State.ENDING
    return State.WAITING if waits or Phase.HOLDING in phases else State.OVER


def _status(records: Sequence[JobRecord]) -> str:
    return " + ".join(dict.fromkeys(record.status for record in records if record.status))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive observations with equal sightings of a gang. nodes: the most it held at one of
    them.

    The stretch began after `before_s`, the request of the previous observation or the submission,
    and ended before `after_s`, the answer of the next observation; None if there was no next
    observation.
    """

    state: State
    nodes: tuple[str, ...]
    status: str
    restarts: int
    first: Observation
    last: Observation
    before_s: float
    after_s: float | None

    @property
    def at_least_s(self) -> float:
        """Shortest possible duration: from the first answer to the last request."""
        return max(0.0, self.last.requested_s - self.first.answered_s)

    @property
    def at_most_s(self) -> float:
        return self.latest_s - self.before_s

    @property
    def shown_s(self) -> float:
        """Duration from its first answer to its latest possible end."""
        return self.latest_s - self.began_s

    @property
    def latest_s(self) -> float:
        """Its latest possible end, or the last observation if it did not end."""
        return self.last.answered_s if self.after_s is None else self.after_s

    @property
    def began_s(self) -> float:
        return self.first.answered_s


def by_state(one: Sighting) -> Hashable:
    return one.state, one.restarts


def by_status(one: Sighting) -> Hashable:
    return one.state, one.restarts, one.status


def by_all(one: Sighting) -> Hashable:
    return one.state, tuple(sorted(one.nodes)), one.status, one.restarts


def stretches(
    found: Sequence[Sighting], since_s: float, key: Callable[[Sighting], Hashable] = by_all
) -> list[Stretch]:
    """Stretches of a gang: consecutive sightings with an equal key are joined.

    since_s: time of its submission.
    """
    groups = [list(group) for _, group in groupby(found, key)]
    made = []
    for index, group in enumerate(groups):
        first, last = group[0], group[-1]
        most = max(group, key=lambda one: (len(one.nodes), one.has_reason))
        before = groups[index - 1][-1].observation.requested_s if index else since_s
        after = groups[index + 1][0].observation.answered_s if index + 1 < len(groups) else None
        made.append(
            Stretch(
                first.state,
                most.nodes,
                most.status,
                last.restarts,
                first.observation,
                last.observation,
                before,
                after,
            )
        )
    return made


def blind_gaps(observations: Sequence[Observation], since_s: float) -> list[tuple[float, float]]:
    """Times without an answer longer than BLIND_S, in which a gang may have come and gone.

    If the last observation had no answer, the time after the last answer is one of them.
    """
    found = [gap for gap in _gaps(observations, since_s) if gap[1] - gap[0] > BLIND_S]
    if observations and observations[-1].records is None:
        answered = [one.requested_s for one in observations if one.records is not None]
        after_s = answered[-1] if answered else since_s
        found = [one for one in found if one[0] < after_s] + [(after_s, inf)]
    return found


def longest_unseen_s(observations: Sequence[Observation], since_s: float) -> float | None:
    """The longest time without an answer, from the first submission to the end of the last
    observation.

    None if the scheduler answered fewer than two observations.
    """
    if sum(observation.records is not None for observation in observations) < 2:
        return None
    return max(ended - began for began, ended in _gaps(observations, since_s))


def _gaps(observations: Sequence[Observation], since_s: float) -> list[tuple[float, float]]:
    """Times from each answered request to the next answer, and at both ends; without those of
    which all changes are known, however long the answer took."""
    answered = [observation for observation in observations if observation.records is not None]
    if not answered:
        return [(since_s, observations[-1].answered_s)] if observations else []
    first, last = answered[0], answered[-1]
    gaps = [(a.requested_s, b.answered_s) for a, b in pairwise(answered) if not b.complete]
    before = [] if first.complete else [(since_s, first.answered_s)]
    return [*before, *gaps, (last.requested_s, observations[-1].answered_s)]


KEY = "criteria.gang"
SMALL = "small"
"""Name of the job of one node that may run while a gang waits."""


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
    or that were away, at any time, with the user or the reason. cleared_s: when clearing up began;
    None if it did not. refused: why the scheduler refused a gang; "" if it refused none.
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
    cleared_s: float | None = None
    refused: str = ""

    @property
    def began_s(self) -> float:
        """Time of the first submission or the first observation."""
        requested = [one.requested_s for one in self.observations]
        return min([gang.submitted_s for gang in self.gangs] + requested)

    @property
    def over_s(self) -> float:
        """Time when clearing up began; no waiting gang was cancelled before."""
        if self.cleared_s is not None:
            return self.cleared_s
        return max(one.answered_s for one in self.observations)

    @property
    def known_until_s(self) -> float:
        """Time of the scheduler's last answer before clearing up began."""
        answered = [one.answered_s for one in self.observations if one.records is not None]
        return min(self.over_s, max(answered, default=self.began_s))

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
