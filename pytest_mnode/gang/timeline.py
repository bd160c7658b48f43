"""What became of a gang, look by look: which states it went through, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from math import inf

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
    barred: bool = False


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
        waiting = [record.barred for record in records if record.phase is Phase.WAITING]
        barred = bool(waiting) and all(waiting)
        found.append(Seen(look, state, held, _said(records), life, failed, barred))
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


def by_words(one: Seen) -> Hashable:
    """Alike where the state is, the life, and what was said of it."""
    return one.state, one.life, one.said


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


def blind_gaps(looks: Sequence[Look], since_s: float) -> list[tuple[float, float]]:
    """Times in which a gang may have come and gone: without an answer for longer than BLIND_S.

    What comes after the last answer, however soon, nobody saw, where another look had none.
    """
    found = [(began, ended) for began, ended in _gaps(looks, since_s) if ended - began > BLIND_S]
    if looks and looks[-1].records is None:
        answered = [look.asked_s for look in looks if look.records is not None]
        after_s = answered[-1] if answered else since_s
        found = [one for one in found if one[0] < after_s] + [(after_s, inf)]
    return found


def longest_unseen_s(looks: Sequence[Look], since_s: float) -> float | None:
    """The longest time without an answer, from the first submission to the end of the last look;
    None where the scheduler gave fewer than two."""
    if sum(look.records is not None for look in looks) < 2:
        return None
    return max(ended - began for began, ended in _gaps(looks, since_s))


def _gaps(looks: Sequence[Look], since_s: float) -> list[tuple[float, float]]:
    """From each question that was answered to the next answer, and at both ends."""
    answered = [look for look in looks if look.records is not None]
    if not answered:
        return [(since_s, looks[-1].answered_s)] if looks else []
    first, last = answered[0], answered[-1]
    gaps = [(a.asked_s, b.answered_s) for a, b in pairwise(answered)]
    return [(since_s, first.answered_s), *gaps, (last.asked_s, looks[-1].answered_s)]
