"""Drives one test, or one function, through the ranks of a world.

Setup and body run in all ranks at once. A teardown that another rank could notice starts when all
ranks have ended their bodies. The test is over when each rank has torn down and reports that it
waits for its next order. The first failure starts a short grace period in which the other ranks may
end by themselves; it is extended while one of them runs, because cores may be busy. Then the stacks
of the ranks that have not ended are taken.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.console import Console
from pytest_mnode.controller.debugging import DebuggerSession
from pytest_mnode.machine.threads import GDB_LIMIT_S
from pytest_mnode.outcome.calls import absent, agree, ahead, is_deadlock, passed_difference
from pytest_mnode.outcome.describe import died_of, late_death_line
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stacks import where_of_dump
from pytest_mnode.outcome.stuck import awaited, whereabouts
from pytest_mnode.progress import progress
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import (
    Call,
    Death,
    LiveOutput,
    PartLost,
    PhaseReport,
    RunItem,
    StackTexts,
    TornDown,
    WorldInfo,
)
from pytest_mnode.rank import exit_handlers

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
POLL_S = 0.5
"""Delay before the calls of ranks are first compared; it doubles after each comparison."""
MOST_POLL_S = 16.0
UNCLEAN_TEARDOWN_LIMIT_S = 5.0
EXIT_HANDLERS_LIMIT_S = 5.0

Settled = Callable[[RankState], Any]
RankMessage = PhaseReport | tuple[PhaseReport, ...] | TornDown


class OutcomeUpdater:
    """Updates the state of every rank; the cost of a message does not depend on the rank count.

    start_grace: called with the grace period of the other ranks, in seconds, when they can no
    longer be expected to end the test.
    """

    def __init__(
        self, outcome: Outcome, ordinal: int, start_grace: Callable[[float], None]
    ) -> None:
        self.outcome = outcome
        self.ordinal = ordinal
        self._start_grace = start_grace
        self._reported: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._records: dict[str, str] = {}
        """Records of calls and stacks; equal ones of many ranks are kept once."""

    def apply_rank(self, rank: int, message: RankMessage, now: float) -> Iterable[int]:
        """Apply what a rank reports, of which a tuple says that setup and call are over there;
        returns the rank."""
        state = self.outcome.states[rank]
        match message:
            case PhaseReport():
                self._report(state, message, now)
            case tuple():
                for report in message:
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
                    self._start_grace(GRACE_S)
        return (rank,)

    def apply_death(self, death: Death, now: float) -> Iterable[int]:
        """Apply a death; returns the rank, or nothing if its death is already known."""
        state = self.outcome.states.get(death.rank)
        if state is None or state.death is not None:
            return ()
        state.death, state.failed_at = death, state.failed_at or now
        state.died_before_test = death.ordinal is not None and death.ordinal != self.ordinal
        if state.died_before_test:
            self.outcome.stillborn.append(death)
        self._start_grace(DEATH_GRACE_S)
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
        self._start_grace(GRACE_S)
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
            self._start_grace(GRACE_S)

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
            self._start_grace(GRACE_S)


def waited_for(states: Iterable[RankState], settled: Settled) -> set[int]:
    """The ranks that are alive, not stuck, and not settled."""
    return {s.rank for s in states if not s.gone and not s.stuck_in and not settled(s)}


class WorldTest:
    """Runs one test, or one function, in a world of this client."""

    def __init__(
        self,
        client: Client,
        world: WorldInfo,
        timeout_s: float,
        console: Console | None = None,
        still_s: float = math.inf,
    ) -> None:
        """console: None if nothing is shown to a user. still_s: end a test's body if no rank calls
        torch.distributed for so many seconds."""
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
        self._updater = OutcomeUpdater(self.outcome, self.ordinal, self._start_grace)
        self._grace_end: float | None = None
        self._limit: tuple[float, float, bool] | None = None
        """The shortest limit that ranks requested besides `timeout_s`: its end, its seconds, and
        whether it is of the body only."""
        self._poll_at, self._poll_s = math.inf, POLL_S
        self._poll_id = 0
        self._still_s, self._still_limit_s = still_s, math.inf
        """Limits without a new call, in seconds: in a test's body, and in the current wait."""
        self._moved_at = math.inf
        """When the calls of the ranks last changed, as far as polls have shown."""
        self._last_calls: dict[int, str | None] = {}
        """The calls of each rank at the last poll."""
        self._absent: set[int] = set()
        """Ranks that others waited for in a collective at the last poll."""
        self._unanswered: set[str] = set()
        """Nodes that have not answered the last poll."""
        self._ended: set[int] = set()
        """Ranks that had ended the current phase before the last poll."""
        self._settled: Settled = _never
        """Whether a rank has ended the current phase."""
        self._running: set[int] = set()
        """Ranks that ran or waited for a core at the last poll."""

    def begin_item(self, order: RunItem) -> None:
        """Have the ranks begin a test."""
        self._order = order
        self.client.tell_ranks(self.world, Call(self.ordinal, "run_item", (order,)))

    def end_item(self) -> Outcome:
        """Follow the test that was begun, from setup to teardown."""
        with self._watched(self._order.nodeid):
            self._apply_deferred()
            self._wait(lambda s: s.body_done or s.torn_down is not None, self.timeout_s, "call")
            if self.outcome.stillborn or self.outcome.quit:
                return self.outcome
            self._tear_down(self._order.keep is None)
            self._take_last()
            self._compare_passed()
        return self.outcome

    def run_function(self, method: str, *args: Any) -> Outcome:
        """Call a function in all ranks ("call_function"), or tear down fixtures there
        ("end_fixtures"); see `rank.entry.serve`."""
        with self._watched("a function"):
            self.client.tell_ranks(self.world, Call(self.ordinal, method, args))
            self._apply_deferred()
            self._wait(lambda s: s.torn_down is not None, self.timeout_s, "call")
            self._learn_calls()
            self._take_last()
        return self.outcome

    def run_in_each(self, blob: bytes) -> Outcome:
        """Call a function in all ranks, each of which has the whole limit, whatever others do."""
        self.client.tell_ranks(self.world, Call(self.ordinal, "call_function", (blob, False)))
        self._apply_deferred()
        settled: Settled = lambda s: s.torn_down is not None  # noqa: E731
        self._wait_for(waited_for(self.states.values(), settled), settled, self.timeout_s)
        return self.outcome

    @contextlib.contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """Show the user where the ranks are if Ctrl-C interrupts the block."""
        console = self._console
        if console is not None:
            console.running = what
            console.awaited = lambda: awaited(self.outcome, self._absent)
        try:
            yield
        except KeyboardInterrupt:
            if console is not None:
                self.show_where(console)
            raise
        finally:
            self.outcome.stopped = time.time()
            if console is not None:
                console.running, console.awaited, console.asked = "", str, False

    def _tear_down(self, last: bool) -> None:
        dirty = any(s.failed_at is not None or s.gone or s.stuck_in for s in self.states.values())
        if self._limit is not None and (dirty or self._limit[2]):
            self._limit = None
        self._learn_calls()
        waiting = [s for s in self._alive() if s.body_done and s.torn_down is None]
        order = Call(self.ordinal, "tear_down", (dirty or last,))
        if len(waiting) == len(self.states):
            self.client.tell_ranks(self.world, order)
        else:  # a rank whose teardown ends nothing does not wait for the others
            for state in waiting:
                self.client.tell_rank(self.world, state.rank, order)
        self._grace_end = None
        limit_s = UNCLEAN_TEARDOWN_LIMIT_S if dirty else self.timeout_s
        self._wait(lambda s: s.torn_down is not None, limit_s, "teardown")

    def _apply_deferred(self) -> None:
        """Apply messages of this world that arrived while this client waited for another world."""
        for message in self.client.take_deferred(self.world.id):
            self._take(message)

    def _wait(self, settled: Settled, limit_s: float, phase: str) -> None:
        """Wait until all live ranks are settled, or until the limit or the grace period ends."""
        now = self._moved_at = self._now()
        deadline, self._settled = now + limit_s, settled
        self._poll_at, self._poll_s = now + POLL_S, POLL_S
        self._still_limit_s = self._still_s if phase == "call" else math.inf
        waiting = waited_for(self.states.values(), settled)
        while True:
            if not waiting or self.outcome.stillborn or self.outcome.quit:
                return
            if self._console is not None and self._console.asked:
                self._console.asked = False
                self.show_where(self._console)
            if self._limit is not None and self._limit[0] < deadline:
                deadline, limit_s, _ = self._limit
            now = self._now()
            end = deadline if self._grace_end is None else min(deadline, self._grace_end)
            if now >= end and (now >= deadline or not self._has_more_grace(waiting, settled)):
                break
            if now >= self._poll_at and self._grace_end is None:
                self._poll_calls()
            due = self._poll_at if self._grace_end is None else end
            self._listen(min(end, due), waiting, settled)
        self._still_limit_s = math.inf
        at_limit = self._grace_end is None or deadline <= self._grace_end
        if (at_limit or self.outcome.stalled) and not self.outcome.timed_out:
            self.outcome.timed_out = phase
            self.outcome.limit_s = limit_s if at_limit else self._still_s
        open_ranks = [self.states[rank] for rank in sorted(waiting)]
        for state in open_ranks:
            state.stuck_in = state.phase
            state.stack = None  # one that came with those of ranks stuck earlier is old
        self._collect_python_stacks(open_ranks)
        self._collect_native(open_ranks)
        self._compare()
        if any(state.phase != "setup" for state in self.states.values()):
            for state in open_ranks:
                if state.stuck_in == "setup" and state.stack is None:
                    # It did not answer, so it is assumed to be as far as the others.
                    state.stuck_in = "call"

    def _has_more_grace(self, waiting: set[int], settled: Settled) -> bool:
        """Extend the grace period if an awaited rank still runs; only a sleeping one may hang."""
        outcome, grace_s = self.outcome, self.outcome.grace_s
        if outcome.deadlocked or outcome.stalled or grace_s >= MOST_GRACE_S:
            return False
        self._poll_calls()
        answered_by = self._now() + GRACE_S
        while self._unanswered and waiting and self._now() < answered_by:
            self._listen(answered_by, waiting, settled)
        if not waiting & self._running:
            return not waiting
        self._grace_end = self._now() + GRACE_S
        outcome.grace_s = grace_s + GRACE_S
        return True

    # Calls, compared while ranks do not end.

    def _poll_calls(self) -> None:
        """Request the records of calls; the set of ended ranks is fixed before they are read."""
        now = self._now()
        still_at = self._moved_at + self._still_limit_s
        self._poll_at = now + self._poll_s if now >= still_at else min(now + self._poll_s, still_at)
        self._poll_s = min(2 * self._poll_s, MOST_POLL_S)
        self._ended = {r for r in self.outcome.finished_body if self._settled(self.states[r])}
        self._unanswered = {s.node for s in self.states.values() if not s.lost}
        self._running.clear()
        self._poll_id = next(self.client.ordinals)
        self.client.take_stacks(self.world, self._poll_id)

    def _end_if_deadlocked(self, now: float) -> None:
        """Once all nodes have answered, end a test whose ranks can never continue.

        Two equal answers show that no rank made progress in between.
        """
        if self._unanswered:
            return
        self._compare()
        calls = self.outcome.calls
        self._absent = absent(calls) if self.outcome.still else set()
        # A rank that ended may have begun fewer operations of a group than another rank.
        if self._grace_end is None and (
            is_deadlock(calls, self._ended)
            or any(behind & self._ended for _, behind in ahead(self.outcome.counts).values())
        ):
            if self.outcome.still:
                self.outcome.deadlocked, self._grace_end = True, now
            else:
                self._poll_at = now + POLL_S
        known = all(s.calls is not None for s in self.states.values() if not s.gone)
        overdue = self.outcome.still and known and now - self._moved_at >= self._still_limit_s
        if self._grace_end is None and overdue:
            self.outcome.stalled, self._grace_end = True, now

    def _compare(self) -> None:
        """Note whether no rank made a call since the last comparison."""
        seen = {rank: s.calls for rank, s in self.states.items()}
        self.outcome.still, self._last_calls = seen == self._last_calls, seen
        if not self.outcome.still:
            self._moved_at = self._now()

    def _compare_passed(self) -> None:
        """Compare the calls of ranks that all passed; read their records only if they differ."""
        if not self.outcome.passed:
            return
        made = {r: s.torn_down.made for r, s in self.states.items() if s.torn_down is not None}
        known = {rank: of for rank, of in made.items() if of is not None}
        if len(known) < len(self.states) or len(set(known.values())) == 1:
            return
        if not agree(known):
            self._poll_calls_and_wait()
            self.outcome.unequal = passed_difference(self.outcome.calls, known)

    def _learn_calls(self) -> None:
        """Request the calls of a failed test, unless they came with the stacks."""
        if any(s.failed_at is not None and not s.stuck_in for s in self.states.values()):
            self._poll_calls_and_wait()

    def _poll_calls_and_wait(self) -> None:
        self._poll_calls()
        deadline = self._now() + self._stacks_limit_s
        while self._unanswered and self._now() < deadline:
            self._listen(deadline, set(), _never)

    # The end.

    def _take_last(self) -> None:
        """Take what arrived after the ranks' last reports, such as a death, and their last output.

        With its last report each rank acknowledges the end of this test. A death after it that is
        not known by now does not change the outcome, whenever it comes and whatever caused it: it
        is a warning that names this test.
        """
        if self._console is not None and self._console.shows_live:
            self._poll_calls_and_wait()  # nodes send the remaining live output before they answer
        end = self._now() + DEATH_GRACE_S
        while self._now() < end and (message := self.client.next_message(0.0)) is not None:
            self._take(message)

    # Messages.

    @functools.cached_property
    def _debugger(self) -> DebuggerSession:
        return DebuggerSession(self.client, self.world, self._console)

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
        match message:
            case Death() | PartLost() | StackTexts() | LiveOutput():
                if message.world == self.world.id:
                    return self._take_of_world(message)
                if isinstance(message, Death | PartLost):
                    self.client.defer(message)
            case Call(seq=ordinal, args=(rank, *args)) if ordinal == self.ordinal:
                return self._take_of_rank(rank, message.method, args)
        return ()

    def _take_of_rank(self, rank: int, method: str, args: list[Any]) -> Iterable[int]:
        match method, args:
            case "report" | "body_done" | "ended", [reported]:
                return self._updater.apply_rank(rank, reported, self._now())
            case "debug", []:  # it reached a breakpoint or failed under --pdb, and waits
                return self._debug(rank)
            case "limit", [timeout_s, body_only]:  # of the test, or of its body
                end = self._now() + timeout_s
                if self._limit is None or end < self._limit[0]:
                    self._limit = end, timeout_s, body_only
            case "progress", [text, done, total]:
                progress(text, done, total)
        return ()

    def _take_of_world(self, message: Death | PartLost | StackTexts | LiveOutput) -> Iterable[int]:
        match message:
            case Death():
                return self._updater.apply_death(message, self._now())
            case PartLost():
                return self._updater.apply_lost(message, self._now())
            case StackTexts(poll_id=poll_id) if poll_id in (None, self._poll_id):
                ranks = self._updater.apply_stacks(message)
                if poll_id is not None:  # otherwise not of a poll; others are an earlier test's
                    self._unanswered.discard(message.node)
                    self._running.update(message.running)
                    self._end_if_deadlocked(self._now())
                return ranks
            case LiveOutput(lines=by_rank) if self._console is not None:
                for rank, lines in by_rank.items():
                    self._console.show_output(self.states[rank], lines)
        return ()

    def _start_grace(self, grace_s: float) -> None:
        now = self._now()
        if self._grace_end is None or now + grace_s < self._grace_end:
            self._grace_end, self.outcome.grace_s = now + grace_s, grace_s

    def _debug(self, rank: int) -> set[int]:
        """Debug a rank, if it is the chosen one; returns the ranks that sent messages meanwhile."""
        heard: set[int] = set()
        state = self.states[rank]

        def hear(message: Any) -> bool:
            self._clock.skip()
            heard.update(self._take(message))
            return state.gone

        if state.stuck_in:  # its test has ended
            return heard
        self.outcome.debugged = True
        self.outcome.quit |= self._debugger.attach(rank, hear)
        self._clock.skip()
        return heard

    def show_where(self, console: Console) -> None:
        """Show the user where each rank is; the test continues."""
        for state in self.states.values():
            state.stack = None
        self._collect_python_stacks(list(self.states.values()))
        title = f"mnode: where the ranks of {console.running} are"
        console.show([title, *whereabouts(self.outcome)])
        for state in self.states.values():
            state.stack = None  # a report of this test needs newer stacks

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


def _never(_: RankState) -> bool:
    return False


def may_run_exit_handlers(outcome: Outcome) -> bool:
    """Whether all ranks of a test are there and have nothing to do."""
    states = outcome.states.values()
    return not outcome.quit and all(s.torn_down and not s.gone and not s.stuck_in for s in states)


def run_exit_handlers(
    client: Client, world: WorldInfo, test_of: Callable[[Death], str]
) -> list[str]:
    """Call the handlers of atexit in all ranks of a world that this client has, which would else
    end by SIGKILL without them; returns lines on what they raised, and on ranks that have died.

    test_of: see `Run.test_of`.
    """
    driven = WorldTest(client, world, EXIT_HANDLERS_LIMIT_S)
    blob = cloudpickle.dumps((exit_handlers.run, (), {}))
    outcome = driven.run_in_each(blob)
    lines = [late_death_line(death, test_of(death)) for death in outcome.stillborn]
    found: dict[str, list[int]] = {}
    for rank, state in outcome.states.items():
        if state.died_before_test or state.lost:
            continue
        if state.death is not None:
            found.setdefault(f"ended its rank: {died_of(state.death)}", []).append(rank)
        elif (end := state.torn_down) is None:
            found.setdefault(f"did not end within {EXIT_HANDLERS_LIMIT_S:g} s", []).append(rank)
        elif end.problem:
            found.setdefault(f"failed: {end.summary}", []).append(rank)
        else:
            for line in pickle.loads(end.value):
                found.setdefault(f"raised {line}", []).append(rank)
    return lines + [
        f"{outcome.places(ranks)}: a handler of atexit {what}" for what, ranks in found.items()
    ]
