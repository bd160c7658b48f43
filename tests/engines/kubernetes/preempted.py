"""A program for the login node: a gang of a higher priority preempts one that runs.

`preempted.py TEMPLATE SCHEDULER` prints the states of both, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.gang.engine import GangRequest, Observation
from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
from pytest_mnode.gang.window import Gang, State, by_state, sightings, stretches
from pytest_mnode.options import Settings
from pytest_mnode.spec import Scheduler

SIZE, LIMIT_S = 3, 90.0


class Watched:
    """A gang of one engine, with its observations."""

    def __init__(self, template: Path, scheduler: dict[str, str], priority: str) -> None:
        page = {"kind": "kubernetes", **scheduler, "priority": priority}
        manifest = json.loads(template.read_text())
        options = Settings()
        self.engine = KubernetesEngine(
            Scheduler.model_validate(page),
            options,
            manifest,
            leftovers=KubernetesBackend().leftovers,
            python=sys.executable,
        )
        self.observations: list[Observation] = []
        self.gang: Gang | None = None

    def submit(self, runs_s: float) -> None:
        free, now = self.engine.capacity().nodes, time.time()
        jobs = self.engine.submit(GangRequest("gang", SIZE, runs_s, 300, free, requeue=True))
        self.gang = Gang("gang", SIZE, jobs, runs_s, now)

    def observe(self) -> None:
        observation = self.engine.observe()
        self.observations += [*observation.reported_changes, observation]

    def states(self) -> list[State]:
        """States in order, each listed once while it lasts."""
        return [one.state for one in self._stretches()]

    def _stretches(self) -> list[Any]:
        assert self.gang is not None
        return stretches(sightings(self.gang, self.observations), self.gang.submitted_s, by_state)

    def heard(self, since_s: float) -> int:
        """Ranks that sent heartbeats after this time."""
        beats = (beat for one in self.observations for beat in one.beats)
        return len({beat.rank for beat in beats if beat.at_s > since_s})

    def is_back(self) -> bool:
        """Whether the gang was whole twice, and all ranks sent heartbeats the second time."""
        return self.states().count(State.WHOLE) > 1 and self.report()["heard"] == SIZE

    def report(self) -> dict[str, Any]:
        found = self._stretches()
        parts = [one.at_least_s for one in found if one.state is State.PART]
        last = [one.began_s for one in found if one.state is State.WHOLE]
        return {
            "states": self.states(),
            "longest_part_s": max(parts, default=0.0),
            "heard": self.heard(last[-1]) if last else 0,
            "status": [one.status for one in found],
        }


def until(some: list[Watched], holds: Callable[[], bool]) -> None:
    """Observe until `true` holds or the limit is over; the observations show which."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for one in some:
            one.observe()
        if holds():
            return
        time.sleep(0.2)


def main(template: str, scheduler: str) -> None:
    low, high = (Watched(Path(template), json.loads(scheduler), name) for name in ("low", "high"))
    try:
        low.submit(60)
        until([low], lambda: low.states()[-1:] == [State.WHOLE] and low.heard(0) == SIZE)
        high.submit(4)
        both = [low, high]
        until(both, lambda: high.states()[-1:] == [State.OVER])
        until(both, lambda: low.is_back() or low.states()[-1:] == [State.OVER])
        print(json.dumps({"low": low.report(), "high": high.report()}))
    finally:
        for one in (low, high):
            one.engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
