"""Handles the messages of the ranks and nodes of one test: applies, shows and answers them.

A rank's request for the debugger is answered here too. The user's session in the debugger runs
inside this handling, and no limit counts while it lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.console import Console
from pytest_mnode.controller.debugging import DebuggerSession
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
    RankProgress,
    Returned,
    TornDown,
)
from pytest_mnode.protocol.terminal_messages import AskDebugger, LiveOutput
from pytest_mnode.protocol.world import WorldInfo

StartGrace = Callable[[], None]
RankMessage = PhaseReport | BodyDone | TornDown | Returned


class OutcomeUpdater:
    """Updates the state of every rank; the cost of a message does not depend on the rank count.

    on_failure, on_death: called when the other ranks can no longer be expected to end the test.
    """

    def __init__(
        self, outcome: Outcome, ordinal: int, on_failure: StartGrace, on_death: StartGrace
    ) -> None:
        self.outcome = outcome
        self.ordinal = ordinal
        self._on_failure, self._on_death = on_failure, on_death
        self._reported: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._records: dict[str, str] = {}
        """Records of calls and stacks; equal ones of many ranks are kept once."""

    def apply_rank(self, message: RankMessage, now: float) -> int:
        """Apply a message; returns its rank."""
        state = self.outcome.states[message.rank]
        match message:
            case PhaseReport():
                self._report(state, message, now)
            case BodyDone():
                for report in message.reports:
                    self._report(state, report, now)
                state.body_done = True
            case TornDown():
                for report in message.reports:
                    self._report(state, report, now)
                state.torn_down = message
                self.outcome.some_apart |= message.absent
                if (message.problem and not message.absent) or message.leaks:
                    state.failed_at = state.failed_at or now
                if message.problem and not message.absent:
                    self._on_failure()
            case Returned():
                state.returned = message
                if message.value is None:
                    state.failed_at = state.failed_at or now
                    self._on_failure()
        return message.rank

    def apply_death(self, death: Death, now: float) -> Iterable[int]:
        """Apply a death; returns the rank, or nothing if its death is already known."""
        state = self.outcome.states.get(death.rank)
        if state is None or state.death is not None:
            return ()
        state.death, state.failed_at = death, state.failed_at or now
        state.died_before_test = death.ordinal is not None and death.ordinal != self.ordinal
        if state.died_before_test:
            self.outcome.stillborn.append(death)
        self._on_death()
        return (death.rank,)

    def apply_lost(self, message: PartLost, now: float) -> list[int]:
        """Apply the loss of a node; returns the ranks that are gone with it."""
        gone = [
            state
            for state in self.outcome.states.values()
            if not state.gone and message.node in ("", state.node)
        ]
        for state in gone:
            state.lost, state.failed_at = message.text, state.failed_at or now
        self._on_failure()
        return [state.rank for state in gone]

    def apply_stacks(self, message: StackTexts) -> Iterable[int]:
        """Apply a node's stacks and calls; returns the ranks whose Python or C stack arrived."""
        states = self.outcome.states
        for rank, record in message.calls.items():
            states[rank].calls = self._records.setdefault(record, record)
        for rank, text in message.native.items():
            states[rank].native = text
        for rank, text in message.texts.items():
            state = states[rank]
            state.stack = self._records.setdefault(text, text)
            state.output = message.outputs.get(rank, "")
            state.state = message.states.get(rank, "")
            state.children = message.children.get(rank, "")
            state.kernel = message.kernel.get(rank, "")
            state.tcp = message.tcp.get(rank, state.tcp)
        for rank, place in message.places.items():
            if place.ordinal == self.ordinal and place.phase != "setup":
                self._passed_setup(states[rank])
        return {*message.texts, *message.native}

    def _passed_setup(self, state: RankState) -> None:
        """Note that a rank has passed setup, which no report has shown yet."""
        if state.stuck_in == "setup":
            state.stuck_in = "call"
        if state.past_setup or "setup" in state.reports:
            return
        state.past_setup = True
        self._reported["setup"] += 1
        if self._skipped["setup"]:
            self._on_failure()

    def _report(self, state: RankState, report: PhaseReport, now: float) -> None:
        failed = report.outcome == "failed" and not report.unexpected_pass
        if failed:
            state.failed_at = state.failed_at or now
        if report.partial:  # the test continues, so this starts no grace period
            state.partial.append((now, report))
            return
        state.reports[report.when], state.at[report.when] = report, now
        self.outcome.some_apart |= report.apart
        xfailed = report.outcome == "skipped" and "wasxfail" in report.data
        self._reported[report.when] += not (report.when == "setup" and state.past_setup)
        self._skipped[report.when] += (
            report.outcome == "skipped" and not xfailed and not report.apart
        )
        on_some = 0 < self._skipped[report.when] < self._reported[report.when]
        if failed or xfailed or on_some:
            self._on_failure()


def waited_for(states: Iterable[RankState], settled: Callable[[RankState], Any]) -> set[int]:
    """The ranks that are alive, not stuck, and not settled."""
    return {s.rank for s in states if not s.gone and not s.stuck_in and not settled(s)}


GRACE_S = 0.7
"""Grace period of other ranks after the first failure; extended by this while one of them runs."""
MOST_GRACE_S = 3.0
"""Maximum of the extended grace period, because a rank in an endless loop runs too."""
DEATH_GRACE_S = 0.3
"""Grace period after a death, which the other ranks notice at once or not at all."""
STACKS_LIMIT_S = 3.0
"""How long to wait for stacks, plus the time for many ranks (STACKS_RANKS_PER_S)."""
STACKS_RANKS_PER_S = 1000
_TURN_S = 0.1
"""Time counted for a longer gap in which this process was stopped or had no core."""

Settled = Callable[[RankState], Any]


class WorldMessages:
    """The exchange of messages for one test, or one function, in a world of this client."""

    def __init__(
        self, client: Client, world: WorldInfo, timeout_s: float, console: Console | None = None
    ) -> None:
        """console: None if nothing is shown to a user."""
        self.client = client
        # After this process was stopped, pending messages are read before any rank is judged.
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
        self._updater = OutcomeUpdater(
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
        """Ranks that are neither gone nor stuck."""
        return [s for s in self.states.values() if not s.gone and not s.stuck_in]

    def _wait_for(self, waiting: set[int], settled: Settled, limit_s: float) -> None:
        """Wait until the ranks in `waiting` are settled or gone, or until the limit ends."""
        deadline = self._now() + limit_s
        while waiting and self._now() < deadline:
            self._listen(deadline, waiting, settled)

    def _listen(self, until: float, waiting: set[int], settled: Settled) -> None:
        """Take the next message and remove the ranks that it settles from `waiting`; return after
        half a turn if no message comes."""
        wait_s = min(until - self._now(), _TURN_S / 2)
        for rank in self._take(self.client.next_message(max(0.0, wait_s))):
            state = self.states[rank]
            if state.gone or settled(state):
                waiting.discard(rank)

    def _take(self, message: Any) -> Iterable[int]:
        """Apply a message; returns the ranks that it concerns."""
        now = self._now()
        match message:
            case PhaseReport() | BodyDone() | TornDown() | Returned():
                if message.ordinal == self.ordinal:
                    return (self._updater.apply_rank(message, now),)
            case Death(world=world) if world == self.world.id:
                return self._updater.apply_death(message, now)
            case PartLost(world=world) if world == self.world.id:
                return self._updater.apply_lost(message, now)
            case StackTexts(world=world) if world == self.world.id:
                return self._updater.apply_stacks(message)
            case AskDebugger(ordinal=ordinal) if ordinal == self.ordinal:
                return self._debug(message)
            case LiveOutput(world=world) if world == self.world.id and self._console is not None:
                for rank, lines in message.lines.items():
                    self._console.show_output(self.states[rank], lines)
            case RankProgress(ordinal=ordinal) if ordinal == self.ordinal:
                progress(message.text, message.done, message.total)
            case Death() | PartLost():
                self.client.defer(message)
        return ()

    def _start_grace(self, grace_s: float) -> None:
        now = self._now()
        if self._grace_end is None or now + grace_s < self._grace_end:
            self._grace_end, self.outcome.grace_s = now + grace_s, grace_s

    def _debug(self, ask: AskDebugger) -> set[int]:
        """Debug a rank, if it is the chosen one; returns the ranks that sent messages meanwhile."""
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
        """Show the user where each rank is; the test continues."""
        for state in self.states.values():
            state.stack = None
        self._collect_python_stacks(list(self.states.values()))
        console.show_ranks(whereabouts(self.outcome))
        for state in self.states.values():
            state.stack = None  # a report of this test needs newer stacks

    def _collect_stacks(self, wanted: list[RankState]) -> None:
        self._collect_python_stacks(wanted)
        self._collect_native(wanted)

    def _collect_python_stacks(self, wanted: list[RankState]) -> None:
        self.client.take_stacks(self.world)
        waiting = {s.rank for s in wanted if s.stack is None and not s.gone}
        self._wait_for(waiting, lambda s: s.stack is not None, self._stacks_limit_s)

    def _collect_native(self, wanted: list[RankState]) -> None:
        """Request the C stacks of ranks whose Python stacks have no line of the test."""
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
