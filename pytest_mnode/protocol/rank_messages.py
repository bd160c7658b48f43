"""Messages between ranks and the client that runs a test in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_mnode.charts import Chart
from pytest_mnode.measurement import Measurement

TIMES = frozenset(("duration", "start", "stop"))
"""What a report of a pass has that differs between ranks, where nothing was captured or added."""


@dataclass(frozen=True)
class Hello:
    world: str
    rank: int


@dataclass(frozen=True)
class PhaseReport:
    """A pytest report, as pytest serialises it; of a plain pass its TIMES alone.

    partial: not pytest's own report of setup, call or teardown, but one more beside it, such as
    that of a subtest.
    """

    rank: int
    ordinal: int
    when: str
    outcome: str
    data: dict[str, Any]
    partial: bool = False


@dataclass(frozen=True)
class RankProgress:
    """What `progress.progress` was called with, in rank 0."""

    rank: int
    ordinal: int
    text: str
    done: int | None
    total: int | None


@dataclass(frozen=True)
class Limit:
    """From now on the test, or only its body, has to end within this time."""

    rank: int
    ordinal: int
    timeout_s: float
    body_only: bool


@dataclass(frozen=True)
class BodyDone:
    """Setup and call are over in this rank, whatever their outcome; it waits for TearDown.

    `reports` has that of the call, which nothing comes between: one message is quicker than two.
    """

    rank: int
    ordinal: int
    reports: tuple[PhaseReport, ...] = ()


@dataclass(frozen=True)
class CoverageData:
    """What was measured in a rank since the last time, as coverage.py dumps its data.

    site: where Python's packages are installed there. problem: why nothing was measured.
    """

    dumps: tuple[bytes, ...] = ()
    site: str = ""
    problem: str = ""


@dataclass(frozen=True)
class TornDown:
    """Teardown is over. `leaks` are lines for the user; a world with leaks is not reused.

    allure: what allure has of it, as in its own files.

    entered: how many operations of the default process group this rank has entered so far.
    new_group: keys of groups that were ended are in its store, where the next would meet them.
    """

    rank: int
    ordinal: int
    leaks: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[tuple[Any, ...], ...] = ()
    reusable: bool = True
    new_group: bool = False
    problem: str = ""
    entered: int | None = None
    reports: tuple[PhaseReport, ...] = ()
    charts: tuple[Chart, ...] = ()
    suite_properties: tuple[tuple[str, Any], ...] = ()
    coverage: CoverageData | None = None
    allure: dict[str, Any] | None = None


@dataclass(frozen=True)
class Pong:
    rank: int
    ordinal: int


@dataclass(frozen=True)
class Returned:
    """What a function gave in this rank: `value` pickled by cloudpickle, or the error's text.

    new_group: as TornDown has it.
    """

    rank: int
    ordinal: int
    value: bytes | None
    error: str = ""
    summary: str = ""
    coverage: CoverageData | None = None
    new_group: bool = False


@dataclass(frozen=True)
class RunItem:
    """Run one test. `keep_group` False: a new process group if the test asks for one.

    next_nodeid: of the test that the controller runs next, wherever that runs. keep: node id of the
    innermost collector whose fixtures outlive this test; None: no fixture does. shared_tmp: a new
    directory that all ranks see; empty where there is none.
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
    """`last`: nothing of this world's fixtures is to survive."""

    ordinal: int
    last: bool


@dataclass(frozen=True)
class EndFixtures:
    """Tear down the fixtures that live in a rank, but for those of collector `keep` and above."""

    ordinal: int
    reply_to: str
    keep: str | None


@dataclass(frozen=True)
class Ping:
    ordinal: int


@dataclass(frozen=True)
class CallFunction:
    """Call a function pickled by cloudpickle with its arguments, in every rank.

    keep_group: as RunItem has it.
    """

    ordinal: int
    reply_to: str
    blob: bytes
    group: bool
    keep_group: bool = True
