"""State of one test in the ranks of a world, and the failures in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pytest

from pytest_mnode.machine.tcp import TcpState
from pytest_mnode.outcome import describe
from pytest_mnode.outcome.call_record import Call, parse, parse_counts
from pytest_mnode.outcome.calls import Difference
from pytest_mnode.protocol.messages import Death, PhaseReport, TornDown, WorldInfo

_Read = TypeVar("_Read")
Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")
_OF_A_RANK = re.compile(
    r"0x[0-9a-fA-F]+|rank\d+(?=[/.])|\b(?:rank|local_rank)=\d+|\bnode='[^']*'|\bRank \d+"
)
"""Parts of a text that differ between ranks with the same failure."""
_UNEXPECTED = ("[XPASS(strict)]", "Unexpected success")
"""How pytest and unittest begin the report of a pass that the test's mark does not expect."""


@dataclass(slots=True)
class RankState:
    """State of one rank in one test. Times are in seconds, by the clock of its WorldTest."""

    rank: int
    node: str
    reports: dict[str, PhaseReport] = field(default_factory=dict)
    partial: list[tuple[float, PhaseReport]] = field(default_factory=list)
    """Reports other than those of the phases, such as of subtests, with their arrival times."""
    failed_at: float | None = None
    at: dict[str, float] = field(default_factory=dict)
    """Arrival time of its report of each phase."""
    past_setup: bool = False
    """Whether it passed setup, whose report is sent together with that of the body."""
    body_done: bool = False
    torn_down: TornDown | None = None
    death: Death | None = None
    lost: str = ""
    died_before_test: bool = False
    """Whether it died before it began this test, of an earlier cause."""
    stack: str | None = None
    output: str = ""
    state: str = ""
    children: str = ""
    """Stacks of its child processes."""
    kernel: str = ""
    tcp: TcpState = field(default_factory=TcpState)
    native: str = ""
    stuck_in: str = ""
    calls: str | None = None
    """Its record of collectives; None if unknown."""

    @property
    def data(self) -> dict[str, Any]:
        """What other plugins gathered in it; see `contrib`."""
        return self.torn_down.data if self.torn_down is not None else {}

    @property
    def absent(self) -> bool:
        """Whether it does not have this test."""
        return self.torn_down is not None and self.torn_down.absent

    @property
    def apart(self) -> bool:
        """Whether its own variables may have decided that it does not run this test."""
        return self.absent or any(report.apart for report in self.reports.values())

    @property
    def gone(self) -> bool:
        return self.death is not None or bool(self.lost)

    @property
    def phase(self) -> str:
        """The phase this rank is in, or was in when it last reported."""
        if self.death is not None and self.death.phase and not self.died_before_test:
            return "teardown" if self.death.phase == "after" else self.death.phase
        if "teardown" in self.reports or self.body_done:
            return "teardown"
        passed_setup = "setup" in self.reports or self.past_setup
        # A rank on a lost node is assumed to be in the phase that takes most of the time.
        return "call" if passed_setup or self.lost else "setup"


@dataclass(slots=True)
class Outcome:
    """State of a test that was run in a world."""

    world: WorldInfo
    states: dict[int, RankState]
    timeout_s: float
    timed_out: str = ""
    """The phase in which the limit was reached; empty if it was not."""
    limit_s: float = 0.0
    """The limit that was reached."""
    grace_s: float = 0.0
    """The grace period that applied, if a failure started one."""
    still: bool = False
    """Whether no rank made a call between the last two comparisons."""
    deadlocked: bool = False
    """Whether the test was ended before its limit, because calls of ranks differ."""
    stalled: bool = False
    """Whether the test was ended because no rank made a call for `limit_s`."""
    some_apart: bool = False
    """Whether a rank may leave this test to the others; see `apart`."""
    unequal: Difference | None = None
    """How the calls of ranks differ in a test that passed in all of them."""
    allows_unequal: bool = False
    """Whether the test passes all the same."""
    debugged: bool = False
    """Whether a rank stopped in the debugger, or asked to while another one was debugged."""
    quit: bool = False
    """Whether the user ended the run from the debugger."""
    stillborn: list[Death] = field(default_factory=list)
    """Deaths not caused by this test, which had not begun in these ranks."""
    started: float = field(default_factory=time.time)
    stopped: float = 0.0

    @property
    def nodes(self) -> dict[int, str]:
        """The node of each rank."""
        return {rank: state.node for rank, state in self.states.items()}

    @property
    def properties(self) -> list[tuple[str, str]]:
        """What every merged report says of its world."""
        nodes = ",".join(self.world.nodes)
        return [("mnode.nodes", nodes), ("mnode.ranks", str(self.world.shape.size))]

    @property
    def apart(self) -> list[int]:
        """Ranks that left this test to the others; none if all did, or if others wait."""
        if not self.some_apart:
            return []
        ranks = [rank for rank, state in self.states.items() if state.apart]
        others = [state for state in self.states.values() if not state.apart]
        return ranks if others and not any(state.stuck_in for state in others) else []

    def places(self, ranks: Iterable[int]) -> str:
        """ "ranks 1,5-7 of 8 on node1,node3"."""
        return describe.places(ranks, self.nodes, len(self.states))

    @property
    def clean(self) -> bool:
        """Whether nothing failed, died, hung or leaked, so that the world can be reused."""
        return (
            not self.timed_out
            and not self.debugged
            and self.unequal is None
            and all(
                s.failed_at is None
                and not s.gone
                and s.torn_down is not None
                and not s.torn_down.leaks
                and s.torn_down.reusable
                for s in self.states.values()
            )
            and len({s.torn_down.entered for s in self.states.values() if s.torn_down is not None})
            == 1
        )

    @property
    def new_group(self) -> bool:
        """Whether the next test in this world must get a new process group."""
        return any(s.torn_down and s.torn_down.new_group for s in self.states.values())

    @property
    def holds_group(self) -> bool:
        """Whether the next test needs these ranks, whose fixture made its process group."""
        return any(s.torn_down and s.torn_down.holds_group for s in self.states.values())

    @property
    def returned(self) -> bool:
        """Whether every rank returned from a function."""
        return all(
            s.torn_down is not None and s.failed_at is None and not (s.stuck_in or s.gone)
            for s in self.states.values()
        )

    @property
    def passed(self) -> bool:
        """Whether the test passed in every rank; a skip, or a failure that a mark expects, does
        not count."""
        return not self.timed_out and all(
            s.torn_down is not None
            and not s.torn_down.problem
            and not s.gone
            and all(r.outcome == "passed" and "wasxfail" not in r.data for _, r in s.partial)
            and all(r.outcome == "passed" and "wasxfail" not in r.data for r in s.reports.values())
            for s in self.states.values()
        )

    @property
    def plainly_passed(self) -> bool:
        """Whether nothing is left to look for: all ranks reported the same phases, all passed."""
        return (
            self.clean
            and self.passed
            and not any(s.stuck_in for s in self.states.values())
            and len({frozenset(s.reports) for s in self.states.values()}) == 1
        )

    @property
    def calls(self) -> dict[int, list[Call]]:
        """The collectives of each rank whose record is known, oldest first."""
        return self._of_records(parse)

    @property
    def counts(self) -> dict[int, dict[str, int]]:
        """How many operations of each group each rank has begun; empty where none are counted."""
        return self._of_records(parse_counts)

    def _of_records(self, reader: Callable[[str], _Read]) -> dict[int, _Read]:
        read = {r: s.calls for r, s in self.states.items() if s.calls is not None}
        found = {text: reader(text) for text in set(read.values())}  # many ranks have equal records
        return {rank: found[text] for rank, text in read.items()}

    @property
    def ended(self) -> set[int]:
        """Ranks that ended the body of the test, or the function, neither failed nor skipped."""
        reports = {rank: self.states[rank].reports.values() for rank in self.finished_body}
        return {
            rank
            for rank, sent in reports.items()
            if all(one.outcome == "passed" or one.unexpected_pass for one in sent)
        }

    @property
    def finished_body(self) -> set[int]:
        """Ranks that ended the body of the test, or the function, and did not fail."""
        return {
            rank
            for rank, s in self.states.items()
            if (s.body_done or s.torn_down)
            and not (s.stuck_in or s.gone or s.failed_at is not None)
        }


@dataclass(slots=True)
class Failure:
    """A failure of some ranks. `line` is for the summary, `text` is the full description."""

    ranks: list[int]
    when: str
    line: str
    report: pytest.TestReport | None = None
    text: str = ""
    time: float = 0.0
    victim: bool = False
    in_phase: bool = False
    """Whether ranks themselves reported it in this phase; in teardown, after a test that passed."""
    lost_peer: str | None = None
    """Address of the peer that the ranks lost, if no failure explains why; "" if not known."""
    of_a_pair: bool = False
    """Whether one of the ranks' nodes is to blame, and not known which."""


def is_unexpected_pass(report: pytest.TestReport) -> bool:
    """Whether a body that its mark expects to fail passed: no failure of its rank."""
    return report.when == "call" and report.longreprtext.startswith(_UNEXPECTED)


def signature(text: str) -> str:
    """`text` without the parts that differ between ranks: equal for ranks with the same failure."""
    return _OF_A_RANK.sub("", text)


def collected(
    keys: Iterable[tuple[int, str, float]], make: Callable[[int], Failure]
) -> list[Failure]:
    """One failure for each key, made from its first rank. keys: (rank, key, time)."""
    failures: dict[str, Failure] = {}
    for rank, key, at in keys:
        failure = failures.get(key)
        if failure is None:
            failure = failures[key] = make(rank)
            failure.ranks, failure.time = [rank], at
        else:
            failure.ranks.append(rank)
            failure.time = min(failure.time, at)
    return list(failures.values())
