"""Ranks with different calls: the report names the differing call, and the ranks that wait."""

from __future__ import annotations

import re

import pytest

from tests.scenario import TWO_OF_TWO, Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return run_scenario("differing", tmp_path_factory.mktemp("differing"), *TWO_OF_TWO)


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 10
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


def test_no_test_runs_until_its_limit(ran: Scenario) -> None:
    assert ran.ended_by_limit() == []


@pytest.mark.parametrize(
    ("name", "odd", "others"),
    [
        ("shape", "all_reduce of [5] float32 with SUM as call 2 of",
         "where ranks 0-2 called it of [2] float32 with SUM"),
        ("shape_of_a_list", "all_gather of 4 × [5] float32 as call 1 of",
         "where ranks 0-2 called it of 4 × [2] float32"),
        ("operation", "broadcast of [2] float32 from rank 0 as call 1 of",
         "where ranks 0-2 called all_reduce of [2] float32 with SUM"),
        ("root", "broadcast of [64] float32 from rank 3 as call 1 of",
         "where ranks 0-2 called it of [64] float32 from rank 0"),
        ("handle", "all_reduce (async_op) of [2] float32 with SUM as call 1 of",
         "where ranks 0-2 called it of [5] float32 with SUM"),
        ("one_more", "barrier as call 1 of", "but ranks 0-2 ended the test without it"),
    ],
)  # fmt: skip
def test_the_differing_rank_is_reported_first(
    ran: Scenario, name: str, odd: str, others: str
) -> None:
    case = ran[name]
    assert case.outcome == "failure"
    assert case.message.startswith(f"rank 3 of 4 on local1: called {odd} the default group (")
    assert others in case.message.splitlines()[0]


@pytest.mark.parametrize("name", ["one_less", "left_before_a_timeout", "left_in_teardown"])
def test_a_rank_that_left(ran: Scenario, name: str) -> None:
    assert ran[name].message.startswith(
        "rank 3 of 4 on local1: left the test without entering the barrier (test_differing.py:"
    )


def test_the_error_that_a_call_hides_is_reported(ran: Scenario) -> None:
    line = ran["error_hidden_by_a_barrier"].message.partition("\n")[0]
    assert line.startswith("rank 3 of 4 on local1: called barrier as call 1 of the default group (")
    assert re.search(
        r"after test_differing.py:\d+ raised ValueError: shard 17 is bad\), where", line
    )


def test_ranks_that_wait_for_each_other_in_two_groups(ran: Scenario) -> None:
    message = ran["other_group"].message
    assert message.startswith(
        "rank 3 of 4 on local1: waits in all_reduce of [2] float32 with SUM as call 1 of group "
    )
    assert "(ranks 2-3) (test_differing.py:" in message
    assert "while ranks 0-2 wait in all_reduce of [2] float32 with SUM as call 2 of" in message


def test_without_a_majority_all_are_named(ran: Scenario) -> None:
    message = ran["two_of_four"].message
    line = "ranks 0,2 called all_reduce of [2] float32 with SUM as call 1 of"
    assert message.startswith(f"ranks 0-3 of 4 on local0,local1: {line}")
    assert "called it of [3] float32 with SUM" in message


@pytest.mark.parametrize(
    "name", ["raised_early", "error_that_the_test_expects", "differences_that_are_allowed"]
)
def test_allowed_differences_are_not_blamed(ran: Scenario, name: str) -> None:
    assert ran[name].message.startswith("rank 3 of 4 on local1: assert 3 != 3")
    assert "called" not in ran[name].text


def test_a_timeout_that_the_test_expects_is_waited_for(ran: Scenario) -> None:
    assert ran["timeout_that_the_test_expects"].outcome == "passed"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("received_from_nobody", "recv of [2] float32 as message 1 of rank 1 to rank 3 (test_diff"),
        ("handle_of_a_batch", "irecv of [2] float32 as message 1 of rank 1 to rank 3 (test_diff"),
        ("received_from_no_rank_at_all", "recv of [2] float32 as message 1 of any rank to rank 3"),
    ],
)
def test_a_message_that_nobody_sends(ran: Scenario, name: str, call: str) -> None:
    assert ran[name].message.startswith(f"rank 3 of 4 on local1: waits in {call}")
    assert "while ranks 0-2 wait in barrier as call 1 of the default group" in ran[name].message


def test_ranks_that_all_receive(ran: Scenario) -> None:
    assert "rank 0 waits in recv of [2] float32 as message 1 of rank 1" in ran["all_receive"].text


def test_a_sender_that_left(ran: Scenario) -> None:
    assert ran["left_a_receiver"].message.startswith(
        "rank 1 of 4 on local0: left the test without a send for the recv (test_differing.py:"
    )


def test_a_message_is_waited_for(ran: Scenario) -> None:
    assert ran["slow_message"].outcome == "passed"
