"""The watch of one round of an experiment: it submits gangs, observes repeatedly and clears up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

from pytest_mnode.errors import MnodeError
from pytest_mnode.gang.engine import Engine, GangRequest, Observation, Phase
from pytest_mnode.gang.window import BLIND_S, Gang, Sighting, State, Window, sightings
from pytest_mnode.launchers.node import count
from pytest_mnode.progress import progress

_LEAST_PAUSE_S = 0.2
_PAUSE_PER_ANSWER = 3.0
"""Slow observations are repeated less often, because the scheduler has other users."""
_OTHERS_EVERY_S = 10.0
"""Pause between two requests for other users of the nodes, which list all jobs there."""


class Clock(Protocol):
    """Source of time, as the module `time` is; tests use a clock of their own."""

    def time(self) -> float:
        """Seconds since 1970."""

    def sleep(self, seconds: float, /) -> None:
        """Wait for this time."""


class Watch:
    """One round of an experiment."""

    def __init__(
        self,
        engine: Engine,
        title: str,
        clock: Clock,
        arena: tuple[str, ...],
        linger_s: float,
    ) -> None:
        """linger_s: time to continue observing after all jobs are gone."""
        self._arena = arena
        self._linger_s = linger_s
        self._others: dict[str, str] = {}
        self._others_requested_s = clock.time()
        self._taken: tuple[str, ...] = ()
        self._switched_off: set[str] = set()
        self._engine = engine
        self._clock = clock
        self._title = title
        self._gangs: list[Gang] = []
        self._observations: list[Observation] = []
        self._notes: list[tuple[float, str]] = []
        self._not_free: tuple[str, ...] | None = ()
        self._pause_s = _LEAST_PAUSE_S
        self._cleared_s: float | None = None
        self.problem = self.refused = ""

    def submit(self, request: GangRequest) -> Gang:
        """Submit a gang. Raises Refused, ClusterError."""
        submitted = self._clock.time()
        jobs = self._engine.submit(request)
        gang = Gang(request.name, request.nodes, jobs, request.runs_s, submitted)
        self._gangs.append(gang)
        self.note(f"{request.name} submitted: {count(request.nodes)}, job {' '.join(jobs)}")
        # Observe between slow submissions, because gangs submitted earlier may start.
        before = self._observations
        since = before[-1].requested_s if before else self._gangs[0].submitted_s
        if self._clock.time() - since > BLIND_S / 2:
            self.observe()
        return gang

    def note(self, text: str) -> None:
        self._notes.append((self._clock.time(), text))
        progress(f"{self._title}: {text}")

    def ignore_absence(self, node: str) -> None:
        """From now on, ignore that this node is away: the experiment switches it off."""
        self._switched_off.add(node)

    def cancel(self, gangs: Iterable[Gang]) -> None:
        some = list(gangs)
        if some:
            self._engine.cancel([job for gang in some for job in gang.jobs])
            self.note(f"{', '.join(gang.name for gang in some)} cancelled")

    def observe(self) -> Observation:
        """Observe once, after the pause since the previous observation."""
        began = self._clock.time()
        if began - self._others_requested_s > _OTHERS_EVERY_S:
            self._other_users(self._arena)
        if self._observations:
            self._clock.sleep(max(0.0, self._pause_s - (self._clock.time() - began)))
        observation = self._engine.observe()
        took = observation.answered_s - observation.requested_s
        # Less than BLIND_S must pass from one request to the answer of the next.
        most = BLIND_S - 2 * took - _LEAST_PAUSE_S
        self._pause_s = max(_LEAST_PAUSE_S, min(_PAUSE_PER_ANSWER * took, most))
        self._observations += [*observation.reported_changes, observation]
        return observation

    def until(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Observe until `reached()` is true, for `limit_s` at most. Returns whether it was."""
        end = self._clock.time() + limit_s
        while True:
            self.observe()
            if reached():
                return True
            if self._clock.time() >= end:
                return False

    def watch(self, seconds: float) -> None:
        """Observe repeatedly for `seconds`."""
        self.until(lambda: False, seconds)

    def during(self, act: Callable[[], None]) -> None:
        """Observe while a long action runs. Raises its exceptions."""
        # The pool waits for the action, also if an observation is interrupted.
        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(act)
            wait([doing], _LEAST_PAUSE_S)
            while not doing.done():
                self.observe()
        doing.result()

    def last(self, gang: Gang) -> Sighting | None:
        """The last sighting of the gang; None if it was never seen."""
        found = sightings(gang, self._observations)
        return found[-1] if found else None

    def state(self, gang: Gang) -> State | None:
        """The gang's last state; None if it was never seen."""
        last = self.last(gang)
        return None if last is None else last.state

    def held(self, gang: Gang) -> tuple[str, ...]:
        """The nodes that the gang held at the last observation."""
        last = self.last(gang)
        return () if last is None else last.nodes

    def all_in_state(self, gangs: Iterable[Gang], state: State) -> bool:
        return all(self.state(gang) is state for gang in gangs)

    def any_waiting(self, gangs: Iterable[Gang]) -> bool:
        """Whether any of these gangs waits, or was not seen yet."""
        return any(self.state(gang) in (None, State.WAITING) for gang in gangs)

    def statuses(self, gangs: Iterable[Gang]) -> str:
        """The last status of each gang, for messages."""
        last = [(gang, self.last(gang)) for gang in gangs]
        return ", ".join(
            f"{gang.name} {'not shown' if one is None else one.status or one.state.value}"
            for gang, one in last
        )

    @property
    def observations(self) -> tuple[Observation, ...]:
        return tuple(self._observations)

    def clear_up(self, free_before: Iterable[str], limit_s: float) -> None:
        """Cancel all jobs, and watch until jobs and ranks are gone and the nodes are free again."""
        self._other_users(self._arena)
        # Noted first, because a watch reports the effects while the request is still running.
        self._cleared_s = self._clock.time()
        self.note("cleared up")
        try:
            self._engine.cancel([job for gang in self._gangs for job in gang.jobs])
        except MnodeError as error:
            self.problem = self.problem or f"{self._title}: {error}"
        end = self._clock.time() + limit_s
        self.until(self._all_gone, limit_s)
        self.watch(self._linger_s)
        wanted = set(free_before)
        while True:
            missing = self._missing(wanted)
            taken = self._other_users(missing) if missing else {}
            if missing is not None and taken is not None:
                missing = tuple(node for node in missing if node not in taken)
            if missing == () or self._clock.time() >= end:
                break
            self._clock.sleep(self._pause_s)
        self._not_free = None if taken is None else missing
        self._taken = tuple(f"{node}: {who}" for node, who in sorted((taken or {}).items()))

    def window(self) -> Window:
        return Window(
            self._title,
            tuple(self._gangs),
            tuple(self._observations),
            self.problem,
            tuple(self._notes),
            self._not_free,
            self._taken,
            self._arena,
            tuple(f"{node}: {who}" for node, who in sorted(self._others.items())),
            self._cleared_s,
            self.refused,
        )

    def _all_gone(self) -> bool:
        records = self._observations[-1].records
        return records is not None and all(r.phase is Phase.OVER for r in records.values())

    def _other_users(self, nodes: tuple[str, ...]) -> Mapping[str, str] | None:
        """Other users of these nodes, or why they are away; None if they are unknown."""
        self._others_requested_s = self._clock.time()
        try:
            others = self._engine.others(nodes)
        except MnodeError as error:
            self._others = dict.fromkeys(nodes, f"users unknown: {error}") | self._others
            return None
        found = {node: who for node, who in others.items() if node not in self._switched_off}
        self._others = {**found, **self._others}
        return found

    def _missing(self, wanted: set[str]) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(wanted - set(self._engine.capacity().free)))
        except MnodeError:
            return None
