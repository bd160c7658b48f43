"""The hands and eyes of an experiment: submits, looks again and again, and clears up behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

from pytest_mnode.errors import MnodeError
from pytest_mnode.gang.engine import Ask, Engine, Look, Phase
from pytest_mnode.gang.terms import CLEARED, Window
from pytest_mnode.gang.timeline import BLIND_S, Gang, Seen, State, seen
from pytest_mnode.launchers.node import count

_LEAST_PAUSE_S = 0.2
_PAUSE_PER_ANSWER = 3.0
"""A look that takes long is repeated the less often: the scheduler has others to serve."""
_OTHERS_EVERY_S = 10.0
"""How often it is asked who else is on the nodes, which is about all jobs there."""


class Clock(Protocol):
    """Time, so that tests can have their own."""

    def now(self) -> float:
        """Seconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class WallClock:
    """The controller's."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


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
        self._arena = arena
        self._linger_s = linger_s
        self._others: dict[str, str] = {}
        self._asked_others_s = clock.now()
        self._taken: tuple[str, ...] = ()
        self._struck: set[str] = set()
        self._engine = engine
        self._clock = clock
        self._title = title
        self._gangs: list[Gang] = []
        self._looks: list[Look] = []
        self._notes: list[tuple[float, str]] = []
        self._not_free: tuple[str, ...] | None = ()
        self._pause_s = _LEAST_PAUSE_S
        self.problem = ""

    def submit(self, ask: Ask) -> Gang:
        """Raises Refused, ClusterError."""
        asked = self._clock.now()
        jobs = self._engine.submit(ask)
        gang = Gang(ask.name, ask.nodes, jobs, ask.runs_s, asked)
        self._gangs.append(gang)
        self.note(f"{ask.name} submitted: {count(ask.nodes)}, job {' '.join(jobs)}")
        # Submissions that take long are looked at in between: what is submitted may start.
        since = self._looks[-1].asked_s if self._looks else self._gangs[0].asked_s
        if self._clock.now() - since > BLIND_S / 2:
            self.look()
        return gang

    def note(self, text: str) -> None:
        """Say what happened now."""
        self._notes.append((self._clock.now(), text))

    def strike(self, node: str) -> None:
        """Say that a node is away by our own doing from now on."""
        self._struck.add(node)

    def cancel(self, gangs: Iterable[Gang]) -> None:
        """Have them end."""
        some = list(gangs)
        if some:
            self._engine.cancel([job for gang in some for job in gang.jobs])
            self.note(f"{', '.join(gang.name for gang in some)} cancelled")

    def look(self) -> Look:
        """One look, after the pause that is due."""
        began = self._clock.now()
        if began - self._asked_others_s > _OTHERS_EVERY_S:
            self._ask_who_else(self._arena)
        if self._looks:
            self._clock.sleep(max(0.0, self._pause_s - (self._clock.now() - began)))
        look = self._engine.observe()
        took = look.answered_s - look.asked_s
        # From one question to the next answer no more than after which nothing is known.
        most = BLIND_S - 2 * took - _LEAST_PAUSE_S
        self._pause_s = max(_LEAST_PAUSE_S, min(_PAUSE_PER_ANSWER * took, most))
        self._looks.append(look)
        return look

    def until(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Look until it is reached, `limit_s` at most; whether it was."""
        end = self._clock.now() + limit_s
        while True:
            self.look()
            if reached():
                return True
            if self._clock.now() >= end:
                return False

    def watch(self, seconds: float) -> None:
        """Look for so long."""
        self.until(lambda: False, seconds)

    def during(self, act: Callable[[], None]) -> None:
        """Look while something is done that may take long; raises what it raises."""
        with ThreadPoolExecutor(1) as thread:  # waits for it, also where a look is interrupted
            doing = thread.submit(act)
            wait([doing], _LEAST_PAUSE_S)
            while not doing.done():
                self.look()
        doing.result()

    def last(self, gang: Gang) -> Seen | None:
        """As last seen; None where it was not."""
        found = seen(gang, self._looks)
        return found[-1] if found else None

    def state(self, gang: Gang) -> State | None:
        """In which it was last seen; None where it was not."""
        last = self.last(gang)
        return None if last is None else last.state

    def held(self, gang: Gang) -> tuple[str, ...]:
        """The nodes that it was last seen to hold."""
        last = self.last(gang)
        return () if last is None else last.nodes

    def are(self, gangs: Iterable[Gang], state: State) -> bool:
        """Whether all of them were in this state when last seen."""
        return all(self.state(gang) is state for gang in gangs)

    def waits(self, gangs: Iterable[Gang]) -> bool:
        """Whether any of them was not seen yet, or still waits."""
        return any(self.state(gang) in (None, State.WAITING) for gang in gangs)

    def told(self, gangs: Iterable[Gang]) -> str:
        """For messages: what was said last of each."""
        last = [(gang, self.last(gang)) for gang in gangs]
        said = [
            f"{g.name} {'not shown' if s is None else s.said or s.state.value}" for g, s in last
        ]
        return ", ".join(said)

    @property
    def looks(self) -> tuple[Look, ...]:
        """So far."""
        return tuple(self._looks)

    def clear_up(self, free_before: Iterable[str], limit_s: float) -> None:
        """Cancel all, and see that it is gone: jobs, ranks, and what was held."""
        self._ask_who_else(self._arena)
        try:
            self._engine.cancel([job for gang in self._gangs for job in gang.jobs])
        except MnodeError as error:
            self.problem = self.problem or f"{self._title}: {error}"
        self.note(CLEARED)
        end = self._clock.now() + limit_s
        self.until(self._all_gone, limit_s)
        self.watch(self._linger_s)
        wanted = set(free_before)
        while True:
            missing = self._missing(wanted)
            taken = self._ask_who_else(missing) if missing else {}
            if missing is not None:
                missing = tuple(node for node in missing if node not in taken)
            if missing == () or self._clock.now() >= end:
                break
            self._clock.sleep(self._pause_s)
        self._not_free = missing
        self._taken = tuple(f"{node}: {who}" for node, who in sorted(taken.items()))

    def window(self) -> Window:
        """What was seen."""
        return Window(
            self._title,
            tuple(self._gangs),
            tuple(self._looks),
            self.problem,
            tuple(self._notes),
            self._not_free,
            self._taken,
            self._arena,
            tuple(f"{node}: {who}" for node, who in sorted(self._others.items())),
        )

    def _all_gone(self) -> bool:
        records = self._looks[-1].records
        return records is not None and all(r.phase is Phase.OVER for r in records.values())

    def _ask_who_else(self, nodes: tuple[str, ...]) -> Mapping[str, str]:
        """Who else is on these nodes, or why they are away; nobody, where nothing is said."""
        self._asked_others_s = self._clock.now()
        try:
            said = self._engine.others(nodes)
        except MnodeError:
            return {}
        found = {node: who for node, who in said.items() if node not in self._struck}
        self._others = {**found, **self._others}
        return found

    def _missing(self, wanted: set[str]) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(wanted - set(self._engine.capacity().free)))
        except MnodeError:
            return None
