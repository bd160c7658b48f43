"""Ranks that raise, skip or xfail: one report, culprit first, equal errors once."""

from __future__ import annotations

import json
import re

import pytest

from tests.scenario import TWO_OF_TWO, Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return run_scenario("raising", tmp_path_factory.mktemp("raising"), *TWO_OF_TWO)


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 20
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


def test_no_test_runs_until_its_limit(ran: Scenario) -> None:
    assert ran.ended_by_limit() == []


def test_assertion_on_one_rank(ran: Scenario) -> None:
    case = ran["assertion_on_one"]
    assert case.outcome == "failure"
    assert case.first_line == "[rank 2 of 4 on local1]"
    assert "assert 7.0 < 3.0" in case.text
    assert "where 7.0 = sum([1.0, 2.0, 4.0])" in case.text
    assert "[ranks 0-1,3 of 4 on local0,local1: passed]" in case.text
    assert case.message.startswith("rank 2 of 4 on local1: assert 7.0 < 3.0")


def test_output_of_the_failed_rank_comes_first(ran: Scenario) -> None:
    shown = ran["assertion_on_one"].shown
    assert shown.index("rank 2 computes") < shown.index("rank 0 computes")
    assert "Captured stdout call (rank 2)" in shown


def test_assertion_while_others_wait(ran: Scenario) -> None:
    case = ran["assertion_while_others_wait"]
    assert case.first_line == "[rank 1 of 4 on local0: first]"
    assert "At index 2 diff: 4.0 != 3.0" in case.part("rank 1")
    victims = case.part("ranks 0,2-3 of 4 on local0,local1: caused by the first failure]")
    # Longer than the grace period, in case a busy machine delayed ranks before the barrier.
    assert re.search(r"stopped \d\S* s after the first failure: wait in barrier at test_", victims)
    assert victims.count("stack of ranks 0,2-3:") == 1


def test_different_errors_each_once(ran: Scenario) -> None:
    case = ran["different_errors"]
    assert "ValueError: bad shard 17" in case.part("rank 0 of 4 on local0")
    assert "KeyError: 'embedding.weight'" in case.part("rank 3 of 4 on local1")
    assert "[ranks 1-2 of 4 on local0,local1: passed]" in case.text
    assert case.text.count("caused by the first failure") == 0


def test_a_rank_that_still_runs_is_waited_for(ran: Scenario) -> None:
    case = ran["equal_errors_one_late"]
    assert case.first_line == "[ranks 0-1 of 2 on local0,local1]"
    assert case.text.count("assert 2 == 6") == 1


def test_errors_whose_places_are_not_shown_are_not_at_the_same_place(ran: Scenario) -> None:
    groups = ran["groups_of_errors"]
    assert "ValueError: shard 0" in groups.part("rank 0 of 2")
    assert "OSError: shard 2" in groups.part("rank 1 of 2")
    assert "loss 0.5" in ran["errors_without_a_place"].part("rank 1 of 2")
    assert "at the same place" not in groups.text + ran["errors_without_a_place"].text


def test_skip_on_all(ran: Scenario) -> None:
    assert ran["skip_on_all"].outcome == "skipped"
    assert "no such device" in ran["skip_on_all"].message


@pytest.mark.parametrize(
    ("name", "outcome", "who"),
    [
        ("skip_on_some_while_others_wait", "failure", "rank 1 of 4 on local0: skipped "
         "(no such device), but ranks 0,2-3 did not"),
        ("skip_on_some_in_setup", "error", "rank 1 of 2 on local1: skipped (device is busy), "
         "but rank 0 did not"),
    ],
)  # fmt: skip
def test_skip_on_some_lists_the_ranks(ran: Scenario, name: str, outcome: str, who: str) -> None:
    assert ran[name].outcome == outcome
    assert who in ran[name].message.removeprefix("failed on setup with ").strip('"')


@pytest.mark.parametrize(
    "name", ["xfail_on_all", "xfail_on_one_while_others_wait", "xfail_strict_on_one"]
)
def test_expected_failure(ran: Scenario, name: str) -> None:
    assert ran[name].outcome == "skipped"
    assert f"test_{name} XFAIL (known)" in ran.run.output


def test_unexpected_failures_of_tests_expected_to_fail(ran: Scenario) -> None:
    other = ran["xfail_for_another_reason"]
    assert other.outcome == "failure"
    assert "TypeError: not as known" in other.part("rank 1 of 2 on local1]")
    assert "[rank 0 of 2 on local0: failed as expected]" in other.text
    died = ran["xfail_does_not_cover_a_death"]
    assert died.outcome == "failure"
    assert "exited with code 3, in the test" in died.message


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("exits", ("SystemExit: 0", "Exit: enough", "KeyboardInterrupt")),
        ("odd_errors", ("Error: <exception str() failed>", "RecursionError: max", "of a pair")),
    ],
)
def test_no_exit_counts_as_a_pass(ran: Scenario, name: str, what: tuple[str, ...]) -> None:
    case = ran[name]
    assert case.outcome == "failure"
    for rank, words in enumerate(what, 1):
        assert words in case.part(f"rank {rank} of 4 on local{rank // 2}")
    assert "[rank 0 of 4 on local0: passed]" in case.text


def test_the_line_of_an_exit_is_reported(ran: Scenario) -> None:
    assert 'pytest.exit("enough", returncode=0)' in ran["exits"].text
    assert ran.run.returncode == 1


def test_an_exit_in_a_thread_does_not_fail_the_test(ran: Scenario) -> None:
    assert ran["exit_in_a_thread_is_its_own_affair"].outcome == "passed"


def test_huge_message_once(ran: Scenario) -> None:
    case = ran["huge_message"]
    assert case.outcome == "failure"
    assert case.text.count("the weights differ") > 5_000
    assert len(case.text) < 200_000
    assert case.text.count("\nat the same place, test_raising.py:") == 2


def test_measurements_of_on_failure(ran: Scenario) -> None:
    measured = ran.run.properties("test_nothing_measured")["mnode.measurement"]
    assert json.loads(measured)["culprit"] == "local1"
    shown = ran["nothing_measured"].shown.partition("Measured after the ranks had failed")[2]
    assert "lost paths: 2, expected equals 0" in shown
    assert "no node can be asked" in ran["nobody_to_ask"].shown


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "no_tool",
            "on_failure raised FileNotFoundError: ping: command not found (test_raising.py:",
        ),
        ("asking_fails", "on_failure raised Failed: no path can be tried (test_raising.py:"),
        ("nothing_returned", "on_failure returned None; accepted: a list of measurements"),
    ],
)
def test_a_broken_on_failure_hides_no_finding(ran: Scenario, name: str, why: str) -> None:
    case = ran[name]
    assert case.outcome == "failure"
    assert case.message.startswith("rank 1 of 2 on local1: assert 1 != 1")
    assert why in case.shown.partition("Measured after the ranks had failed")[2]


def test_measurements_made_before_a_failure_are_kept(ran: Scenario) -> None:
    measured = ran.run.properties("test_measured_first")["mnode.measurement"]
    assert json.loads(measured)["name"] == "found paths"
    assert "Measured after" not in ran["measured_first"].shown


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        ("measured_in_teardown", "error", "late: 1, expected at most 0"),
        ("measured_by_name", "error", "inconclusive: by name: not measured"),
        ("measured_before_a_skip", "failure", "before a skip: 1, expected at most 0"),
    ],
)
def test_whatever_a_rank_recorded_is_judged(
    ran: Scenario, name: str, outcome: str, said: str
) -> None:
    assert ran[name].outcome == outcome
    assert said in ran[name].text
    assert "mnode.measurement" in ran.run.properties(f"test_{name}")


def test_warnings_of_ranks_once(ran: Scenario) -> None:
    summary = ran.run.output.partition("warnings summary")[2]
    assert summary.count("UserWarning: learning rate is negative") == 1
    assert summary.count("OpaqueWarning: only here") == 1


def test_a_finalizer_that_raises_is_a_separate_error(ran: Scenario) -> None:
    case = ran["finalizer_raises_on_one"]
    assert case.outcome == "error"
    assert "OSError: could not tidy up" in case.part("rank 1 of 2 on local1]")
    assert "test_finalizer_raises_on_one PASSED" in ran.run.output


def test_module_fixture_that_fails_on_one(ran: Scenario) -> None:
    case = ran["module_fixture_fails_on_one"]
    assert case.outcome == "error"
    shown = case.part("rank 1 of 2 on local1: first]")
    assert "FileNotFoundError: shard-1.bin" in shown
    assert "pytest_mnode" not in shown
    assert "waits in barrier" in case.part("rank 0 of 2")


def test_frames_of_a_library_are_short(ran: Scenario) -> None:
    text = ran["library_frames"].text
    assert "    model = torch.nn.Sequential(torch.nn.Linear(2, 2))" in text
    assert ">       model(torch.ones(1, 3))" in text
    assert "linear.py:" in text
    assert "def forward" not in text
    assert "return self._call_impl" not in text
    assert "mat1 and mat2 shapes cannot be multiplied" in text
    assert len(text.splitlines()) < 30
