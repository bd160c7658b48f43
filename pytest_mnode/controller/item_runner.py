"""Runs pytest items in ranks: leases nodes, opens a world, drives the test, merges the reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mnode.controller import of_plugins
from pytest_mnode.controller.held_worlds import NOTHING, HeldWorlds
from pytest_mnode.controller.rank_reports import Later, RankReports, Warner
from pytest_mnode.controller.session import Run
from pytest_mnode.controller.shared_tmp import SharedTmp
from pytest_mnode.controller.world_test import WorldTest, may_run_exit_handlers, run_exit_handlers
from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import WorldRequest, asks_for
from pytest_mnode.other_plugins import collected_id, give_controller_hooks
from pytest_mnode.outcome.describe import late_death_line
from pytest_mnode.outcome.failures import left_out
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.progress import progress
from pytest_mnode.protocol.agent_messages import Death
from pytest_mnode.report_record import error_report

_BEGIN_AGAIN = 2


class ItemRunner:
    """Runs the items of one pytest process."""

    def __init__(self, run: Run, held_worlds: HeldWorlds) -> None:
        self._run = run
        self._held_worlds = held_worlds
        self._shared_tmp = SharedTmp(run)
        self._reports = RankReports(run.config)
        self._warner = Warner(run.config)
        self.quits = False
        """Whether the user ended the run from the debugger of the last test."""
        self._only_in_ranks: dict[str, None] = {}
        self._given: set[str] = set()

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test in the ranks that it requests; returns the merged reports."""
        began = time.time()
        need = self._run.request_of(item)
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
        if self._run.coverage:
            self._run.coverage.take(item.nodeid, outcome)
        of_plugins.add_ranks(item.config, outcome)
        if self.quits and all(state.failed_at is None for state in outcome.states.values()):
            reports = []
        else:
            reports = self._reports.merged(item, outcome, self._asked_later(need))
        self._shared_tmp.end(shared_tmp, item, reports)
        for state in outcome.states.values():
            for warning in state.torn_down.warnings if state.torn_down else ():
                self._warner.warn(*warning)
        for text in left_out(outcome):
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
        mark = pytest.mark.mnode(**{name: n for name, n in shape.items() if n is not None})
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
        kept, keep = self._held_worlds.get(item, need), self._held_worlds.keep(item, nextitem, need)
        following = collected_id(nextitem) if nextitem is not None else None
        on, kept_id = (kept.world.nodes, kept.world.id) if kept else ((), "")
        limits_s = [run.seconds_of(limit, need) for limit in (need.timeout_s, need.still_s)]
        progress("waiting for nodes")
        lease = run.lease(need, item.nodeid, on)
        try:
            fresh = need.reuse == "fresh"
            for _ in range(_BEGIN_AGAIN):
                procs, file = run.procs_of(need), str(item.path)
                progress("starting ranks")
                world = client.open_world(lease, procs, fresh, held=kept_id, file=file)
                progress("")
                self._only_in_ranks |= {
                    i: None for i in world.only_in_ranks if i not in self._given
                }
                driven = WorldTest(client, world, limits_s[0], run.console, limits_s[1])
                run.tests[driven.ordinal] = item.nodeid
                keep_group = need.reuse == "warm" and not world.new_group
                keeps = keep_group, keep.nodeid, str(shared_tmp or "")
                outcome = driven.run_item(collected_id(item), following, *keeps)
                outcome.allows_unequal = need.unequal_calls == "allow"
                clean = outcome.clean and not fresh
                held = keep.widest is not None
                if not clean and may_run_exit_handlers(outcome):
                    run.exit_notices += run_exit_handlers(client, world, run.test_of)
                client.close_world(world, clean, outcome.new_group, held)
                if not outcome.stillborn:
                    break
                self._warn_of_late_deaths(outcome.stillborn)
            self._held_worlds.note(item, need, world, keep if clean else NOTHING)
        finally:
            client.release(lease)
        return outcome

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
