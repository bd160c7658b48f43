"""What an experiment has to show: the promise, the window that was watched, and who was in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_mnode.criteria.restart.findings import Figure, Finding
from pytest_mnode.gang.engine import Beat, Look
from pytest_mnode.gang.timeline import (
    Gang,
    Seen,
    State,
    Stretch,
    by_state,
    longest_unseen_s,
    seen,
    stretches,
)
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.wrong import Wrong, listed

KEY = "criteria.gang"
SMALL = "small"
"""The name of jobs of one node that may run while a gang waits."""
CLEARED = "cleared up"
"""The note at which the experiment is over: what comes after is of clearing up."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is promised, as `GangCriterion` has it."""

    settle_s: float
    together_s: float
    clock_skew_s: float
    next_within_s: float

    @classmethod
    def of(cls, promise: GangCriterion) -> Terms:
        return cls(
            promise.settle_s or 0.0,
            promise.together_s,
            promise.clock_skew_s,
            promise.next_within_s,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """One round, from the first submission to the last look.

    title: such as "round 2". gangs: all that was submitted, plain jobs too. problem: why the
    experiment did not come about, though nothing of the gangs is wrong for that.
    notes: what was done and met, in order. not_free: nodes that were free at the start, and were
    not in the end; None where that could not be found out. taken: of those that were not free in
    the end either, whom somebody else has, and who. arena: nodes that all were confined to.
    others: who else was met there at any time.
    """

    title: str
    gangs: tuple[Gang, ...]
    looks: tuple[Look, ...]
    problem: str = ""
    notes: tuple[tuple[float, str], ...] = ()
    not_free: tuple[str, ...] | None = ()
    taken: tuple[str, ...] = ()
    arena: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def began_s(self) -> float:
        """When the first look was asked for, or the first gang submitted."""
        return min([g.asked_s for g in self.gangs] + [look.asked_s for look in self.looks])

    @property
    def over_s(self) -> float:
        """When clearing up began; before that nobody cancelled what was waited for."""
        cleared = [at for at, text in self.notes if text == CLEARED]
        return cleared[0] if cleared else max(look.answered_s for look in self.looks)

    @property
    def known_until_s(self) -> float:
        """How long it is known that nothing came of what was waited for: as long as the scheduler
        answered, and nobody cancelled it."""
        answered = [look.answered_s for look in self.looks if look.records is not None]
        return min(self.over_s, max(answered, default=self.began_s))

    @property
    def longest_unseen_s(self) -> float | None:
        """See `timeline.longest_unseen_s`."""
        return longest_unseen_s(self.looks, self.began_s)

    @property
    def real(self) -> tuple[Gang, ...]:
        """Gangs of more than one node."""
        return tuple(gang for gang in self.gangs if gang.size > 1)

    def gang(self, name: str) -> Gang:
        """By its name."""
        return next(gang for gang in self.gangs if gang.name == name)

    def seen(self, gang: Gang) -> list[Seen]:
        """A gang at each look."""
        return seen(gang, self.looks)

    def states(self, gang: Gang) -> list[Stretch]:
        """The states a gang went through."""
        return stretches(self.seen(gang), gang.asked_s, by_state)

    def beats(self, gang: Gang) -> list[Beat]:
        """Heartbeats of a gang's ranks."""
        return [beat for look in self.looks for beat in look.beats if beat.job in gang.jobs]

    def first(self, gang: Gang, state: State) -> Stretch | None:
        """The first time a gang was in a state; None: it never was."""
        return next((one for one in self.states(gang) if one.state is state), None)

    def held_a_part(self, gang: Gang) -> bool:
        """Whether it was ever seen with some of its nodes."""
        return self.first(gang, State.PART) is not None

    def barred(self, gang: Gang, since_s: float = 0.0) -> str:
        """Why a gang waited where it was not for nodes; "" where it was, or did not wait."""
        waits = [
            one
            for one in self.seen(gang)
            if one.state is State.WAITING and one.look.answered_s >= since_s
        ]
        return waits[-1].said if waits and all(one.barred for one in waits) else ""

    def kept_by(self, gang: Gang, why: str) -> str:
        """For messages: a gang that no want of nodes kept waiting."""
        return f"{self.who(gang)} waited for something else than nodes: {why}"

    def words(self, gang: Gang) -> str:
        """What the scheduler said of it: that it failed, or the last before it was over."""
        seen = self.seen(gang)
        failed = (one.said for one in seen if one.failed)
        told = (one.said for one in reversed(seen) if one.state is not State.OVER)
        return next(filter(None, (*failed, *told)), "not shown")

    def who(self, gang: Gang) -> str:
        """For messages: "round 2: B"."""
        return f"{self.title}: {gang.name}"

    @property
    def unreadable(self) -> int:
        """Lines that were no heartbeat."""
        return sum(look.unreadable for look in self.looks)


def unless_others(window: Window, found: Sequence[Finding]) -> list[Finding]:
    """Findings on what came late or never: nothing is known while others have the nodes, or they
    are away."""
    if not window.others:
        return list(found)
    why = f"{window.title}: these nodes were not there for it: {listed(window.others)}"
    made: list[Finding] = []
    for one in found:
        if isinstance(one, Wrong):
            made.append(replace(one, count=None, note=why) if one.count else one)
        else:
            late = one.value is not None and one.at_most is not None and one.value > one.at_most
            made.append(replace(one, value=None, note=why) if late else one)
    return made


def surely_within(least_s: float, most_s: float, limit_s: float) -> float | None:
    """Of a time known to be between two, that which decides whether it keeps a limit.

    The longest where it surely does, the shortest where it surely does not; None: not known.
    """
    if most_s <= limit_s:
        return max(0.0, most_s)
    return least_s if least_s > limit_s else None


def worst(some: Sequence[Figure]) -> Figure:
    """One that is surely broken before one that is not known, and that before one that holds."""

    def badness(one: Figure) -> tuple[int, float]:
        if one.value is None:
            return 1, 0.0
        broken = one.at_most is not None and one.value > one.at_most
        return (2 if broken else 0), one.value

    return max(some, key=badness)
