"""The states of a gang at each observation, and their durations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from math import inf

from pytest_mnode.gang.engine import JobRecord, Observation, Phase


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
