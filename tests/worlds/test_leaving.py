"""Leftovers of a passed test are named by rank, and the next test gets new processes."""

from __future__ import annotations

import re

import pytest

from tests.scenario import Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    directory = tmp_path_factory.mktemp("leaving")
    (directory / "pytest.ini").write_text(
        "[pytest]\nmnode_may_leave =\n    of-another\n    of-the-*\n"
    )
    return run_scenario("leaving", directory, "-rA", "--mnode-nodes=2")


def pids(ran: Scenario, after: str) -> set[str]:
    """Pids of the ranks of the test after this one."""
    found = set(re.findall(r"pid of rank \d is (\d+)", ran.shown_of_next(after)))
    assert len(found) == 2
    return found


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 15
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("child", r"rank 1 on local1 left child process \d+ \(sleep 61\) behind"),
        ("child_of_a_child", r"rank 1 on local1 left child process \d+ \(sleep 62\) behind"),
        ("child_of_a_fixture", r"rank 1 on local1 left child process \d+ \(sleep 63\) behind"),
        ("thread", r"rank 1 on local1 left thread 'courier' behind"),
        ("thread_in_a_collective", r"rank 1 on local1 left thread 'late' behind"),
        ("marked_for_less", r"rank 1 on local1 left child process \d+ \(sleep 66\) behind"),
        ("memory", r"rank 1 on local1 left 3\d\d MiB of memory"),
        ("alarm", r"rank 1 on local1 left an alarm due in \d\d\.\d s behind"),
    ],
)
def test_leak_by_rank(ran: Scenario, name: str, what: str) -> None:
    case = ran[name]
    assert case.outcome == "error"
    assert re.search(what, case.text)
    assert "passed but left" in case.message
    assert f"test_{name} ERROR" in ran.run.output


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("child", "end it and wait for it before the test ends, or allow it: "),
        ("thread", "join it before the test ends, or allow it: @pytest.mark.mnode(may_leave="),
        ("memory", "or the ini key mnode_may_leave, with a pattern of 'memory'"),
        ("alarm", "cancel it before the test ends, or allow it: "),
    ],
)
def test_each_leak_has_its_remedy(ran: Scenario, name: str, remedy: str) -> None:
    assert remedy in ran[name].text


@pytest.mark.parametrize(
    "name",
    [
        *("group", "hashed_group", "same_hashed_group", "mesh", "own_group_left"),
        *("helpers", "marked", "allowed_by_the_ini_key", "child_of_a_module_fixture"),
        *("collective_of_one", "group_destroyed", "group_destroyed_on_one"),
        *("forked_child_ends_well", "changed_surroundings", "killed_after_its_end"),
    ],
)
def test_what_is_no_leak_passes(ran: Scenario, name: str) -> None:
    assert ran[name].outcome == "passed", ran[name].text


def test_ranks_are_kept_without_the_groups(ran: Scenario) -> None:
    kept = ["group", "hashed_group", "same_hashed_group", "mesh"]
    assert len({frozenset(pids(ran, name)) for name in kept}) == 1
    assert ran["group_and_failure"].outcome == "failure"
    assert pids(ran, "group_and_failure").isdisjoint(pids(ran, "mesh"))


def test_ranks_are_kept_if_nothing_was_left(ran: Scenario) -> None:
    assert ran["nothing"].outcome == ran["child_that_ended"].outcome == "passed"
    assert pids(ran, "child_of_a_child") == pids(ran, "child_that_ended")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nothing", "child"),
        ("child", "child_of_a_child"),
        ("child_that_ended", "thread"),
        ("thread", "thread_in_a_collective"),
        ("group_and_failure", "memory"),
        ("memory", "alarm"),
        ("alarm", "collective_of_one"),
        ("collective_of_one", "group_destroyed"),
        ("group_destroyed", "group_destroyed_on_one"),
    ],
)
def test_new_processes_after_a_leak(ran: Scenario, before: str, after: str) -> None:
    assert pids(ran, before).isdisjoint(pids(ran, after))


def test_a_forked_child_does_not_report_for_its_rank(ran: Scenario) -> None:
    returned = ran["forked_child_returns"]
    assert returned.outcome == "failure"
    assert re.search(r"rank 1 of 2 on local1: a forked child \(pid \d+\) left the test",
                     returned.message)  # fmt: skip
    failed = ran["forked_child_fails"]
    assert failed.outcome == "failure"
    assert "left the test with AssertionError: in the child" in failed.message


def test_a_rank_that_closes_its_control_socket_fails(ran: Scenario) -> None:
    assert "rank 1 of 2 on local1: exited with code 1" in ran["own_socket_closed"].message


def test_a_death_between_two_tests_does_not_fail_the_next(ran: Scenario) -> None:
    warned = ran.run.output.partition("warnings summary")[2]
    assert "rank 1 on local1 killed by SIGKILL" in warned
    assert "after test_leaving.py::test_killed_after_its_end had ended in it" in warned
