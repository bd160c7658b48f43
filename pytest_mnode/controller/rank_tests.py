"""pytest plugins of the controller for tests in ranks, registered when collection has ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import marks
from pytest_mnode.controller import rank_reports
from pytest_mnode.controller.rank_reports import Later, Warner
from pytest_mnode.controller.session import Run
from pytest_mnode.controller.shared_tmp import SharedTmp
from pytest_mnode.controller.world_test import WorldTest, may_run_exit_handlers, run_exit_handlers
from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import WorldRequest, asks_for, wide_fixtures_node
from pytest_mnode.other_plugins import (
    OF_RANKS,
    collected_id,
    give_controller_hooks,
    in_ranks,
    other_loops,
    others_come_between,
)
from pytest_mnode.outcome.describe import late_death_line
from pytest_mnode.outcome.failures import left_out
from pytest_mnode.outcome.merge import ADDED, function_error, give_added
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.progress import progress
from pytest_mnode.protocol.messages import Death, Lease, RunItem, Shape, WorldInfo
from pytest_mnode.report_record import error_report, is_further, raised_by
from pytest_mnode.stop_rules import StopRules

_BEGIN_AGAIN = 2

Chain = list[Any]
"""pytest nodes: collectors from the session down, and perhaps an item."""
Kind = tuple[Shape, bool]
"""A world's shape, and whether its ranks import test modules themselves. Tests of a kind share."""


@dataclass(frozen=True, slots=True)
class Held:
    """A world whose ranks keep fixtures. file: file of its last test."""

    world: WorldInfo
    keep: Keep
    file: str


@dataclass(frozen=True, slots=True)
class Keep:
    """The fixtures and the world that outlive a test.

    chain: the collectors whose fixtures outlive it. widest: the collector until whose end the
    world itself is kept; None: the world need not be kept.
    """

    chain: Chain
    widest: pytest.Collector | None

    @property
    def nodeid(self) -> str | None:
        return self.chain[-1].nodeid if self.chain else None


NOTHING = Keep([], None)


class HeldWorlds:
    """Ranks that are kept for the fixtures of class, module or session scope that live in them.

    A fixture that is built on the ranks, such as a DeviceMesh, lives for its scope, as pytest
    defines: no world of another shape replaces its ranks, and no other pytest process gets them.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._held: dict[Kind, Held] = {}
        self._own_imports: set[str] = set()
        """Test files that ranks import for themselves, as far as known."""
        self._order: dict[pytest.Item, int] = {}
        """Position of each test in the run; empty until it is first needed."""

    def get(self, item: pytest.Item, need: WorldRequest) -> Held | None:
        """The held world that a test must get, if any."""
        return None if need.reuse == "fresh" else self._held.get(self._kind(item, need))

    def _kind(self, item: pytest.Item, need: WorldRequest) -> Kind:
        return self._run.shape_of(need), str(item.path) in self._own_imports

    def keep(self, item: pytest.Item, nextitem: pytest.Item | None, need: WorldRequest) -> Keep:
        """What outlives this test in its ranks if the test leaves them clean."""
        if nextitem is None or need.reuse == "fresh":
            return NOTHING
        shape, chain = self._run.shape_of(need), _shared(item.listchain(), nextitem)
        held = self._held.get(self._kind(item, need))
        nodes = [n for n in (wide_fixtures_node(item), held.keep.widest if held else None) if n]
        widest = next((node for node in chain if node in nodes), None)
        if widest is not None and self._is_used_later(item, shape, widest):
            return Keep(chain, widest)
        return Keep(chain, None) if self._runs_in(nextitem, shape) else NOTHING

    def note(self, item: pytest.Item, need: WorldRequest, world: WorldInfo, keep: Keep) -> None:
        """After a test, note that its world is held from now on, or no longer."""
        if world.own_imports:
            self._own_imports.add(str(item.path))
        kind = self._kind(item, need)
        if keep.widest is not None:
            self._held[kind] = Held(world, keep, str(item.path))
        elif need.reuse != "fresh":
            self._held.pop(kind, None)

    def _runs_in(self, item: pytest.Item, shape: Shape) -> bool:
        if not in_ranks(item):
            return False
        need = self._run.request_of(item)
        return need.reuse != "fresh" and self._run.shape_of(need) == shape

    def _is_used_later(self, item: pytest.Item, shape: Shape, node: pytest.Collector) -> bool:
        """Whether a later test uses, or may use, ranks of this shape and fixtures of `node`."""
        if hasattr(item.config, "workerinput"):
            return True  # pytest-xdist has not yet decided which test comes after the next one
        later = item.session.items[self._place_after(item) :]
        return any(node in one.listchain() and self._runs_in(one, shape) for one in later)

    def after(self, item: pytest.Item) -> pytest.Item | None:
        """The test after this one in pytest's own order."""
        items, place = item.session.items, self._place_after(item)
        return items[place] if place < len(items) else None

    def _place_after(self, item: pytest.Item) -> int:
        if not self._order:
            self._order = {one: number for number, one in enumerate(item.session.items)}
        return self._order.get(item, -1) + 1

    def leave(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """After a test, end the fixtures in held worlds of each collector that the run leaves."""
        for kind, held in list(self._held.items()):
            chain = [] if stops(item.session) else _shared(held.keep.chain, nextitem)
            if chain == held.keep.chain:
                continue
            keep = replace(held.keep, chain=chain) if held.keep.widest in chain else NOTHING
            if error := self._end_fixtures(kind, held, keep):
                report = error_report(item, error, "teardown")
                item.ihook.pytest_runtest_logreport(report=report)

    def _end_fixtures(self, kind: Kind, held: Held, keep: Keep) -> str:
        """End all fixtures of a held world except those of `keep`; returns the error, or ""."""
        run, world = self._run, held.world
        del self._held[kind]
        label = f"the teardown of fixtures of {held.keep.nodeid or 'the session'}"
        try:
            client = run.have_client()
            lease = client.lease(len(world.nodes), False, label, world.nodes)
            try:
                procs = kind[0].procs_per_node
                found = client.open_world(lease, procs, False, held=world.id, file=held.file)
                if found.id != world.id:  # the ranks died, and the fixtures with them
                    client.close_world(found, reusable=True, new_group=found.new_group)
                    return ""
                driven = WorldTest(client, world, run.settings.timeout_s, run.console)
                outcome = driven.run_function("end_fixtures", keep.nodeid)
                run.give_to_others("", outcome)
                error = "" if outcome.returned else str(function_error(outcome))
                reusable = outcome.clean
                new_group = found.new_group or outcome.new_group
                client.close_world(world, reusable, new_group, keep is not NOTHING and reusable)
            finally:
                client.release(lease)
            if outcome.quit:
                pytest.exit("Quitting debugger")
        except MnodeError as problem:
            return f"{label}: {problem}"
        if keep is not NOTHING and reusable:
            self._held[kind] = replace(held, keep=keep)
        return error and f"{label}:\n{error}"


@dataclass(slots=True)
class _Begun:
    """A test that the ranks of a leased world have begun; need, keep: of that test."""

    lease: Lease
    driven: WorldTest
    need: WorldRequest
    keep: Keep


class ItemRunner:
    """Runs the items of one pytest process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.held_worlds = HeldWorlds(run)
        self._shared_tmp = SharedTmp(run)
        self._warner = Warner(run.config)
        self.quits = False
        """Whether the user ended the run from the debugger of the last test."""
        self.begun: _Begun | None = None
        """The next test, if its ranks have begun it."""
        self._parent: Any = None
        self._undisturbed = False
        self._only_in_ranks: dict[str, None] = {}
        self._given: set[str] = set()

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test in the ranks that it requests; returns the merged reports."""
        began = time.time()
        need = self.begun.need if self.begun is not None else self._run.request_of(item)
        shared_tmp = None
        try:
            if asks_for(item, "shared_tmp_path"):
                shared_tmp = self._shared_tmp.make(item)
            with self._run.console.shows_line(True):
                outcome = self._conduct(item, need, nextitem, shared_tmp)
        except MnodeError as error:
            report = error_report(item, str(error), began=began)
            self._run.repair(error)
            return [report]
        except pytest.fail.Exception as error:  # another plugin's limit expired in this process
            return [error_report(item, str(error), began=began)]
        self.quits = outcome.quit
        self._run.give_to_others(item.nodeid, outcome)
        if self.quits and all(state.failed_at is None for state in outcome.states.values()):
            reports = []
        else:
            reports = rank_reports.merged(item, outcome, self._asked_later(need))
        if shared_tmp is not None:
            self._shared_tmp.end(shared_tmp, item, reports)
        for state in outcome.states.values():
            for warning in state.torn_down.warnings if state.torn_down else ():
                self._warner.warn(*warning)
        for text in left_out(outcome) if outcome.some_apart else ():
            self._warn(f"{item.name}: {text}", item.nodeid)
        return reports

    def only_in_ranks(self, item: pytest.Item) -> list[pytest.Item]:
        """Tests of this item's file that only its ranks have, each given once."""
        module = item.getparent(pytest.Module)
        if module is None:
            return []
        ids = [i for i in self._only_in_ranks if i.startswith(f"{module.nodeid}::")]
        if not ids:
            return []  # then the item may be none of ours, whose class must not be read
        need = self._run.request_of(item)
        shape = {"nodes": need.nodes, "procs_per_node": need.procs_per_node}
        given = {name: n for name, n in shape.items() if n is not None}
        mark = pytest.mark.mnode(**given, timeout=need.timeout_s)
        tests: list[pytest.Item] = []
        for nodeid in ids:
            del self._only_in_ranks[nodeid]
            self._given.add(nodeid)
            test = _OnlyInRanks.from_parent(module, name=nodeid.partition("::")[2], nodeid=nodeid)
            test.add_marker(mark)
            tests.append(test)
        give_controller_hooks(tests)
        return tests

    def _conduct(
        self,
        item: pytest.Item,
        need: WorldRequest,
        nextitem: pytest.Item | None,
        shared_tmp: Path | None,
    ) -> Outcome:
        run, client = self._run, self._run.have_client()
        begun, self.begun = self.begun, None
        held = self.held_worlds.get(item, need)
        following = collected_id(nextitem) if nextitem is not None else None
        on, held_id = (held.world.nodes, held.world.id) if held else ((), "")
        if begun is not None:
            lease, keep = begun.lease, begun.keep
        else:
            keep = self.held_worlds.keep(item, nextitem, need)
            progress("waiting for nodes")
            lease = run.lease(need, item.nodeid, on)
        try:
            fresh = need.reuse == "fresh"
            for _ in range(_BEGIN_AGAIN):
                if begun is not None:
                    world, driven, begun = begun.driven.world, begun.driven, None
                else:
                    procs, file = run.procs_of(need), str(item.path)
                    progress("starting ranks")
                    world = client.open_world(lease, procs, fresh, held=held_id, file=file)
                    progress("")
                    self._only_in_ranks |= {
                        i: None for i in world.only_in_ranks if i not in self._given
                    }
                    driven = self._driven(item, need, world)
                    keep_group = need.reuse == "warm" and not world.new_group
                    keeps = keep_group, keep.nodeid, str(shared_tmp or "")
                    driven.begin_item(RunItem(collected_id(item), following, *keeps))
                outcome = driven.end_item()
                outcome.allows_unequal = need.unequal_calls == "allow"
                plain = outcome.plainly_passed
                clean = (plain or outcome.clean) and not fresh
                if outcome.holds_group and keep.chain:
                    keep = replace(keep, widest=keep.widest or keep.chain[0])
                self.held_worlds.note(item, need, world, keep if clean else NOTHING)
                if plain and not outcome.new_group:
                    self.begun = self._begun_next(item, nextitem, need, lease, world)
                    if self.begun is not None:
                        return outcome
                if not clean and may_run_exit_handlers(outcome):
                    run.exit_notices += run_exit_handlers(client, world, run.test_of)
                client.close_world(world, clean, outcome.new_group, keep.widest is not None)
                if not outcome.stillborn:
                    break
                self._warn_of_late_deaths(outcome.stillborn)
        finally:
            if self.begun is None:
                client.release(lease)
        return outcome

    def _driven(self, item: pytest.Item, need: WorldRequest, world: WorldInfo) -> WorldTest:
        run, limits = self._run, (need.timeout_s, need.still_s)
        timeout_s, still_s = (run.seconds_of(limit, need) for limit in limits)
        driven = WorldTest(run.have_client(), world, timeout_s, run.console, still_s)
        run.tests[driven.ordinal] = item.nodeid
        return driven

    def _begun_next(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        need: WorldRequest,
        lease: Lease,
        world: WorldInfo,
    ) -> _Begun | None:
        """Have ranks that all passed `item` begin the next test before `item` is reported.

        None where something can come between the two. Otherwise no code of others runs in this
        process until then, and a pass ends no run: -x still ends it before what follows a failure.
        """
        if (
            nextitem is None
            or stops(item.session)
            or need.reuse != "warm"
            or nextitem.parent is not item.parent
            or self.held_worlds.after(item) is not nextitem
            or not (in_ranks(nextitem) and self._is_undisturbed(item))
            or asks_for(nextitem, "shared_tmp_path")
            or nextitem.get_closest_marker("criterion") is not None
            or self._run.request_of(nextitem) != need
        ):
            return None
        after = self.held_worlds.after(nextitem)
        keep = self.held_worlds.keep(nextitem, after, need)
        driven = self._driven(nextitem, need, world)
        following = collected_id(after) if after is not None else None
        driven.begin_item(RunItem(collected_id(nextitem), following, True, keep.nodeid))
        return _Begun(lease, driven, need, keep)

    def end_begun(self, item: pytest.Item) -> None:
        """End the ranks that have begun the test after `item`, because the run ends before it."""
        begun, self.begun = self.begun, None
        if begun is not None:
            self.held_worlds.note(item, begun.need, begun.driven.world, NOTHING)
            begun.driven.client.release(begun.lease)

    def _is_undisturbed(self, item: pytest.Item) -> bool:
        """Whether only pytest and this package act between this test and the next in its file."""
        if item.parent is not self._parent:
            config, settings = item.config, self._run.settings
            debugs = config.getoption("usepdb", False) or config.getoption("trace", False)
            watched = config.pluginmanager.has_plugin(marks.PORTS_FIXTURE)
            alone = self._run.pool is not None and settings.budget_s is None
            self._parent = item.parent
            self._undisturbed = alone and not (debugs or watched or others_come_between(item))
        return self._undisturbed

    def _asked_later(self, need: WorldRequest) -> Later:
        """Measures in place of failed ranks, without a lease, because they may still hold it."""
        run, ask = self._run, need.on_failure
        return None if ask is None else lambda: ask(run.all_nodes(), run.spec)

    def _warn_of_late_deaths(self, deaths: Sequence[Death]) -> None:
        """Warn of ranks that died after the end of the test that killed them, before the next."""
        for death in deaths:
            nodeid = self._run.test_of(death)
            self._warn(late_death_line(death, nodeid), nodeid)

    def _warn(self, text: str, nodeid: str) -> None:
        self._warner.warn(b"", text, str(self._run.config.rootpath), 0, "runtest", nodeid, None)


class _OnlyInRanks(pytest.Item):
    """A test that the controller does not have, because its file decides by a rank's variables."""

    def runtest(self) -> None:
        """Do nothing: the body is in the ranks."""

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class RankTests:
    """pytest plugin: executes setup, body and teardown of tests in their ranks.

    Every plugin that runs a test, once or several times, runs pytest's own protocol: its setup
    runs the test in ranks from setup to teardown, and each phase returns its merged report.
    """

    def __init__(self, run: Run, stop_rules: StopRules) -> None:
        self.run = run
        self._stop_rules = stop_rules
        self._pid = os.getpid()
        self._runner = ItemRunner(run)
        self._next: pytest.Item | None = None
        self._reports: dict[str, pytest.TestReport] = {}
        """Reports of the running test by phase, without those already returned to pytest."""
        self._further: list[pytest.TestReport] = []
        self._raised: BaseException | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        self._next = nextitem
        result = yield
        if stops(item.session):  # a handler of a signal may say so at any time
            self._runner.end_begun(item)
        if nextitem is None or nextitem.path != item.path:
            further = self._runner.only_in_ranks(item)
            if further and hasattr(item.config, "workerinput"):
                text = (
                    f"{', '.join(test.nodeid for test in further)}: only ranks have it; "
                    "pytest-xdist runs no test that it did not collect: run this file without it"
                )
                report = error_report(item, text, "teardown")
                item.ihook.pytest_runtest_logreport(report=report)
                further = []
            for test in further:
                if not stops(item.session):
                    test.ihook.pytest_runtest_protocol(item=test, nextitem=nextitem)
        self._runner.held_worlds.leave(item, nextitem)
        return result

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not in_ranks(item):
            return
        item.stash[marks.RUNS] = item.stash.get(marks.RUNS, 0) + 1
        run, missing = self.run, None
        if self._runner.begun is None:
            missing = self._out_of_reach() or self._stop_rules.stop_reason(item)
            missing = missing or marks.too_many_nodes(item, run.settings, run.nodes)
        reports = (
            [self._stop_rules.noted(item, error_report(item, missing))]
            if missing
            else self._runner.run(item, self._next)
        )
        self._further = [report for report in reports if is_further(report)]
        self._reports = {str(r.when): r for r in reports if not is_further(r)}
        if not self._reports:
            self._quit_if_asked()
        self._end_as("setup")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        if in_ranks(item):
            self._end_as("call")

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if in_ranks(item):
            _end_what_is_over(item, nextitem)
            self._quit_if_asked()
            self._end_as("teardown")

    def _quit_if_asked(self) -> None:
        """End the run if the user ended it from the debugger."""
        if self._runner.quits:
            pytest.exit("Quitting debugger")

    def _out_of_reach(self) -> str:
        """Why ranks cannot be reached from this thread or process; "" if they can."""
        here = "a thread" if threading.current_thread() is not threading.main_thread() else ""
        here = "a child process" if os.getpid() != self._pid else here
        return here and (
            f"a plugin runs this test in {here} of its own, where its ranks cannot be reached: "
            "run tests in ranks without that plugin"
        )

    def _end_as(self, when: str) -> None:
        """Raise the ranks' error of this phase, so that other plugins see it."""
        if (report := self._reports.get(when)) is not None and not report.passed:
            self._raised = raised_by(report)
            setattr(self._raised, OF_RANKS, report.longrepr)
            raise self._raised

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> pytest.TestReport | None:
        if not in_ranks(item):
            return None
        if call.excinfo is not None and call.excinfo.errisinstance(KeyboardInterrupt):
            raise call.excinfo.value  # with --pdb, pytest would report it as the test's error
        report = self._reports.pop(call.when, None)
        for further in self._further if call.when != "setup" else ():
            item.ihook.pytest_runtest_logreport(report=further)
        self._further = self._further if call.when == "setup" else []
        if call.excinfo is not None and call.excinfo.value is not self._raised:
            return pytest.TestReport.from_item_and_call(item, call)  # another plugin raised it
        runs_body = not item.config.getoption("setuponly", False)
        if report is None and call.when == "call" and runs_body:
            return error_report(item, "its ranks sent no report of the body of this test")
        return report or pytest.TestReport.from_item_and_call(item, call)


class Guard:
    """pytest plugin: makes a test for ranks that has no report an error."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._of_ranks: set[str] = set()
        self._never_begun: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reported.add(report.nodeid)
        if hasattr(report, ADDED):
            give_added(report)
        # testmon's record of lines, without those of ranks: it then runs these tests always.
        lines = getattr(report, "nodes_files_lines", None) or {}
        for nodeid in self._of_ranks & lines.keys():
            del lines[nodeid]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._reported.discard(item.nodeid)
        if in_ranks(item):
            self._of_ranks.add(item.nodeid)
        result = yield
        if in_ranks(item) and item.nodeid not in self._reported:
            takers = ", ".join(other_loops(item.config.pluginmanager)) or "another plugin"
            text = f"pytest received no report of this test; {takers} may have suppressed it"
            item.ihook.pytest_runtest_logreport(report=error_report(item, text))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = session.shouldstop or session.shouldfail or hasattr(session.config, "workerinput")
        if exitstatus != pytest.ExitCode.OK or stopped:
            return
        ranks = [item.nodeid for item in session.items if marks.runs_in_ranks(item)]
        if missing := [nodeid for nodeid in ranks if nodeid not in self._reported]:
            self._never_begun = missing
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self._never_begun:
            terminalreporter.write_line(f"mnode: {nodeid} was selected but never ran", red=True)


def _end_what_is_over(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tear down modules and fixtures that earlier tests left and that `nextitem` does not use.

    They stay while tests run in ranks, which use none of them, until no later test can use them.
    """
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    if call.excinfo is not None:
        report = pytest.TestReport.from_item_and_call(item, call)
        item.ihook.pytest_runtest_logreport(report=report)


def stops(session: pytest.Session) -> bool:
    """Whether the run ends before its next test."""
    return bool(session.shouldstop or session.shouldfail)


def _shared(chain: Chain, nextitem: pytest.Item | None) -> Chain:
    """The collectors of `chain` that the next test is in too, from the session down."""
    others = nextitem.listchain() if nextitem is not None else []
    count = 0
    while count < min(len(chain), len(others)) and chain[count] is others[count]:
        count += 1
    return [node for node in chain[:count] if not isinstance(node, pytest.Item)]
