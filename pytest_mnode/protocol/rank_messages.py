"""Messages between ranks and the client that runs a test in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_mnode.charts import Chart
from pytest_mnode.measurement import Measurement

TIMES = frozenset(("duration", "start", "stop"))
"""Fields of a passed report that differ between ranks if nothing was captured or added."""

Made = tuple[tuple[str, int, int], ...]
"""The calls of one rank in a test: by group or channel their number, and a digest of what must be
equal in all ranks of the group."""


@dataclass(frozen=True)
class Hello:
    """only_here: tests for ranks that this rank has and the controller does not have."""

    world: str
    rank: int
    only_here: tuple[str, ...] = ()


@dataclass(frozen=True)
class PhaseReport:
    """A pytest report as pytest serialises it; for a plain pass only its TIMES.

    partial: an additional report, such as a subtest's, and not pytest's own report of setup, call
    or teardown. unexpected_pass: the outcome is failed, because the body passed against its mark.
    apart: the outcome is skipped, by a mark that may depend on the rank's own variables.
    """

    rank: int
    ordinal: int
    when: str
    outcome: str
    data: dict[str, Any]
    partial: bool = False
    unexpected_pass: bool = False
    apart: bool = False


@dataclass(frozen=True)
class RankProgress:
    """The arguments of a call of `progress.progress` in rank 0."""

    rank: int
    ordinal: int
    text: str
    done: int | None
    total: int | None


@dataclass(frozen=True)
class Limit:
    """From now on the test (only its body if `body_only`) must end within `timeout_s` seconds."""

    rank: int
    ordinal: int
    timeout_s: float
    body_only: bool


@dataclass(frozen=True)
class BodyDone:
    """Setup and call are over in this rank, whatever their outcome; it waits for TearDown.

    Not sent by a rank that passed and whose teardown no other rank could notice.

    reports: includes the report of the call, because one message is faster than two.
    """

    rank: int
    ordinal: int
    reports: tuple[PhaseReport, ...] = ()


@dataclass(frozen=True)
class TornDown:
    """The test, or the function, is over, and the rank waits for its next order. `leaks` are lines
    for the user; a world with leaks is not reused.

    problem: what made it fail; of a function the whole error, whose last lines are `summary`.
    value: what the function returned, by cloudpickle.
    entered: how many operations of the default process group this rank has entered so far.
    made: its calls in this test, if they can be compared with those of other ranks.
    new_group: the store holds keys of destroyed groups, which the next group would find.
    holds_group: a fixture of wide scope made a process group, which the next test uses.
    absent: this rank does not have the test, whose file may decide so by the rank's own variables.
    data: of other plugins, by the name of the adaptor in `contrib`.
    """

    rank: int
    ordinal: int
    leaks: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[tuple[Any, ...], ...] = ()
    reusable: bool = True
    new_group: bool = False
    holds_group: bool = False
    problem: str = ""
    entered: int | None = None
    made: Made | None = None
    reports: tuple[PhaseReport, ...] = ()
    charts: tuple[Chart, ...] = ()
    suite_properties: tuple[tuple[str, Any], ...] = ()
    absent: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    value: bytes = b""
    summary: str = ""


@dataclass(frozen=True)
class RunItem:
    """Run one test. keep_group: if False, a test that uses a process group gets a new one.

    next_nodeid: node id of the controller's next test, wherever that test runs. keep: node id of
    the innermost collector whose fixtures outlive this test; None: no fixture does. shared_tmp: a
    new directory that all ranks see; "" if there is none.
    """

    ordinal: int
    reply_to: str
    nodeid: str
    next_nodeid: str | None
    keep_group: bool
    keep: str | None = None
    shared_tmp: str = ""


@dataclass(frozen=True)
class TearDown:
    """Tear the test down. last: no fixture of this world may survive."""

    ordinal: int
    last: bool


@dataclass(frozen=True)
class EndFixtures:
    """Tear down the fixtures that live in a rank, except those of collector `keep` and above."""

    ordinal: int
    reply_to: str
    keep: str | None


@dataclass(frozen=True)
class CallFunction:
    """Call a function in every rank. blob: the function and its arguments, by cloudpickle.

    group: whether the call needs a process group. keep_group: see RunItem.
    """

    ordinal: int
    reply_to: str
    blob: bytes
    group: bool
    keep_group: bool = True


@dataclass(frozen=True)
class AskDebugger:
    """A rank reached a breakpoint or failed under --pdb; it waits for a DebuggerAnswer."""

    rank: int
    ordinal: int


@dataclass(frozen=True)
class DebuggerLeft:
    """The debugger was left and the rank continues; quit: the user ended the run."""

    rank: int
    ordinal: int
    quit: bool = False
