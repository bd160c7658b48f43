"""Ranks that hang: the report comes at the limit, names the absent rank, and has every stack."""

from __future__ import annotations

import pytest

from tests.inner import need_gdb
from tests.scenario import LIMIT, TWO_OF_TWO, Scenario, run_scenario


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return run_scenario("hanging", tmp_path_factory.mktemp("hanging"), *TWO_OF_TWO)


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 10
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


def test_every_report_came_at_its_limit(ran: Scenario) -> None:
    """Neither earlier, nor when the awaited sleep of a minute ends: the stacks still show it."""
    # An alarm goes off before the limit, and calls that differ end a test.
    assert {*ran.cases} - {*ran.ended_by_limit()} <= {"alarm", "different_collectives"}
    for name in ran.ended_by_limit():
        limit_s = {"absent_from_collective": 2, "worker_of_a_loader": 3}.get(name, 1)
        assert f"{LIMIT}{limit_s} s" in ran[name].text
        assert ran[name].time_s >= limit_s


def test_absent_rank_is_named_first(ran: Scenario) -> None:
    case = ran["absent_from_collective"]
    assert case.outcome == "failure"
    assert case.message.startswith(
        "rank 2 of 4 on local1: no end within 2 s: did not enter the all_reduce (test_hanging.py:"
    )
    assert "that ranks 0-1,3 wait in; it is at test_hanging.py:" in case.message
    assert "in load_checkpoint: time.sleep(60)" in case.message


def test_stack_and_output_of_every_rank(ran: Scenario) -> None:
    case = ran["absent_from_collective"]
    absent = case.part("rank 2 of 4 on local1: first]")
    assert "stack of rank 2:" in absent
    assert "in load_checkpoint" in absent
    assert "rank 2 was here" in absent
    waiting = case.part("ranks 0-1,3 of 4 on local0,local1: caused by the first failure]")
    assert "stack of ranks 0-1,3:" in waiting
    assert "in all_reduce" in waiting
    assert "rank 3 was here" in waiting
    assert "_pytest" not in case.text


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("asynchronous_collective", "threading.Event().wait()"),
        ("loop_in_python", "in test_loop_in_python: "),
        ("awaited_in_teardown", "in load_checkpoint: time.sleep(60)"),
        ("loop_that_holds_the_gil", 're.match(r"(a|aa)+$", "a" * 200 + "b")'),
        ("sleep_that_holds_the_gil_and_blocks_signals", "ctypes.PyDLL(None).sleep(60)"),
    ],
)
def test_the_absent_rank_is_named_wherever_it_is(ran: Scenario, name: str, where: str) -> None:
    case = ran[name]
    assert case.first_line == "[rank 1 of 2 on local1: first]"
    assert "did not enter the " in case.message
    assert where in case.message
    assert "stack of rank 1:" in case.part("rank 1 of 2")
    assert "waits " in case.part("rank 0 of 2 on local0: caused by the first failure]")


@pytest.mark.parametrize("name", ["left_without_collective", "waits_in_a_thread"])
def test_rank_that_left(ran: Scenario, name: str) -> None:
    place = "thread courier)" if name == "waits_in_a_thread" else "test_hanging.py:"
    assert ran[name].message.startswith(
        f"rank 1 of 2 on local1: left the test without entering the barrier ({place}"
    )


def test_a_rank_that_waits_in_its_teardown_is_shown_there(ran: Scenario) -> None:
    """Its stack at the limit of the body, which it had left, is out of date."""
    waiting = ran["awaited_in_teardown"].part("rank 0 of 2")
    assert "in leaves_together: dist.barrier()" in waiting
    assert "in barrier" in waiting.partition("stack of rank 0:")[2]


def test_different_collectives(ran: Scenario) -> None:
    case = ran["different_collectives"]
    assert case.first_line == "[rank 0 of 4 on local0: first]"
    victims = case.part("rank 0 of 4 on local0: caused by the first failure]")
    assert "dist.barrier(), but ranks 1-3 in all_gather_object" in victims
    assert "but rank 0 in barrier" in case.part("ranks 1-3 of 4 on local0,local1: caused by")


def test_stopped_process(ran: Scenario) -> None:
    case = ran["stopped_process"]
    assert "no stack could be read: its process is stopped (SIGSTOP)" in case.message
    assert case.first_line == "[rank 1 of 2 on local1: first]"


def test_finalizer_that_hangs_is_a_failure_not_a_pass(ran: Scenario) -> None:
    case = ran["finalizer_hangs_on_one"]
    assert case.outcome == "failure"
    assert "test_finalizer_hangs_on_one PASSED" not in ran.run.output
    assert "in load_checkpoint: time.sleep(60)" in case.part("rank 1 of 2 on local1]")


def test_a_hang_without_a_python_frame_has_its_c_stack(ran: Scenario) -> None:
    case = ran["hangs_in_c_when_freed"]
    assert case.message.startswith(
        "rank 1 of 2 on local1: no end within 1 s: it is at no Python frame of the test; its "
        "thread mnode-rank1 (main): in futex: waits for a lock or another thread"
    )
    assert "threads of rank 1:\nthread mnode-rank1 (main): in futex" in case.text
    need_gdb()
    _, found, frames = case.text.partition("C stack, most recent call first:\n")
    assert found, case.text
    assert "sem_" in frames.partition("\n[")[0]  # sem_wait, in which the destructor waits


def test_setup_that_hangs(ran: Scenario) -> None:
    case = ran["setup_hangs_on_one"]
    assert case.outcome == "error"
    assert "in load_checkpoint: time.sleep(60)" in case.part("rank 1 of 2 on local1]")


def test_alarm_of_another_plugin(ran: Scenario) -> None:
    case = ran["alarm"]
    assert "TimeoutError: the alarm went off" in case.part("rank 1 of 2 on local1: first]")
    assert "caused by the first failure" in case.text


def test_a_worker_of_a_loader_shows_its_own_stack(ran: Scenario) -> None:
    text = ran["worker_of_a_loader"].text
    _, found, stack = text.partition("stacks of child processes of ranks 0-1:\npt_data_worker:\n")
    assert found, text
    assert "in __getitem__" in stack
