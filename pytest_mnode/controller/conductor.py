"""Drives one test, or one function, through the ranks of a world.

Setup and body run in all ranks at once. Teardown starts when all ranks have ended their bodies, and
the test is over when each rank has torn down and then still answers. A first failure starts a short
grace in which the other ranks may end by themselves; the ranks that have not ended by then are
asked for their stacks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.hearing import Hearing, waited_for
from pytest_mnode.machine.threads import GDB_LIMIT_S
from pytest_mnode.outcome.calls import is_hopeless
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stacks import where_of_dump
from pytest_mnode.protocol.agent_messages import Death, PartLost, StackTexts
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.rank_messages import (
    BodyDone,
    CallFunction,
    EndFixtures,
    Limit,
    PhaseReport,
    Ping,
    Pong,
    Returned,
    RunItem,
    TearDown,
    TornDown,
)
from pytest_mnode.protocol.world import WorldInfo

GRACE_S = 0.7
"""How long other ranks may go on after the first failure."""
DEATH_GRACE_S = 0.3
"""The same after a death, which the other ranks either feel at once or not at all."""
LOOK_S = 0.5
"""When the calls of ranks that do not end are first compared; the wait doubles each time."""
MOST_LOOK_S = 16.0
STACKS_LIMIT_S = 3.0
"""How long to wait for stacks; longer where there are many ranks."""
STACKS_RANKS_PER_S = 1000
UNCLEAN_TEARDOWN_LIMIT_S = 5.0
PONG_LIMIT_S = 5.0
_TURN_S = 0.1
"""Counts for a longer time in which this process was stopped, or had no core."""

Settled = Callable[[RankState], Any]


class Conductor:
    """Runs one test, or one function, in a world that is this client's."""

    def __init__(self, client: Client, world: WorldInfo, timeout_s: float) -> None:
        self.client = client
        # What was sent while this process was stopped is read before any rank is judged.
        self._now = ListeningClock(_TURN_S).now
        self.world = world
        self.timeout_s = timeout_s
        states = {rank: RankState(rank, world.node_of(rank)) for rank in range(world.shape.size)}
        self.outcome = Outcome(world, states, timeout_s)
        self.states = states
        self.ordinal = next(client.ordinals)
        self._hearing = Hearing(
            self.outcome,
            self.ordinal,
            on_failure=lambda: self._start_grace(GRACE_S),
            on_death=lambda: self._start_grace(DEATH_GRACE_S),
        )
        self._grace_end: float | None = None
        self._limit: tuple[float, Limit] | None = None
        """The least that ranks asked for beside `timeout_s`, and when it ends."""
        self._look_at, self._look_s = math.inf, LOOK_S
        self._look_number = 0
        self._looked: dict[int, str | None] = {}
        """The calls of each rank at the last look."""
        self._unanswered: set[str] = set()
        """Nodes that have not answered the last look."""
        self._ended: set[int] = set()
        """Ranks that had ended the test before the last look."""

    def run_item(
        self,
        nodeid: str,
        next_nodeid: str | None,
        keep_group: bool,
        keep: str | None = None,
        shared_tmp: str = "",
    ) -> Outcome:
        """Run a test from setup to teardown; the arguments are those of RunItem."""
        where = self.ordinal, self.client.name
        order = RunItem(*where, nodeid, next_nodeid, keep_group, keep, shared_tmp)
        self.client.tell_ranks(self.world, order)
        self._hear_earlier()
        self._wait(lambda s: s.body_done or s.torn is not None, self.timeout_s, "call")
        if self.outcome.stillborn:
            return self.outcome
        dirty = any(s.failed_at is not None or s.gone or s.stuck_in for s in self.states.values())
        if self._limit is not None and (dirty or self._limit[1].body_only):
            self._limit = None
        self._learn_calls()
        self._tell(
            [s for s in self._alive() if s.body_done],
            TearDown(self.ordinal, dirty or keep is None),
        )
        limit = UNCLEAN_TEARDOWN_LIMIT_S if dirty else self.timeout_s
        self._grace_end = None
        self._wait(lambda s: s.torn is not None, limit, "teardown")
        self._last_words()
        self.outcome.stopped = time.time()
        return self.outcome

    def run_function(self, message: CallFunction | EndFixtures) -> Outcome:
        """Call a function in all ranks, or end fixtures there."""
        self.client.tell_ranks(self.world, message)
        self._hear_earlier()
        self._wait(lambda s: s.returned is not None, self.timeout_s, "call")
        self._learn_calls()
        self._last_words()
        self.outcome.stopped = time.time()
        return self.outcome

    def _hear_earlier(self) -> None:
        """What came of this world while another world of this client was waited for."""
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

    def _wait(self, settled: Settled, limit_s: float, phase: str) -> None:
        """Until all living ranks are settled, or the limit or the grace is over."""
        deadline = self._now() + limit_s
        self._look_at, self._look_s = self._now() + LOOK_S, LOOK_S
        waiting = waited_for(self.states.values(), settled)
        while True:
            if not waiting or self.outcome.stillborn:
                return
            if self._limit is not None and self._limit[0] < deadline:
                deadline, limit_s = self._limit[0], self._limit[1].timeout_s
            now = self._now()
            end = deadline if self._grace_end is None else min(deadline, self._grace_end)
            if now >= end:
                break
            if now >= self._look_at and self._grace_end is None:
                self._look()
            self._listen(min(end, self._look_at), waiting, settled)
        if self._grace_end is None or deadline <= self._grace_end:
            self.outcome.timed_out, self.outcome.limit_s = phase, limit_s
        open_ranks = [self.states[rank] for rank in sorted(waiting)]
        for state in open_ranks:
            state.stuck_in = state.phase
        self._collect_stacks(open_ranks)
        if any(state.phase != "setup" for state in self.states.values()):
            for state in open_ranks:
                if state.stuck_in == "setup" and state.stack is None:
                    # It gave no answer: it is taken to be as far as the others are.
                    state.stuck_in = "call"

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
                if message.look in (None, self._look_number):  # else of a test before
                    ranks = self._hearing.hear_stacks(message)
                    if message.look is not None:
                        self._unanswered.discard(message.node)
                        self._end_if_hopeless(now)
                    return ranks
            case Limit(ordinal=ordinal) if ordinal == self.ordinal:
                end = now + message.timeout_s
                if self._limit is None or end < self._limit[0]:
                    self._limit = end, message
            case Death() | PartLost():
                self.client.set_aside(message)
        return ()

    def _start_grace(self, grace_s: float) -> None:
        now = self._now()
        if self._grace_end is None or now + grace_s < self._grace_end:
            self._grace_end, self.outcome.grace_s = now + grace_s, grace_s

    # Calls, compared while ranks do not end.

    def _look(self) -> None:
        """Ask for the records of calls; which ranks have ended is settled before they are read."""
        self._look_at = self._now() + self._look_s
        self._look_s = min(2 * self._look_s, MOST_LOOK_S)
        self._ended = self.outcome.ended
        self._unanswered = {s.node for s in self.states.values() if not s.lost}
        self._look_number = next(self.client.ordinals)
        self.client.take_stacks(self.world, self._look_number)

    def _end_if_hopeless(self, now: float) -> None:
        """When all nodes have answered: end a test whose ranks can never go on.

        Two equal answers show that no rank went on in between.
        """
        if self._unanswered:
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
        """Ask for the calls of a test that failed, unless they came with the stacks."""
        if all(s.failed_at is None or s.stuck_in for s in self.states.values()):
            return
        self._look()
        deadline = self._now() + self._stacks_limit_s
        while self._unanswered and self._now() < deadline:
            self._listen(deadline, set(), _never)

    # The end.

    def _last_words(self) -> None:
        """A rank that ended after its last report must not have passed."""
        self._tell(self._alive(), Ping(self.ordinal))
        self._grace_end = None
        silent = waited_for(self.states.values(), _has_answered)
        self._wait_for(silent, _has_answered, PONG_LIMIT_S)
        if not silent:
            return
        for rank in silent:
            self.states[rank].stuck_in = "teardown"
        if not self.outcome.timed_out:
            self.outcome.timed_out, self.outcome.limit_s = "teardown", PONG_LIMIT_S
        self._collect_stacks([self.states[rank] for rank in sorted(silent)])

    def _collect_stacks(self, wanted: list[RankState]) -> None:
        self.client.take_stacks(self.world)
        waiting = {s.rank for s in wanted if s.stack is None and not s.gone}
        self._wait_for(waiting, lambda s: s.stack is not None, self._stacks_limit_s)
        self._compare()
        self._collect_native(wanted)

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


def _has_answered(state: RankState) -> bool:
    return state.pong


def _never(_: RankState) -> bool:
    return False
