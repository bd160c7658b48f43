"""The traffic of today's jobs on a rack with one slow link."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.certified import PORTS, certify, spec_of
from tests.acceptance.test_ports_turn_red import UNPLUGGED
from tests.red import turns_red

TOKENS, GROUPS, JOBS = (
    "test_tokens_reach_their_experts_in_time",
    "test_groups_of_all_dimensions_run_at_once",
    "test_two_jobs_leave_each_other_their_rates",
)


@turns_red("traffic", TOKENS, GROUPS, JOBS, PORTS)
def test_a_node_that_sends_slowly_is_named(tmp_path: Path) -> None:
    """Two jobs on the same nodes share each link, so that both lose about half."""
    traffic = {
        "experts": {"sizes": ["256 KiB"], "calls": 20, "p50_at_most_times": 1.5},
        "parallel": {"at_least_fraction": 0.5, "rounds": 5},
        "jobs": {"nodes": ["node[0-3]", "node[0-3]"], "loss_at_most": 0.05, "rounds": 5},
    }
    page = spec_of(tmp_path, criteria={"traffic": traffic})
    arguments = "--mnode-fault=slow_tx:node2:20"
    done = certify(tmp_path, page, arguments, fault=UNPLUGGED, files=["test_traffic.py"])
    for test in (TOKENS, GROUPS):
        verdict, found = done.case("traffic", test)
        assert verdict == "fail", done.run.output
        named = [m["culprit_nodes"] for m in found.values() if m["verdict"] == "fail"]
        assert named == [["node2"]] * len(named), done.run.output
    verdict, found = done.case("traffic", JOBS)
    assert verdict == "fail", done.run.output
    failed = [m for m in found.values() if m["verdict"] == "fail"]
    assert {m["name"] for m in failed} <= {
        f"job {n}, rate beside the other over alone" for n in (1, 2)
    }
    assert all(m["value"] < 0.8 for m in failed)
