"""Where a round takes place: the scheduler, the nodes, what is promised, and limits that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.engine import Ask, Engine
from pytest_mnode.gang.plan import Plan
from pytest_mnode.gang.terms import SMALL, Window
from pytest_mnode.gang.watching import Clock, Watch
from pytest_mnode.spec.gang import GangCriterion

_SMALL_RUNS_S = 1.0
_SPARE_S = 60.0
"""Between what a job takes and the limit that the scheduler is told, which counts in minutes."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What all rounds of an experiment share."""

    engine: Engine
    plan: Plan
    promise: GangCriterion
    clock: Clock

    @property
    def turn_s(self) -> float:
        """The longest that a job may take to start, to be heard of, and to be gone."""
        return self.promise.next_within_s + self.promise.together_s + 1.0

    def gang(self, name: str) -> Ask:
        """A gang of the planned size."""
        runs = self.promise.runs_s
        return Ask(name, self.plan.size, runs, runs + _SPARE_S, self.plan.arena)

    def small(self) -> Ask:
        """A job of one node that is soon over, so that it delays no gang that waits."""
        return Ask(SMALL, 1, _SMALL_RUNS_S, _SPARE_S, self.plan.arena)

    def filler(self, name: str, nodes: int) -> Ask:
        """A job that outlasts a round."""
        seconds = self.promise.waits_s + 4 * self.turn_s + 2 * self.promise.runs_s
        return Ask(name, nodes, seconds, seconds + _SPARE_S, self.plan.arena)

    def watched(
        self, title: str, conduct: Callable[[Watch], None], back_within_s: float | None = None
    ) -> Window:
        """Conduct a round, and clear up behind it.

        back_within_s: in which its nodes are free again; None: as soon as another job would start.
        """
        # The last heartbeats of a rank that outlives its gang are late by a clock's difference.
        linger_s = self.promise.clock_skew_s + 1.0
        watch = Watch(self.engine, title, self.clock, self.plan.arena, linger_s)
        try:
            conduct(watch)
        except ClusterError as error:
            watch.problem = f"{title}: {error}"
        # Not where the run is interrupted: closing the engine ends all that is left, at once.
        watch.clear_up(self.plan.arena, back_within_s or self.promise.next_within_s)
        return watch.window()
