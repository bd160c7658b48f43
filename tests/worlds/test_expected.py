"""Tests marked xfail in ranks: as in plain pytest, only setup and body can fail as expected."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, run_pytest, write_files

CONFTEST = """
    import os
    import pytest

    @pytest.fixture(scope="class")
    def shelf(rank):
        yield os.getpid()
        raise OSError("the shelf fell")
"""
TESTS = """
    import os, time, unittest
    import pytest

    @pytest.fixture
    def untidy(rank):
        yield
        if rank == 1:
            raise OSError("could not tidy up")

    @pytest.fixture
    def broken(rank):
        if rank == 1:
            raise OSError("could not begin")

    strict = pytest.mark.xfail(reason="known", strict=True)

    @strict
    def test_strict_with_an_untidy_rank(untidy): pass

    @pytest.mark.xfail(reason="known")
    def test_not_strict_with_an_untidy_rank(untidy): pass

    @strict
    def test_fails_in_setup(broken): pass

    @pytest.mark.xfail(reason="known", strict=True, raises=ValueError)
    def test_another_error_in_teardown(untidy): pass

    @strict
    def test_a_slow_rank(rank):
        time.sleep(2 * rank)

    @strict
    def test_a_dead_rank(rank):
        if rank == 1:
            time.sleep(0.2)
            os._exit(3)

    @pytest.mark.mnode
    class TestOfUnittest(unittest.TestCase):
        @unittest.expectedFailure
        def test_of_unittest(self):
            time.sleep(2 * int(os.environ["RANK"]))

    class TestShelf:
        KEPT = []

        @strict
        def test_unexpected(self, shelf): self.KEPT.append(shelf)

        def test_shelf_is_kept(self, shelf): assert self.KEPT == [os.getpid()]
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("expected")
    write_files(directory, conftest=CONFTEST, test_it=TESTS)
    return run_pytest(directory, "-rA", "--mnode-nodes=2", "--mnode-launcher=local")


def test_outcomes_are_those_of_plain_pytest(ran: InnerRun) -> None:
    assert ran.outcomes() == {
        "test_strict_with_an_untidy_rank": "failure",
        "test_not_strict_with_an_untidy_rank": "skipped",  # its teardown failed as expected
        "test_fails_in_setup": "skipped",
        "test_another_error_in_teardown": "failure",
        "test_a_slow_rank": "failure",
        "test_a_dead_rank": "failure",
        "test_of_unittest": "failure",
        "test_unexpected": "failure",
        "test_shelf_is_kept": "error",
    }, ran.output


@pytest.mark.parametrize(
    "name", ["strict_with_an_untidy_rank", "another_error_in_teardown", "a_slow_rank", "unexpected"]
)
def test_an_unexpected_pass_is_of_all_ranks(ran: InnerRun, name: str) -> None:
    failure = ran.cases()[f"test_{name}"].find("failure")
    assert failure is not None
    assert failure.get("message") == "ranks 0-1 of 2 on local0,local1: [XPASS(strict)] known"


def test_unittest_says_so_in_its_own_words(ran: InnerRun) -> None:
    failure = ran.cases()["test_of_unittest"].find("failure")
    assert failure is not None
    assert str(failure.text).startswith("[ranks 0-1 of 2 on local0,local1]\nUnexpected success")


def test_a_rank_that_did_not_pass_is_the_finding(ran: InnerRun) -> None:
    failure = ran.cases()["test_a_dead_rank"].find("failure")
    assert failure is not None
    assert "rank 1 of 2 on local1: exited with code 3" in str(failure.get("message"))
    assert "XPASS" not in str(failure.text)


def test_hook_wrappers_are_hidden_in_ranks(ran: InnerRun) -> None:
    """pytest itself cuts them off, but not from errors of a fixture in a conftest.py."""
    assert "the shelf fell" in ran.output
    assert "pytest_runtest_teardown" not in ran.output


def test_errors_of_wide_fixtures_are_said_once_when_they_end(ran: InnerRun) -> None:
    assert ran.output.count("E       OSError: the shelf fell") == 1, ran.output
    error = ran.cases()["test_shelf_is_kept"].find("error")
    assert error is not None
    assert "the shelf fell" in str(error.text)
