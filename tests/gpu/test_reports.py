"""Ranks on a GPU that fail or hang: the report names the rank, and the next test passes."""

from __future__ import annotations

import pytest

from tests.scenario import Scenario, run_scenario

FIRST = "rank 1 of 2 on local1: first"
COUNTED = "left the test without entering the collective of the default group"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    directory = tmp_path_factory.mktemp("on_gpu")
    return run_scenario("on_gpu", directory, "--mnode-nodes=2", "--mnode-backend=nccl")


def test_every_next_test_ran(ran: Scenario) -> None:
    assert len(ran.nexts) == len(ran.cases) > 10
    assert set(ran.nexts.values()) == {"passed"}, ran.nexts


def test_only_these_tests_ran_until_their_limit(ran: Scenario) -> None:
    hang = {"absent_from_collective", "absent_from_send", "kernel_without_end"}
    assert set(ran.ended_by_limit()) == hang


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("absent_from_collective", "no end within 4 s: did not enter the all_reduce (test_on_gpu"),
        ("left_without_collective", "left the test without entering the all_reduce (test_on_gpu"),
        ("absent_from_send", "no end within 4 s: it is at test_on_gpu.py:"),
        ("raises_while_another_waits", "ValueError: loss is nan"),
        ("index_out_of_range", "device-side assert"),
        ("error_that_nobody_reads", "CUDA error: device-side assert triggered; it came to light"),
        ("out_of_memory", "CUDA out of memory. Tried to allocate 4096.00 GiB"),
        ("kernel_without_end", "no end within 3 s: it is at the end of the body, where it waits"),
        ("killed", "killed by SIGKILL (not by pytest-mnode)"),
        ("unequal_iterations", COUNTED),
        ("unequal_functional_collectives", "left the test without entering the "),
        ("wrong_sum", "AssertionError: Tensor-likes are not close!"),
    ],
)
def test_the_rank_and_what_happened_to_it_come_first(ran: Scenario, name: str, what: str) -> None:
    case = ran[name]
    assert case.outcome == "failure"
    assert case.first_line.removesuffix("]").removesuffix(": first") == "[rank 1 of 2 on local1"
    first = case.text.partition("[rank 0 of 2 on local0")[0]
    assert what in first


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("different_collectives", "all_reduce of [1024] float32 with SUM as call 1 of the default"),
        ("different_shapes", "all_reduce of [1024] float32 with SUM as call 1 of the default"),
        ("mesh_fails", "assert 2.0 == 3"),
    ],
)
def test_both_ranks(ran: Scenario, name: str, what: str) -> None:
    assert ran[name].first_line.startswith("[ranks 0-1 of 2 on local0,local1")
    assert what in ran[name].text


def test_memory_of_the_device_that_a_test_keeps(ran: Scenario) -> None:
    assert ran["kept_memory"].outcome == "error"
    assert "rank 1 on local1 left 1024 MiB of device memory behind" in ran["kept_memory"].text


def test_stacks_show_only_threads_of_the_test(ran: Scenario) -> None:
    shown = "\n".join(case.text for case in ran.cases.values())
    for noise in ("sympy", "_count_for_ever", "frame #", "<no Python frame>"):
        assert noise not in shown
