"""Unchanged test classes that start processes themselves run in worlds instead."""

from __future__ import annotations

import re

import pytest

from tests.inner import InnerRun, run_pytest
from tests.scenario import SCENARIOS

SKIPPED = {
    "test_too_few_gpus": "Need at least 8 CUDA devices",
    "test_unittest_skip": "not today",
    "test_skip_in_the_body": "found out late",
    "test_exit_code_of_a_skip": "CUDA is not available",
    "test_skips_by_exit_code": "Need at least 2 CUDA devices",
    "test_needs_a_device": "only supported in accelerator environments",
}
FAILED = {
    "test_expected_exit_that_did_not_come": r"(?s)^rank 0 of 2 on local0: .*exit code 7",
    "test_one_rank_asserts": r"^rank 1 of 4 on local0: AssertionError",
    "test_one_subtest_fails": r"^rank 2 of 4 on local1: AssertionError",
    "test_one_rank_never_comes": r"^rank 3 of 4 on local1: no end within 5 s: did not enter",
    "test_one_rank_exits": r"^rank 2 of 4 on local1: exited with code 3, in the test",
    "test_exit_after_the_last_collective": r"^rank 2 of 4 on local1: exited with code 3",
    "test_one_rank_skips": r"^rank 1 of 4 on local0: skipped \(alone\), but ranks 0,2-3 did not",
    "test_a_fails": r"^rank 1 of 2 on local1: AssertionError",
}
"""Tests that must fail, and the beginning of their message. All others pass."""
CONFTEST = """
def pytest_runtest_call(item):  # as DeepSpeed's starts processes
    assert not getattr(item.cls, "is_dist_test", False), "starts processes of its own"
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    folder = tmp_path_factory.mktemp("suites")
    (folder / "test_suites.py").write_text((SCENARIOS / "suites.py").read_text())
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = world_size\n")
    (folder / "tmp").mkdir()
    args = ("-rA", "--mnode-launcher=local", "--mnode-timeout=60")
    return run_pytest(folder, *args, env={"TMPDIR": str(folder / "tmp")})


def test_no_temporary_files_are_left(ran: InnerRun) -> None:
    """Not even by killed ranks; except files that pytest and torch themselves keep."""
    left = {path.name for path in (ran.junit.parent / "tmp").iterdir()}
    assert {name for name in left if not name.startswith(("pytest-of-", "torchinductor_"))} == set()


def test_outcomes(ran: InnerRun) -> None:
    outcomes = ran.outcomes()
    assert len(outcomes) > 40, ran.output
    expected = dict.fromkeys(outcomes, "passed")
    expected |= dict.fromkeys([*SKIPPED, "test_expected_failure"], "skipped")
    expected |= dict.fromkeys(FAILED, "failure")
    wrong = {name: found for name, found in outcomes.items() if found != expected[name]}
    assert not wrong, ran.output


@pytest.mark.parametrize("name", SKIPPED)
def test_reason_of_a_skip(ran: InnerRun, name: str) -> None:
    [skipped] = ran.cases()[name].iter("skipped")
    assert SKIPPED[name] in str(skipped.get("message"))


@pytest.mark.parametrize("name", FAILED)
def test_the_first_failed_rank_is_named(ran: InnerRun, name: str) -> None:
    messages = [str(failure.get("message")) for failure in ran.cases()[name].iter("failure")]
    assert any(re.search(FAILED[name], message) for message in messages), messages


def test_threads_stay_in_the_controller(ran: InnerRun) -> None:
    assert "mnode.ranks" not in ran.properties("test_in_one_process")


@pytest.mark.parametrize(
    ("name", "ranks", "nodes"),
    [
        ("test_all_reduce", "4", "local0,local1"),
        ("test_create_group_cpu", "2", "local0,local1"),
        ("test_own_size", "4", "local0,local1"),
        ("test_each[ranks2]", "2", "local0,local1"),
        ("test_each[ranks4]", "4", "local0,local1"),
    ],
)
def test_size_of_the_class(ran: InnerRun, name: str, ranks: str, nodes: str) -> None:
    found = ran.properties(name)
    assert (found["mnode.ranks"], found["mnode.nodes"]) == (ranks, nodes)
