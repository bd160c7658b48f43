"""The pytest session of a fork server and its ranks: collects, then runs the controller's orders.

Registered before collection. In a rank it sends every report to the controller, and holds a test
between its body and its teardown until the controller has received messages from all ranks.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, TextIO

import pytest

from pytest_mnode.env_reads import READS
from pytest_mnode.marks import runs_in_ranks
from pytest_mnode.measure import charts_kept_by, kept_by
from pytest_mnode.other_plugins import give_rank_hooks, one_protocol
from pytest_mnode.outcome.outcome import is_unexpected_pass
from pytest_mnode.protocol.messages import (
    Collect,
    PhaseReport,
    RunItem,
    TornDown,
)
from pytest_mnode.protocol.rank_files import size
from pytest_mnode.rank import debugger, here, live_output, recorder, reports, wide_fixtures
from pytest_mnode.rank.debugger import Debugger
from pytest_mnode.rank.leaks import LeakCheck
from pytest_mnode.rank.rank import Rank
from pytest_mnode.rank.reports import Recorded
from pytest_mnode.skipping import skip_reason
from pytest_mnode.suites import give_groups

_PHASE_WORDS = {"setup": "setup", "call": "test", "teardown": "teardown"}
_FINE = {"passed", "skipped"}


class RankSession:
    """pytest plugin of a fork server; after the fork, of a rank."""

    serve: Callable[[], None]
    """Called once after collection; never returns."""
    rank: Rank
    debugger: Debugger
    """Both are set by `become`: a fork server has none, and runs no test."""

    def __init__(
        self, collect: Collect, logs_are_temporary: bool, fail: Callable[[str], None]
    ) -> None:
        self.collect = collect
        self.fail = fail
        self.logs_are_temporary = logs_are_temporary
        self.recorded = Recorded()
        self._takes: dict[str, Callable[[], Any]] = {}
        self.live: TextIO | None = None
        self.items: dict[str, pytest.Item] = {}
        self._collected: dict[str, pytest.Item] = {}
        self.broken: list[str] = []
        self.session: pytest.Session
        self._held: list[PhaseReport] = []
        self._by_pytest = False
        """Whether pytest itself raised the last error, for a mark."""
        self._reported: dict[str, str] = {}
        """Outcomes of the test's reported phases, by phase."""
        self._keys: int | None = None
        """How many keys the world's store holds; None if this rank does not check it."""
        self._foreign = False
        """Whether the store holds keys of groups that tests made from the environment."""
        self._nccl_start = 0
        """Byte of NCCL's log where this test begins."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self.config = config
        debugger.install(lambda: self.debugger if here.rank else None)
        config.option.setupshow = False  # only the controller has a terminal to show it
        for line in self.collect.markers:  # some plugins exist only in the controller
            config.addinivalue_line("markers", line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        unwanted = collection_path.is_file() and str(collection_path) not in self.collect.files
        return True if unwanted else None

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:  # failed or skipped here, although the controller collected it
            self.broken.append(f"{report.nodeid}:\n{skip_reason(report)}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        # The controller may order any test, by its id before plugins rename it. They may add tests.
        self._collected = {item.nodeid: item for item in items}
        result = yield
        self.items = {item.nodeid: item for item in items} | self._collected
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session = session
        give_groups(session.items)
        give_rank_hooks(self.items.values())
        self._capture("stop_global_capturing")
        self.serve()
        return True

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr: object) -> None:
        self.fail(f"pytest failed in the process that collects the tests:\n{excrepr}")

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.fail(f"pytest was stopped in the process that collects the tests: {excinfo.value}")

    def _capture(self, method: str) -> None:
        if (manager := self.config.pluginmanager.getplugin("capturemanager")) is not None:
            getattr(manager, method)()

    def become(self, rank: Rank) -> None:
        """Make this the session of `rank`; called once after the fork."""
        self.rank = here.rank = rank
        self.debugger = Debugger(self.config, rank)
        self._wide = wide_fixtures.WideFixtures()
        self.leak_check = LeakCheck(rank.groups, self._wide)
        if debugger.is_asked_for(self.config):
            rank.groups.wait_longer()  # from the start, not only from a breakpoint on
        self.config.pluginmanager.register(self.leak_check)
        if (factory := getattr(self.config, "_tmp_path_factory", None)) is not None:
            folder = Path(self.collect.basetemp) / rank.launch.world.id
            folder.mkdir(parents=True, exist_ok=True)
            factory._given_basetemp, factory._basetemp = folder / f"rank{rank.world.rank}", None
        self.live = live_output.begin(self.config, rank.files.live)
        self._capture("start_global_capturing")

    def start_others(self, rank: Rank) -> None:
        """Have adaptors of other plugins begin in this rank; see `contrib`."""
        hook: Any = self.config.hook

        def given(name: str) -> Any:
            blob = self.collect.options.get(name)
            return None if blob is None else pickle.loads(blob)

        place = {"config": self.config, "rank": rank, "items": self.items.values()}
        self._takes = dict(hook.pytest_mnode_in_rank(**place, given=given))

    def taken(self) -> dict[str, Any]:
        """The data of other plugins since the last call."""
        return {name: take() for name, take in self._takes.items()}

    def run(self, order: RunItem) -> None:
        """Run one test from setup to teardown, reporting as it goes."""
        rank, self._reported = self.rank, {}
        self.recorded.take_warnings()
        self._nccl_start = size(rank.files.nccl)
        item = self.items.get(order.nodeid)
        if item is None:
            rank.tell("ended", self._not_collected(order))
            return
        grouped = "process_group" in getattr(item, "fixturenames", ())
        self.order = order
        self._keep = wide_fixtures.kept_node(item.listchain(), order.keep)
        following = wide_fixtures.following(item, self._keep, order.next_nodeid, self.items)
        self.leak_check.begin()
        if rank.world.rank or grouped:
            self._keys = None
        elif self._keys is None:  # otherwise the count at the end of the last test still holds
            self._keys = rank.groups.foreign_keys()
        problem = ""
        try:
            # This may not be the expected next test: it may be of another pytest-xdist worker, or
            # the expected test may no longer be run.
            self.session._setupstate.teardown_exact(item)
            if not (order.keep_group and self._wide.may_keep_group(grouped)):
                self._wide.end_built_on_group()
                rank.groups.renew()  # a test without the fixture may make its own group
            one_protocol(self.config.pluginmanager)(item=item, nextitem=following)
        except BaseException as error:
            problem = reports.problem(error)
            if self.debugger.leave(error):
                return  # the controller ends this world
        self.debugger.end()
        # Not earlier: plugins must have undone their changes around the test, such as an alarm.
        done = self._torn_down(problem or self._unreported())
        if self.live is not None:
            live_output.end_line(self.live)
        rank.progress.write(rank.ordinal, "after")
        rank.tell("ended", done)  # the last step: what comes next is the wait for the next order

    def limit(self, timeout_s: float, body_only: bool) -> None:
        """Make the controller end the running test if it takes longer than `timeout_s`."""
        self.rank.tell("limit", timeout_s, body_only)

    def _unreported(self) -> str:
        """Text that names the phases without a due report; "" if there are none."""
        runs_body = not self.config.getoption("setuponly", False)
        body = ["call"] if runs_body and self._reported.get("setup") == "passed" else []
        due = ["setup", *body, "teardown"]
        silent = [_PHASE_WORDS[when] for when in due if when not in self._reported]
        return f"pytest made no report of the {' and the '.join(silent)}" if silent else ""

    def _take_held(self) -> tuple[PhaseReport, ...]:
        held, self._held = self._held, []
        return tuple(held)

    def _not_collected(self, order: RunItem) -> TornDown:
        broken = "; these could not be collected there:\n" + "\n".join(self.broken)
        file = self.config.rootpath / order.nodeid.partition("::")[0]
        by_controller = order.nodeid in self.collect.collected.get(str(file), (order.nodeid,))
        where = "the controller but not in the ranks" if by_controller else "another rank only"
        remedy = "; check that its parameters are equal in every process" if by_controller else ""
        text = f"{order.nodeid} was collected by {where}{broken if self.broken else remedy}"
        absent = bool(READS.of(file))
        return TornDown(problem=text, absent=absent, entered=self.rank.groups.entered)

    def end_fixtures(self, keep: str | None) -> TornDown:
        """Tear down the fixtures that live in this rank, except those of collector `keep` and
        above, between tests."""
        problem = ""
        self.leak_check.begin()
        try:
            stack = self.session._setupstate.stack
            self.session._setupstate.teardown_exact(wide_fixtures.kept_node(stack, keep))
        except BaseException as error:
            problem = reports.problem(error)
            self.debugger.leave(error)
        self.debugger.end()
        problem = problem or "; ".join(f"left behind: {one}" for one in self.leak_check.found())
        return TornDown(problem=problem, summary=problem, reusable=not self._foreign)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        __tracebackhide__ = True
        self.rank.progress.write(self.rank.ordinal, "call")
        result = yield
        finish_device()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        self.debugger.end()
        if self.rank.is_child:
            how = f" with {call.excinfo.exconly()}" if call.excinfo is not None else ""
            self.rank.child_left(f"the {_PHASE_WORDS[call.when]}{how}")
        self._by_pytest = False
        if call.excinfo is not None:
            self.rank.calls.stop()
            # Here pytest evaluates marks; a fixture that skips is none.
            raised_in = PurePath(str(call.excinfo.traceback[-1].path))
            self._by_pytest = call.when == "setup" and raised_in.match("_pytest/skipping.py")
            reports.shorten(call.excinfo)
        report = yield
        if report.longrepr and self.config.getoption("tbstyle", "auto") == "auto":
            reports.shorten_frames(report, item.path.parent)
        return report

    def pytest_leave_pdb(self) -> None:
        self.debugger.leave()

    def pytest_exception_interact(
        self, node: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> None:
        asked = here.rank is not None and node.config.getoption("usepdb", False)
        if asked and call.excinfo is not None:
            # The unsent reports go first, because the user may end the run.
            self.debugger.post_mortem(call.excinfo, report, self._take_held())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Wait for all ranks after the body, so that none tears down while others still run it."""
        __tracebackhide__ = True
        self.rank.progress.write(self.rank.ordinal, "teardown")
        last = False
        if self._must_wait():
            self.rank.tell("body_done", self._take_held())
            [last] = self.rank.receive("tear_down").args
        self.rank.close_votes()
        result = yield
        # pytest kept the fixtures that the next test would share, which may be more than `_keep`.
        self.session._setupstate.teardown_exact(None if last else self._keep)
        return result

    def _must_wait(self) -> bool:
        """Whether another rank's body could notice, or decide, how this rank tears down."""
        rank, stack = self.rank, self.session._setupstate.stack
        passed = [self._reported.get(when) for when in ("setup", "call")] == ["passed", "passed"]
        return not (
            passed
            and self._keys is None  # otherwise this rank counts what all of them put in the store
            and not rank.votes
            and self.leak_check.has_only_own_group
            and wide_fixtures.ends_nothing(self.items[self.order.nodeid], stack)
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        when = str(report.when)
        own = type(report) is pytest.TestReport and when in ("setup", "call", "teardown")
        partial = not own or when in self._reported
        report = reports.with_known_outcome(report)
        keep_in = None if self.logs_are_temporary else self.rank.files.directory
        if partial or not (data := reports.times_of_plain_pass(report)):
            data = reports.serialised(report, self.config, self.rank, self._nccl_start, keep_in)
        unexpected = report.failed and is_unexpected_pass(report)
        apart = report.skipped and self._may_skip_alone(report)
        message = PhaseReport(when, report.outcome, data, partial, unexpected, apart)
        if not partial:
            self._reported[when] = "passed" if unexpected else report.outcome
        # Sent before the body, which may be long: others may wait for a rank that failed or
        # skipped, and output of the setup must be shown if the body hangs.
        if partial or (when == "setup" and (report.sections or not report.passed)):
            self.rank.tell("report", message)
        else:
            self._held.append(message)

    def _may_skip_alone(self, report: pytest.TestReport) -> bool:
        """Whether a skip mark, of a file that reads this rank's variables, skipped the test."""
        item = self.items[self.order.nodeid]
        test: Any = getattr(item, "obj", None)
        marked = any(item.get_closest_marker(name) for name in ("skip", "skipif"))
        of_unittest = getattr(test, "__unittest_skip__", False)
        by_mark = self._by_pytest if marked else of_unittest
        return by_mark and not hasattr(report, "wasxfail") and bool(READS.of(item.path))

    def only_here(self) -> tuple[str, ...]:
        """Tests for ranks that this rank has, and the controller does not have."""
        selected = set(self.session.items) if self.collect.collected else set()
        return tuple(
            nodeid
            for nodeid, item in self._collected.items()
            if item in selected
            and nodeid not in self.collect.collected.get(str(item.path), (nodeid,))
            and READS.of(item.path)
            and runs_in_ranks(item)
        )

    def _torn_down(self, problem: str) -> TornDown:
        """The end of the test, with what was left behind if there was no `problem`."""
        warnings, held, data = self.recorded.take_warnings(), self._take_held(), self.taken()
        if problem:
            return TornDown(problem=problem, warnings=warnings, reports=held, data=data)
        rank, item = self.rank, self.items[self.order.nodeid]
        left = self.leak_check.end(item, all_passed=not set(self._reported.values()) - _FINE)
        keys = rank.groups.foreign_keys() if self._keys is not None else None
        # A group made from the environment leaves keys that would disturb the next one. There
        # is none as long as tests use that of a wide-scope fixture.
        self._foreign |= keys is not None and self._keys is not None and keys > self._keys
        used = self.leak_check.fixtures_with_groups if self._foreign else set()
        upcoming = self.items.get(self.order.next_nodeid or "")
        holds = bool(used) and used <= {*getattr(upcoming, "fixturenames", ())}
        reusable = (holds or not self._foreign) and rank.groups.intact and left.reusable
        self._keys = keys
        return replace(
            left,
            measurements=tuple(kept_by(item)),
            warnings=warnings,
            reusable=reusable,
            holds_group=holds,
            problem=rank.progress.take_note(),
            entered=rank.groups.entered,
            made=rank.calls.made(),
            reports=held,
            data=data,
            suite_properties=self.recorded.take_properties(),
            charts=tuple(charts_kept_by(item)),
        )


def finish_device() -> None:
    """Wait until the device has finished this process's work; fail the test if that fails.

    Takes about 10 µs if the device is idle. Kernels and NCCL collectives continue after the call
    that began them has returned. Without this wait, a kernel that fails, or a collective that
    another rank never calls, would disturb the next test. `outcome.stacks` recognises a waiting
    rank by the name of this function.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    recorder.record_counts()  # exact before this rank says that it has ended the body
    failed = ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        failed = str(error).partition("\n")[0]
    if failed:  # outside the handler, whose error pytest would show as well
        pytest.fail(
            f"{failed}; it came to light when the body had ended: run with CUDA_LAUNCH_BLOCKING=1, "
            "which shows the line",
            pytrace=False,
        )
