"""The talk with the ranks of one test: what they say is heard, shown and answered.

A rank that asks for the debugger is answered here, and the user's session with it is a part of the
talk: no limit counts in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.console import Console
from pytest_mnode.controller.debugging import DebuggerSession
from pytest_mnode.controller.hearing import Hearing
from pytest_mnode.machine.threads import GDB_LIMIT_S
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stacks import where_of_dump
from pytest_mnode.outcome.stuck import whereabouts
from pytest_mnode.progress import progress
from pytest_mnode.protocol.agent_messages import Death, PartLost, StackTexts
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.rank_messages import (
    BodyDone,
    PhaseReport,
    Pong,
    RankProgress,
    Returned,
    TornDown,
)
from pytest_mnode.protocol.terminal_messages import AskDebugger, LiveOutput
from pytest_mnode.protocol.world import WorldInfo

GRACE_S = 0.7
"""How long other ranks may go on after the first failure; as long again while one of them runs."""
MOST_GRACE_S = 3.0
"""The most of that: a rank in an endless loop runs too."""
DEATH_GRACE_S = 0.3
"""The same after a death, which the other ranks either feel at once or not at all."""
STACKS_LIMIT_S = 3.0
"""How long to wait for stacks; longer where there are many ranks."""
STACKS_RANKS_PER_S = 1000
_TURN_S = 0.1
"""Counts for a longer time in which this process was stopped, or had no core."""

Settled = Callable[[RankState], Any]


class RankTalk:
    """One test, or one function, in a world that is this client's."""

    def __init__(
        self, client: Client, world: WorldInfo, timeout_s: float, console: Console | None = None
    ) -> None:
        """console: None where nobody watches."""
        self.client = client
        # What was sent while this process was stopped is read before any rank is judged.
        self._clock = ListeningClock(_TURN_S)
        self._now = self._clock.now
        self.world = world
        self.timeout_s = timeout_s
        states = {rank: RankState(rank, world.node_of(rank)) for rank in range(world.shape.size)}
        self.outcome = Outcome(world, states, timeout_s)
        self.states = states
        self.ordinal = next(client.ordinals)
        self._console = console
        self._debugger = DebuggerSession(client, world, console)
        self._hearing = Hearing(
            self.outcome,
            self.ordinal,
            on_failure=lambda: self._start_grace(GRACE_S),
            on_death=lambda: self._start_grace(DEATH_GRACE_S),
        )
        self._grace_end: float | None = None

    def _send_to(self, states: list[RankState], message: Any) -> None:
        if len(states) == len(self.states):
            self.client.tell_ranks(self.world, message)
            return
        for state in states:
            self.client.tell_rank(self.world, state.rank, message)

    def _alive(self) -> list[RankState]:
        """Ranks that are there and not stuck."""
        return [s for s in self.states.values() if not s.gone and not s.stuck_in]

    def _wait_for(self, waiting: set[int], settled: Settled, limit_s: float) -> None:
        """Until these ranks are settled or gone, or the limit is over."""
        deadline = self._now() + limit_s
        while waiting and self._now() < deadline:
            self._listen(deadline, waiting, settled)

    def _listen(self, until: float, waiting: set[int], settled: Settled) -> None:
        """Take the next message and strike the ranks that it settles; return after half a turn
        where none comes."""
        wait_s = min(until - self._now(), _TURN_S / 2)
        for rank in self._take(self.client.next_message(max(0.0, wait_s))):
            state = self.states[rank]
            if state.gone or settled(state):
                waiting.discard(rank)

    def _take(self, message: Any) -> Iterable[int]:
        """Apply a message; the ranks that it is about."""
        now = self._now()
        match message:
            case PhaseReport() | BodyDone() | TornDown() | Pong() | Returned():
                if message.ordinal == self.ordinal:
                    return (self._hearing.hear_rank(message, now),)
            case Death(world=world) if world == self.world.id:
                return self._hearing.hear_death(message, now)
            case PartLost(world=world) if world == self.world.id:
                return self._hearing.hear_lost(message, now)
            case StackTexts(world=world) if world == self.world.id:
                return self._hearing.hear_stacks(message)
            case AskDebugger(ordinal=ordinal) if ordinal == self.ordinal:
                return self._debug(message)
            case LiveOutput(world=world) if world == self.world.id and self._console is not None:
                for rank, lines in message.lines.items():
                    self._console.show_output(self.states[rank], lines)
            case RankProgress(ordinal=ordinal) if ordinal == self.ordinal:
                progress(message.text, message.done, message.total)
            case Death() | PartLost():
                self.client.set_aside(message)
        return ()

    def _start_grace(self, grace_s: float) -> None:
        now = self._now()
        if self._grace_end is None or now + grace_s < self._grace_end:
            self._grace_end, self.outcome.grace_s = now + grace_s, grace_s

    def _debug(self, ask: AskDebugger) -> set[int]:
        """Have a rank debugged, if it is the one; the ranks of which anything was heard."""
        heard: set[int] = set()
        state = self.states[ask.rank]

        def hear(message: Any) -> bool:
            self._clock.skip()
            heard.update(self._take(message))
            return state.gone

        if state.stuck_in:  # its test has ended
            return heard
        self.outcome.debugged = True
        self.outcome.quit |= self._debugger.attach(ask, hear)
        self._clock.skip()
        return heard

    def show_where(self, console: Console) -> None:
        """Show the user where each rank is; its test goes on."""
        for state in self.states.values():
            state.stack = None
        self._collect_python_stacks(list(self.states.values()))
        console.show_ranks(whereabouts(self.outcome))
        for state in self.states.values():
            state.stack = None  # a report of this test is to have its own

    def _collect_stacks(self, wanted: list[RankState]) -> None:
        self._collect_python_stacks(wanted)
        self._collect_native(wanted)

    def _collect_python_stacks(self, wanted: list[RankState]) -> None:
        self.client.take_stacks(self.world)
        waiting = {s.rank for s in wanted if s.stack is None and not s.gone}
        self._wait_for(waiting, lambda s: s.stack is not None, self._stacks_limit_s)

    def _collect_native(self, wanted: list[RankState]) -> None:
        """C stacks of ranks that hang where their Python stacks have no line of the test."""
        dark = [s for s in wanted if s.stack and where_of_dump(s.stack).frame is None]
        by_node: dict[str, list[int]] = {}
        for state in dark:
            by_node.setdefault(state.node, []).append(state.rank)
        for node, ranks in by_node.items():
            self.client.take_native_stacks(self.world, node, tuple(ranks))
        waiting = {s.rank for s in dark if not s.native and not s.gone}
        self._wait_for(waiting, lambda s: s.native, GDB_LIMIT_S + self._stacks_limit_s)

    @property
    def _stacks_limit_s(self) -> float:
        return STACKS_LIMIT_S + len(self.states) / STACKS_RANKS_PER_S
