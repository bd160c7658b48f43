"""Runs pytest items in ranks: leases nodes, opens a world, drives the test, merges the reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mnode.controller import allure_parts
from pytest_mnode.controller.conductor import Conductor
from pytest_mnode.controller.held_worlds import NOTHING, HeldWorlds
from pytest_mnode.controller.rank_reports import Later, RankReports, Warner
from pytest_mnode.controller.session import Run
from pytest_mnode.controller.shared_tmp import SharedTmp
from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import WorldRequest, asks_for
from pytest_mnode.other_plugins import collected_id
from pytest_mnode.outcome.describe import death_line
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.progress import progress
from pytest_mnode.protocol.agent_messages import Death
from pytest_mnode.protocol.world import WorldInfo
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
        self._last_in: dict[str, str] = {}
        """Node id of the last test in each world."""

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test in the ranks that it requests; returns the merged reports."""
        need = self._run.request_of(item)
        shared_tmp = None
        try:
            if asks_for(item, "shared_tmp_path"):
                shared_tmp = self._shared_tmp.make(item)
            with self._run.console.shows_line(True):
                outcome = self._conduct(item, need, nextitem, shared_tmp)
        except MnodeError as error:
            self._run.repair(error)
            return [error_report(item, str(error))]
        except pytest.fail.Exception as error:  # another plugin's limit expired in this process
            return [error_report(item, str(error))]
        self.quits = outcome.quit
        if self._run.coverage:
            self._run.coverage.take(item.nodeid, outcome)
        allure_parts.add_ranks(item.config, outcome)
        if self.quits and all(state.failed_at is None for state in outcome.states.values()):
            reports = []
        else:
            reports = self._reports.merged(item, outcome, self._asked_later(need))
        self._shared_tmp.end(shared_tmp, item, reports)
        for state in outcome.states.values():
            for warning in state.torn_down.warnings if state.torn_down else ():
                self._warner.warn(*warning)
        return reports

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
        progress("waiting for nodes")
        lease = run.lease(need, item.nodeid, on)
        try:
            fresh = need.reuse == "fresh"
            for _ in range(_BEGIN_AGAIN):
                procs, file = run.procs_of(need), str(item.path)
                progress("starting ranks")
                world = client.open_world(lease, procs, fresh, held=kept_id, file=file)
                progress("")
                limits_s = [run.seconds_of(limit, need) for limit in (need.timeout_s, need.still_s)]
                conductor = Conductor(client, world, limits_s[0], run.console, limits_s[1])
                keep_group = need.reuse == "warm" and not world.new_group
                keeps = keep_group, keep.nodeid, str(shared_tmp or "")
                outcome = conductor.run_item(collected_id(item), following, *keeps)
                clean = outcome.clean and not fresh
                held = keep.widest is not None
                client.close_world(world, clean, outcome.new_group, held)
                if not outcome.stillborn:
                    break
                self._warn_of_late_deaths(outcome.stillborn, world)
            self._held_worlds.note(item, need, world, keep if clean else NOTHING)
            self._last_in[world.id] = item.nodeid
        finally:
            client.release(lease)
        return outcome

    def _asked_later(self, need: WorldRequest) -> Later:
        """Measures in place of failed ranks, without a lease, because they may still hold it."""
        run, ask = self._run, need.on_failure
        return None if ask is None else lambda: ask(run.all_nodes(), run.spec)

    def _warn_of_late_deaths(self, deaths: Sequence[Death], world: WorldInfo) -> None:
        """Warn of ranks that died after the end of the test that killed them, before the next."""
        nodeid = self._last_in.get(world.id, "")
        for death in deaths:
            text = f"{death_line(death)} after {nodeid or 'a test'} had ended in it"
            self._warner.warn(b"", text, str(self._run.config.rootpath), 0, "runtest", nodeid, None)
