"""Ranks that all pass although their calls do not match: a failure, unless the test means it."""

from __future__ import annotations

import pytest

from tests.scenario import TWO_OF_TWO, Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return run_scenario("unequal", tmp_path_factory.mktemp("unequal"), *TWO_OF_TWO)


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 10
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a_handle_of_the_root_alone",
         "rank 0 of 4 on local0: called broadcast (async_op) of [2] float32 from rank 0 as call 1 "
         "of the default group (test_unequal.py:"),
        ("dtype_of_equal_bytes",
         "rank 3 of 4 on local1: called broadcast of [2] int32 from rank 0 as call 1 of"),
        ("other_reduce_op",
         "rank 3 of 4 on local1: called all_reduce of [4] float32 with MAX as call 1 of"),
        ("one_more_handle",
         "rank 3 of 4 on local1: called all_reduce (async_op) of [2] float32 with SUM as call 2"),
        ("in_a_group",
         "rank 1 of 4 on local0: called broadcast (async_op) of [2] float32 from rank 1 as "),
        ("sent_to_nobody",
         "rank 1 of 4 on local0: called isend of [2] float32 as message 1 of rank 1 to rank 2 ("),
        ("sent_once_too_often",
         "rank 1 of 4 on local0: called isend of [2] float32 as message 3 of rank 1 to rank 2 ("),
        ("received_from_nobody",
         "rank 2 of 4 on local1: called irecv of [2] float32 as message 1 of rank 1 to rank 2 ("),
        ("batch_without_its_half",
         "rank 2 of 4 on local1: called isend of [2] float32 as message 1 of rank 2 to rank 0 ("),
        ("far_behind_the_record",
         "ranks 0-3 of 4 on local0,local1: calls of the default group differ, "
         "before the last 128 of a rank"),
    ],
)  # fmt: skip
def test_the_difference_fails_the_test(ran: Scenario, name: str, start: str) -> None:
    case = ran[name]
    assert case.outcome == "failure"
    assert case.message.startswith(start)
    assert "@pytest.mark.mnode(unequal_calls='allow')" in case.text


def test_what_is_lacking_is_said(ran: Scenario) -> None:
    assert "but ranks 1-3 ended the test without it" in ran["a_handle_of_the_root_alone"].message
    assert "which rank 2 did not receive" in ran["sent_to_nobody"].message
    assert "which rank 1 did not send" in ran["received_from_nobody"].message


def test_a_mark_allows_it(ran: Scenario) -> None:
    assert ran["meant"].outcome == "passed"
    assert ran["expected_to_fail"].outcome == "passed", "an unexpected pass, as before"


def test_what_is_right_is_not_accused(ran: Scenario) -> None:
    fine = {name: case for name, case in ran.cases.items() if name.startswith("fine_")}
    assert len(fine) > 5
    assert {name: case.text for name, case in fine.items() if case.outcome != "passed"} == {}
