"""Applies the messages of ranks and nodes to the outcome of one test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.protocol.agent_messages import Death, PartLost, StackTexts
from pytest_mnode.protocol.rank_messages import BodyDone, PhaseReport, Returned, TornDown

StartGrace = Callable[[], None]
RankMessage = PhaseReport | BodyDone | TornDown | Returned


class Hearing:
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
        for rank, progress in message.places.items():
            if progress.ordinal == self.ordinal and progress.phase != "setup":
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
