"""What became of a gang, look by look: which states it went through, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise

from pytest_mnode.gang.engine import Look, Phase, Record


class State(StrEnum):
    """How much of its nodes a gang has."""

    WAITING = "waiting"
    """None."""
    PART = "a part"
    """Some, and it is not whole."""
    WHOLE = "whole"
    ENDING = "ending"
    """It was whole, or was being taken down."""
    OVER = "over"


BLIND_S = 5.0
"""A gang that came and went between two answers farther apart may never have been seen."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang as it was submitted. size: its nodes. jobs: what it is made of; asked_s: when."""

    name: str
    size: int
    jobs: tuple[str, ...]
    runs_s: float
    asked_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A gang at one look."""

    look: Look
    state: State
    nodes: tuple[str, ...]
    said: str
    life: int
    failed: bool = False


def seen(gang: Gang, looks: Iterable[Look]) -> list[Seen]:
    """A gang at each look since it was submitted at which the scheduler answered."""
    found: list[Seen] = []
    was_whole = False
    for look in looks:
        if look.records is None or look.asked_s < gang.asked_s:
            continue
        records = [record for job in gang.jobs if (record := look.records.get(job)) is not None]
        gone = len(gang.jobs) - len(records)
        held = tuple(node for r in records if r.phase is Phase.HOLDING for node in r.nodes)
        state = _state(gang.size, len(held), [r.phase for r in records], gone, was_whole)
        was_whole = state is State.WHOLE or (was_whole and state is not State.WAITING)
        life = max((record.life for record in records), default=0)
        failed = any(record.failed for record in records)
        found.append(Seen(look, state, held, _said(records), life, failed))
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


def _said(records: Sequence[Record]) -> str:
    return " + ".join(dict.fromkeys(record.said for record in records if record.said))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A gang was seen alike at consecutive looks. nodes: the most that it had at one of them.

    before_s: when the look before was asked for, or the gang was submitted; after_s: when the look
    after was answered, None where there was none. It began after the one, and ended before the
    other.
    """

    state: State
    nodes: tuple[str, ...]
    said: str
    life: int
    first: Look
    last: Look
    before_s: float
    after_s: float | None

    @property
    def at_least_s(self) -> float:
        """For so long in any case: from the first answer to the last question."""
        return max(0.0, self.last.asked_s - self.first.answered_s)

    @property
    def at_most_s(self) -> float:
        """For so long at most."""
        return self.latest_s - self.before_s

    @property
    def shown_s(self) -> float:
        """As far as can be told: from when it was first seen to when it no more was."""
        return self.latest_s - self.began_s

    @property
    def latest_s(self) -> float:
        """When it may have ended; as far as was looked."""
        return self.last.answered_s if self.after_s is None else self.after_s

    @property
    def began_s(self) -> float:
        """When it was first seen."""
        return self.first.answered_s


def by_state(one: Seen) -> Hashable:
    """Alike where the state is, and the life."""
    return one.state, one.life


def by_all(one: Seen) -> Hashable:
    """Alike where nodes, words and life are, too."""
    return one.state, tuple(sorted(one.nodes)), one.said, one.life


def stretches(
    found: Sequence[Seen], since_s: float, key: Callable[[Seen], Hashable] = by_all
) -> list[Stretch]:
    """What was seen of a gang, consecutive looks that are alike together.

    since_s: when it was submitted, before which it was in no state.
    """
    groups = [list(group) for _, group in groupby(found, key)]
    made = []
    for index, group in enumerate(groups):
        first, last = group[0], group[-1]
        most = max(group, key=lambda one: len(one.nodes))
        before = groups[index - 1][-1].look.asked_s if index else since_s
        after = groups[index + 1][0].look.answered_s if index + 1 < len(groups) else None
        made.append(
            Stretch(
                first.state, most.nodes, most.said, last.life, first.look, last.look, before, after
            )
        )
    return made


def blind_gaps(looks: Sequence[Look]) -> list[tuple[float, float]]:
    """Times without an answer in which a gang may have come and gone: longer than BLIND_S."""
    answered = [look for look in looks if look.records is not None]
    gaps = [(a.asked_s, b.answered_s) for a, b in pairwise(answered)]
    return [(began, ended) for began, ended in gaps if ended - began > BLIND_S]


def longest_unseen_s(looks: Sequence[Look]) -> float | None:
    """The longest time between two answers of the scheduler; None where it gave fewer than two."""
    answered = [look for look in looks if look.records is not None]
    gaps = [b.answered_s - a.asked_s for a, b in pairwise(answered)]
    return max(gaps, default=None)
