"""Ranks that die: the report names rank, node, cause and last output; no such test passes."""

from __future__ import annotations

import re

import pytest

from tests.scenario import TWO_OF_TWO, Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return run_scenario("dying", tmp_path_factory.mktemp("dying"), *TWO_OF_TWO)


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 18
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


def test_nothing_passed(ran: Scenario) -> None:
    assert {name: c.outcome for name, c in ran.cases.items() if c.outcome == "passed"} == {}


@pytest.mark.parametrize(
    ("name", "rank", "of", "how"),
    [
        ("exit_3", 1, 4, "exited with code 3, in the test"),
        ("exit_0", 1, 2, "exited with code 0, in the test"),
        ("segfault", 2, 4, "killed by SIGSEGV, in the test"),
        ("abort", 1, 2, "killed by SIGABRT, in the test"),
        ("sigkill", 3, 4, "killed by SIGKILL (not by pytest-mnode), peak memory "),
        ("sigterm", 1, 2, "killed by SIGTERM, in the test"),
        ("sigterm_to_its_group", 1, 2, "killed by SIGTERM, in the test"),
        ("silent_exit_after_last_collective", 1, 2, "exited with code 0, in the test"),
        ("exit_in_teardown", 1, 2, "exited with code 3, in teardown"),
        ("exit_in_setup", 1, 2, "exited with code 3, in setup"),
        ("thread_exits_at_once", 1, 2, "exited with code 0, in "),
        ("thread_exits_soon", 1, 2, "exited with code 0, in "),
    ],
)
def test_the_report_names_rank_node_and_cause(
    ran: Scenario, name: str, rank: int, of: int, how: str
) -> None:
    case = ran[name]
    assert case.outcome == ("error" if name == "exit_in_setup" else "failure")
    assert f"rank {rank} of {of} on local{rank * 2 // of}: {how}" in case.message
    assert f"test_{name} PASSED" not in ran.run.output


def test_a_rank_without_descriptors_cannot_go_on(ran: Scenario) -> None:
    """gloo aborts in its own thread, unless the rank finds first that its socket is closed."""
    case = ran["descriptors_closed"]
    assert case.outcome == "failure"
    ends = r"(killed by SIG(ABRT|SEGV)|exited with code 1)"
    how = rf"rank 1 of 2 on local1: {ends}, in (the test|teardown)"
    assert re.search(how, case.message)
    assert "test_descriptors_closed PASSED" not in ran.run.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exit_3", "end of its output:\nabout to exit_3"),
        ("segfault", "end of its output:\nabout to segfault"),
        ("sigkill", "end of its output:\nabout to sigkill"),
        ("abort", "end of its output:\nheap is broken"),
    ],
)
def test_the_last_output_is_reported(ran: Scenario, name: str, words: str) -> None:
    assert words in ran[name].text


def test_stack_of_a_fault(ran: Scenario) -> None:
    text = ran["segfault"].part("rank 2 of 4")
    assert "Fatal Python error: Segmentation fault" in text
    assert "in string_at" in text
    assert "in test_segfault" in text
    assert "Extension modules" not in text


@pytest.mark.parametrize("name", ["exit_3", "segfault", "sigkill"])
def test_ranks_that_lost_the_dead_rank_are_not_blamed(ran: Scenario, name: str) -> None:
    titles = re.findall(r"^\[(ranks? .*)\]$", ran[name].text, re.MULTILINE)
    assert titles[0].endswith(": first")
    assert len(titles) > 1
    # On a busy machine some ranks are stopped before they have reported which rank they lost.
    assert all(title.endswith(": caused by the first failure") for title in titles[1:])


def test_no_test_runs_until_its_limit(ran: Scenario) -> None:
    assert ran.ended_by_limit() == []


def test_a_rank_killed_for_lack_of_memory(ran: Scenario) -> None:
    case = ran["out_of_memory"]
    assert case.outcome == "failure"
    assert case.first_line == "[rank 1 of 4 on local0: first]"
    assert "MemoryError" in case.message


def test_death_of_all_ranks_is_one_report(ran: Scenario) -> None:
    case = ran["all_ranks_die"]
    assert case.first_line == "[ranks 0-3 of 4 on local0,local1]"
    assert case.text.count("exited with code 7, in the test") == 1


def test_pending_threads_and_alarms_are_found_before_they_act(ran: Scenario) -> None:
    assert "rank 1 on local1 left thread 'Thread-1 (end)' behind" in ran["thread_exits_late"].text
    alarm = ran["native_alarm_goes_off_late"].text
    assert re.search(r"rank 1 on local1 left an alarm due in \d\.\d s", alarm)


def test_10_mb_are_kept_and_the_end_is_shown(ran: Scenario) -> None:
    case = ran["10_mb_from_each"]
    assert "rank 1 line 019999" in case.shown
    assert "rank 1 line 000001 " not in case.shown
    assert len(case.shown) < 100_000
    kept = sorted(ran.logs.glob("*/*10_mb_from_each*stdout*.log"))
    assert [p.name.split(".")[1] for p in kept] == ["rank0", "rank1"]
    for rank, path in enumerate(kept):
        assert str(path) in case.shown
        assert path.stat().st_size > 9_900_000
        assert path.read_text().startswith(f"rank {rank} line 000000")


def test_10_mb_of_a_dying_rank_are_kept(ran: Scenario) -> None:
    case = ran["10_mb_and_dies"]
    text = case.part("rank 1 of 2 on local1")
    assert "rank 1 line 019999" in text
    (kept,) = ran.logs.glob("*/rank1.output.log")
    assert f"all of it is in {kept}" in text
    assert kept.stat().st_size > 9_900_000


def test_closed_output_harms_no_other_test(ran: Scenario) -> None:
    assert "assert 1 != 1" in ran["output_closed"].part("rank 1 of 2 on local1")
