"""A node that loses its power during a test: named, booted, and the run continues."""

from __future__ import annotations

import pytest

from tests.inner import need_rack
from tests.scenario import Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    need_rack()
    return run_scenario(
        "powerless",
        tmp_path_factory.mktemp("powerless"),
        "--mnode-launcher=rack",
        SCENARIO_POWER_OFF="node2",
    )


def test_the_node_is_named(ran: Scenario) -> None:
    case = ran["power_cut"]
    assert case.outcome == "failure"
    assert case.first_line == "[rank 2 of 4 on node2: first]"
    assert "node node2 is lost: powered off" in case.message


def test_no_test_runs_until_its_limit(ran: Scenario) -> None:
    assert ran.ended_by_limit() == []


def test_ranks_of_other_nodes_are_its_victims(ran: Scenario) -> None:
    others = ran["power_cut"].part(
        "ranks 0-1,3 of 4 on node0,node1,node3: caused by the first failure]"
    )
    assert "dist.barrier()" in others


def test_the_node_was_booted_and_the_next_test_ran_on_it(ran: Scenario) -> None:
    assert ran.nexts == {"power_cut": "passed"}
    assert ran.run.properties("test_next[power_cut]")["mnode.nodes"] == "node0,node1,node2,node3"
