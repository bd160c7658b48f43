"""What is known of one test in the ranks of a world, and the failures in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import pytest

from pytest_mnode.outcome import describe
from pytest_mnode.outcome.call_record import Call, parse
from pytest_mnode.protocol.agent_messages import Death
from pytest_mnode.protocol.rank_messages import PhaseReport, Returned, TornDown
from pytest_mnode.protocol.world import WorldInfo

Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")
_OF_A_RANK = re.compile(
    r"0x[0-9a-fA-F]+|rank\d+(?=[/.])|\b(?:rank|local_rank)=\d+|\bnode='[^']*'|\bRank \d+"
)
"""What differs between ranks to which the same happened."""


@dataclass(slots=True)
class RankState:
    """What is known of one rank in one test. Times are seconds of the conductor's clock."""

    rank: int
    node: str
    reports: dict[str, PhaseReport] = field(default_factory=dict)
    partial: list[tuple[float, PhaseReport]] = field(default_factory=list)
    """Reports beside those of the phases, such as those of subtests, and when they came."""
    failed_at: float | None = None
    at: dict[str, float] = field(default_factory=dict)
    """When its report of each phase came."""
    past_setup: bool = False
    """It is known to have passed setup: its report of that travels with that of the body."""
    body_done: bool = False
    torn: TornDown | None = None
    pong: bool = False
    death: Death | None = None
    lost: str = ""
    early: bool = False
    """It died before it had begun this test: of something older."""
    stack: str | None = None
    output: str = ""
    state: str = ""
    kernel: str = ""
    native: str = ""
    stuck_in: str = ""
    calls: str | None = None
    """Its record of collectives; None where it is not known."""
    returned: Returned | None = None

    @property
    def gone(self) -> bool:
        return self.death is not None or bool(self.lost)

    @property
    def phase(self) -> str:
        """The phase this rank is in, or was in when it was last heard of."""
        if self.death is not None and self.death.phase and not self.early:
            return "teardown" if self.death.phase == "after" else self.death.phase
        if "teardown" in self.reports or self.body_done:
            return "teardown"
        passed_setup = "setup" in self.reports or self.past_setup
        # Whose node is lost is taken to be where most time goes.
        return "call" if passed_setup or self.lost else "setup"


@dataclass(slots=True)
class Outcome:
    """All that is known of a test that was run in a world."""

    world: WorldInfo
    states: dict[int, RankState]
    timeout_s: float
    timed_out: str = ""
    """The phase in which the limit was reached; empty where it was not."""
    limit_s: float = 0.0
    """The limit that was reached."""
    grace_s: float = 0.0
    """The grace that counted, where a failure started one."""
    still: bool = False
    """No rank made a call between the last two times that they were compared."""
    hopeless: bool = False
    """The test was ended before its limit, because calls of ranks differ."""
    stood_still: bool = False
    """`limit_s` is how long no rank made a call."""
    debugged: bool = False
    """A rank was stopped in the debugger, or another one in its place."""
    quit: bool = False
    """The user ended the run from the debugger."""
    stillborn: list[Death] = field(default_factory=list)
    """Deaths that are no fault of this test: it had not begun in these ranks."""
    started: float = field(default_factory=time.time)
    stopped: float = 0.0

    @property
    def nodes(self) -> dict[int, str]:
        """The node of each rank."""
        return {rank: state.node for rank, state in self.states.items()}

    def places(self, ranks: Iterable[int]) -> str:
        """ "ranks 1,5-7 of 8 on node1,node3"."""
        return describe.places(ranks, self.nodes, len(self.states))

    @property
    def clean(self) -> bool:
        """Nothing failed, died, hung or leaked: the world may serve again."""
        return (
            not self.timed_out
            and not self.debugged
            and all(
                s.failed_at is None
                and not s.gone
                and s.pong
                and s.torn is not None
                and not s.torn.leaks
                and s.torn.reusable
                for s in self.states.values()
            )
            and len({s.torn.entered for s in self.states.values() if s.torn is not None}) == 1
        )

    @property
    def new_group(self) -> bool:
        """The next test in this world is to get a new process group."""
        ends = [end for s in self.states.values() for end in (s.torn, s.returned)]
        return any(end is not None and end.new_group for end in ends)

    @property
    def returned(self) -> bool:
        """Every rank returned from a function, and still answered after it."""
        return all(
            s.returned is not None and s.failed_at is None and not (s.stuck_in or s.gone) and s.pong
            for s in self.states.values()
        )

    @property
    def calls(self) -> dict[int, list[Call]]:
        """The collectives of each rank whose record is known, oldest first."""
        read = {r: s.calls for r, s in self.states.items() if s.calls is not None}
        parsed = {text: parse(text) for text in set(read.values())}  # many ranks have the same
        return {rank: parsed[text] for rank, text in read.items()}

    @property
    def ended(self) -> set[int]:
        """Ranks that ended the body of the test, or the function, neither failed nor skipped."""
        reports = {rank: self.states[rank].reports.values() for rank in self.left}
        return {r for r, sent in reports.items() if all(one.outcome == "passed" for one in sent)}

    @property
    def left(self) -> set[int]:
        """Ranks that ended the body of the test, or the function, and did not fail."""
        return {
            rank
            for rank, s in self.states.items()
            if (s.body_done or s.returned or s.torn)
            and not (s.stuck_in or s.gone or s.failed_at is not None)
        }


@dataclass(slots=True)
class Failure:
    """What happened to some ranks. `line` is for the summary, `text` is the whole account."""

    ranks: list[int]
    when: str
    line: str
    report: pytest.TestReport | None = None
    text: str = ""
    time: float = 0.0
    victim: bool = False
    in_phase: bool = False
    """Ranks themselves reported it in this phase; in teardown, after a test that passed."""


def signature(text: str) -> str:
    """`text` without what only tells ranks apart: equal for ranks to which the same happened."""
    return _OF_A_RANK.sub("", text)


def collected(
    keys: Iterable[tuple[int, str, float]], make: Callable[[int], Failure]
) -> list[Failure]:
    """One failure for each key of (rank, key, time), made from its first rank."""
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
