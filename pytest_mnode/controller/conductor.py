"""Drives one test through the ranks of a world, and keeps what each of them said.

Setup and body run in all ranks at once; teardown starts when all have ended their bodies, and the
test is over when each has torn down and then still answers. A first failure starts a short grace,
in which the others may end by themselves; whoever has not by then is asked for its stacks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from pytest_mnode.controller.client import Client
from pytest_mnode.machine.threads import GDB_LIMIT_S
from pytest_mnode.outcome.calls import is_hopeless
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stacks import parse as parse_stack
from pytest_mnode.outcome.stacks import where_of_rank
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import (
    BodyDone,
    Death,
    Limit,
    PartLost,
    PhaseReport,
    Ping,
    Pong,
    Returned,
    RunItem,
    StackTexts,
    TearDown,
    TornDown,
    WorldInfo,
)

GRACE_S = 0.7
"""How long other ranks may go on after the first failure."""
DEATH_GRACE_S = 0.3
"""The same after a death, which the others either feel at once or not at all."""
LOOK_S = 0.5
"""When the calls of ranks that do not end are compared; each later time after twice as long."""
MOST_LOOK_S = 16.0
STACKS_LIMIT_S = 0.9
UNCLEAN_TEARDOWN_LIMIT_S = 5.0
PONG_LIMIT_S = 5.0
_TURN_S = 0.1
"""Counts for a longer time in which this process was stopped, or had no core."""


class Conductor:
    """Runs one test, or one function, in a world that is this client's."""

    def __init__(self, client: Client, world: WorldInfo, timeout_s: float) -> None:
        self.client = client
        # What was said while this process was stopped is read before anybody is judged.
        self._now = ListeningClock(_TURN_S).now
        self.world = world
        self.timeout_s = timeout_s
        states = {rank: RankState(rank, world.node_of(rank)) for rank in range(world.shape.size)}
        self.outcome = Outcome(world, states, timeout_s)
        self.states = states
        self.ordinal = next(client.ordinals)
        self._grace_end: float | None = None
        self._limit: tuple[float, Limit] | None = None
        """The least that ranks asked for beside `timeout_s`, and when it ends."""
        self._look_at, self._look_s = math.inf, LOOK_S
        self._looked: dict[int, str | None] = {}
        self._ended: set[int] = set()
        self._asked: set[str] = set()
        self._look_number = 0

    def run_item(self, nodeid: str, next_nodeid: str | None, keep_group: bool) -> Outcome:
        self.client.tell_ranks(
            self.world,
            RunItem(self.ordinal, self.client.name, nodeid, next_nodeid, keep_group),
        )
        self._hear_aside()
        self._wait(lambda s: s.body_done or s.torn is not None, self.timeout_s, "call")
        if self.outcome.stillborn:
            return self.outcome
        dirty = any(s.failed_at is not None or s.gone or s.stuck_in for s in self.states.values())
        if self._limit is not None and (dirty or self._limit[1].body_only):
            self._limit = None
        self._learn_calls()
        self._tell(
            [s for s in self._alive() if s.body_done],
            TearDown(self.ordinal, dirty or next_nodeid is None),
        )
        limit = UNCLEAN_TEARDOWN_LIMIT_S if dirty else self.timeout_s
        self._grace_end = None
        self._wait(lambda s: s.torn is not None, limit, "teardown")
        self._last_words()
        self.outcome.stopped = time.time()
        return self.outcome

    def run_function(self, message: Any) -> Outcome:
        self.client.tell_ranks(self.world, message)
        self._hear_aside()
        self._wait(lambda s: s.returned is not None, self.timeout_s, "call")
        self._learn_calls()
        self._last_words()
        self.outcome.stopped = time.time()
        return self.outcome

    def _hear_aside(self) -> None:
        """What came of this world while another of this client's was waited for."""
        for message in self.client.take_aside(self.world.id):
            self._take(message)

    def _tell(self, states: list[RankState], message: Any) -> None:
        if len(states) == len(self.states):
            self.client.tell_ranks(self.world, message)
            return
        for state in states:
            self.client.tell_rank(self.world, state.rank, message)

    def _alive(self) -> list[RankState]:
        """Ranks that are there and not stuck."""
        return [s for s in self.states.values() if not s.gone and not s.stuck_in]

    def _wait(self, settled: Callable[[RankState], bool], limit_s: float, phase: str) -> None:
        """Until all living ranks are settled, or the limit or the grace is over."""
        deadline = self._now() + limit_s
        self._look_at, self._look_s = self._now() + LOOK_S, LOOK_S
        while True:
            open_ranks = [s for s in self._alive() if not settled(s)]
            if not open_ranks or self.outcome.stillborn:
                return
            if self._limit is not None and self._limit[0] < deadline:
                deadline, limit_s = self._limit[0], self._limit[1].timeout_s
            now = self._now()
            end = deadline if self._grace_end is None else min(deadline, self._grace_end)
            if now >= end:
                break
            if now >= self._look_at and self._grace_end is None:
                self._look()
            self._listen(min(end, self._look_at))
        if self._grace_end is None or deadline <= self._grace_end:
            self.outcome.timed_out, self.outcome.limit_s = phase, limit_s
        for state in open_ranks:
            state.stuck_in = state.phase
        self._collect_stacks(open_ranks)

    def _look(self) -> None:
        """Ask for the records; who ended was settled before they are read."""
        self._look_at = self._now() + self._look_s
        self._look_s = min(2 * self._look_s, MOST_LOOK_S)
        self._ended = self.outcome.ended
        self._asked = {s.node for s in self.states.values() if not s.lost}
        self._look_number = next(self.client.ordinals)
        self.client.take_stacks(self.world, self._look_number)

    def _end_if_hopeless(self, now: float) -> None:
        """When all nodes have answered: end a test whose ranks can never go on.

        Two equal answers show that no rank went on in between.
        """
        if self._asked:
            return
        self._compare()
        if self._grace_end is None and is_hopeless(self.outcome.calls, self._ended):
            if self.outcome.still:
                self.outcome.hopeless, self._grace_end = True, now
            else:
                self._look_at = now + LOOK_S

    def _compare(self) -> None:
        """Whether no rank made a call since the last comparison."""
        seen = {rank: s.calls for rank, s in self.states.items()}
        self.outcome.still, self._looked = seen == self._looked, seen

    def _learn_calls(self) -> None:
        """Of a test that failed, unless they came with the stacks."""
        if all(s.failed_at is None or s.stuck_in for s in self.states.values()):
            return
        self._look()
        deadline = self._now() + STACKS_LIMIT_S
        while self._asked and self._now() < deadline:
            self._listen(deadline)

    def _last_words(self) -> None:
        """A rank that ended after its last report must not have passed."""
        self._tell(self._alive(), Ping(self.ordinal))
        deadline = self._now() + PONG_LIMIT_S
        self._grace_end = None
        while self._now() < deadline and any(not s.pong for s in self._alive()):
            self._listen(deadline)
        silent = [s for s in self._alive() if not s.pong]
        for state in silent:
            state.stuck_in = "teardown"
        if silent:
            if not self.outcome.timed_out:
                self.outcome.timed_out, self.outcome.limit_s = "teardown", PONG_LIMIT_S
            self._collect_stacks(silent)

    def _collect_stacks(self, wanted: list[RankState]) -> None:
        self.client.take_stacks(self.world)
        deadline = self._now() + STACKS_LIMIT_S
        while self._now() < deadline and any(s.stack is None and not s.gone for s in wanted):
            self._listen(deadline)
        self._compare()
        self._collect_native(wanted)

    def _collect_native(self, wanted: list[RankState]) -> None:
        """C stacks of ranks that hang where their Python stacks have no line of the test."""
        dark = [s for s in wanted if s.stack and where_of_rank(parse_stack(s.stack)).frame is None]
        for node in dict.fromkeys(s.node for s in dark):
            ranks = tuple(s.rank for s in dark if s.node == node)
            self.client.take_native_stacks(self.world, node, ranks)
        deadline = self._now() + GDB_LIMIT_S + STACKS_LIMIT_S
        while self._now() < deadline and any(not s.native and not s.gone for s in dark):
            self._listen(deadline)

    def _listen(self, until: float) -> None:
        """Take the next message; return after half a turn where none comes."""
        wait_s = min(until - self._now(), _TURN_S / 2)
        self._take(self.client.next_message(max(0.0, wait_s)))

    def _take(self, message: Any) -> None:
        now = self._now()
        match message:
            case Death(world=world) if world == self.world.id:
                self._died(message, now)
            case PartLost(world=world, text=text) if world == self.world.id:
                for state in self.states.values():
                    if not state.gone and message.node in ("", state.node):
                        state.lost, state.failed_at = text, state.failed_at or now
                self._start_grace(now)
            case StackTexts(world=world) if world == self.world.id:
                self._hear_stacks(message, now)
            case Limit(ordinal=ordinal) if ordinal == self.ordinal:
                end = now + message.timeout_s
                if self._limit is None or end < self._limit[0]:
                    self._limit = end, message
            case PhaseReport() | BodyDone() | TornDown() | Pong() | Returned():
                if message.ordinal == self.ordinal:
                    self._said(self.states[message.rank], message, now)
            case Death() | PartLost():
                self.client.set_aside(message)

    def _hear_stacks(self, message: StackTexts, now: float) -> None:
        if message.look not in (None, self._look_number):
            return  # of a test before
        for rank, record in message.calls.items():
            self.states[rank].calls = record
        for rank, text in message.native.items():
            self.states[rank].native = text
        for rank, text in message.texts.items():
            state = self.states[rank]
            state.stack = text
            state.output = message.outputs.get(rank, "")
            state.state = message.states.get(rank, "")
            state.kernel = message.kernel.get(rank, "")
            place = message.places.get(rank)
            if state.stuck_in == "setup" and place and place.ordinal == self.ordinal:
                # A process that is stopped does not even send what it said before.
                state.stuck_in = "call" if place.phase == "call" else state.stuck_in
        if message.look is not None:
            self._asked.discard(message.node)
            self._end_if_hopeless(now)

    def _died(self, death: Death, now: float) -> None:
        state = self.states.get(death.rank)
        if state is not None and state.death is None:
            state.death, state.failed_at = death, state.failed_at or now
            state.early = death.ordinal is not None and death.ordinal != self.ordinal
            self._start_grace(now, DEATH_GRACE_S)

    def _said(self, state: RankState, message: Any, now: float) -> None:
        match message:
            case PhaseReport(partial=True):  # the test goes on: this starts no grace
                state.partial.append((now, message))
                if message.outcome == "failed":
                    state.failed_at = state.failed_at or now
            case PhaseReport():
                state.reports[message.when], state.at[message.when] = message, now
                if message.outcome == "failed":
                    state.failed_at = state.failed_at or now
                    self._start_grace(now)
                elif _is_xfailed(message) or self._skipped_on_some(message.when):
                    self._start_grace(now)
            case BodyDone():
                self._hear_reports(state, message, now)
                state.body_done = True
            case TornDown():
                self._hear_reports(state, message, now)
                state.torn = message
                if message.problem or message.leaks:
                    state.failed_at = state.failed_at or now
                if message.problem:
                    self._start_grace(now)
            case Pong():
                state.pong = True
            case Returned():
                state.returned = message
                if message.value is None:
                    state.failed_at = state.failed_at or now
                    self._start_grace(now)

    def _hear_reports(self, state: RankState, message: BodyDone | TornDown, now: float) -> None:
        for report in message.reports:
            self._said(state, report, now)

    def _skipped_on_some(self, when: str) -> bool:
        reports = [s.reports[when] for s in self.states.values() if when in s.reports]
        skipped = [r for r in reports if r.outcome == "skipped" and not _is_xfailed(r)]
        return 0 < len(skipped) < len(reports)

    def _start_grace(self, now: float, grace_s: float | None = None) -> None:
        grace_s = GRACE_S if grace_s is None else grace_s
        if self._grace_end is None or now + grace_s < self._grace_end:
            self._grace_end, self.outcome.grace_s = now + grace_s, grace_s


def _is_xfailed(report: PhaseReport) -> bool:
    return report.outcome == "skipped" and "wasxfail" in report.data
