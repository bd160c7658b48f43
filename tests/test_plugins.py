"""Other plugins with tests in ranks: every report counts, and no plugin drops a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import InnerRun, run_pytest, write_files

LOCAL = ("--mnode-nodes=2", "--mnode-launcher=local")
WIDE = {"COLUMNS": "200"}

SUBTESTS = """
    import unittest
    import pytest

    def test_one_rank_fails_one(world, subtests):
        for i in range(3):
            with subtests.test("loss", i=i):
                assert not (i == 1 and world.rank == 1), f"loss {i} diverges"

    def test_all_ranks_fail_one(world, subtests):
        with subtests.test("first"):
            assert world.size == 0
        with subtests.test("second"):
            pass

    def test_different_numbers(world, subtests):
        for i in range(world.rank + 1):
            with subtests.test(i=i):
                assert i == 0

    def test_all_pass(world, subtests):
        with subtests.test(rank=world.rank):
            pass

    def test_fails_after_its_subtests(world, subtests):
        with subtests.test("fine"):
            pass
        assert world.rank == 0

    def test_writes_to_the_terminal(world, pytestconfig):
        pytestconfig.get_terminal_writer().line()  # as asserts do before pytest 9.1

    @pytest.mark.mnode
    class TestUnit(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.shared = 7

        def setUp(self):
            self.own = self.shared + 1

        def tearDown(self):
            assert self.own == 8

        def test_passes(self):
            self.assertEqual(self.own, 8)

        def test_subtest_fails(self):
            import os
            for i in range(3):
                with self.subTest(i=i):
                    self.assertFalse(i == 2 and os.environ["RANK"] == "0")

        def test_fails(self):
            self.assertEqual(self.own, 9)

        def test_teardown_fails(self):
            self.own = 9

        @unittest.skip("not today")
        def test_skip(self):
            raise AssertionError

        @unittest.expectedFailure
        def test_expected(self):
            raise AssertionError

        @unittest.expectedFailure
        def test_unexpected(self):
            pass

    class TestUnitWithFixtures(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def take(self, rank, process_group):
            self.rank = rank

        def test_one_rank_fails(self):
            self.assertEqual(self.rank, 0)
"""


REPORTS = """
    import os, signal
    import pytest

    class Other(pytest.TestReport):
        pass

    def reported(item, kind, outcome, when):
        longrepr = None if outcome == "passed" else "from a plugin"
        return kind(item.nodeid, item.location, {}, outcome, longrepr, when, extra=[item.name])

    MORE = {
        "test_second_report": (pytest.TestReport, "failed", "call"),
        "test_second_setup": (pytest.TestReport, "failed", "setup"),
        "test_other_class": (Other, "failed", "call"),
        "test_other_class_passes": (Other, "passed", "call"),
        "test_other_phase": (pytest.TestReport, "failed", "cleanup"),
        "test_other_outcome": (pytest.TestReport, "rerun", "call"),
    }

    def pytest_collection_modifyitems(items):
        for item in items:
            if item.name == "test_renamed":
                name = f"renamed/{item.nodeid}"
                if hasattr(item, "_id"):
                    item._id = type(item._id).parse(name)
                else:  # before pytest 9.2
                    item._nodeid = name

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(item):
        try:
            return (yield)
        finally:
            if item.name in MORE and os.environ.get("RANK") == "1":
                kind, outcome, when = MORE[item.name]
                report = reported(item, kind, outcome, when)
                item.ihook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if item.name == "test_outcome_changed" and call.when == "call":
            report.outcome = "rerun"
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        alarm = item.name == "test_alarm"
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, 100)
        result = yield
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return result
"""
COUNTED = {
    "test_second_report": "failure",
    "test_second_setup": "error",
    "test_other_class": "failure",
    "test_other_class_passes": "passed",
    "test_other_phase": "error",
    "test_other_outcome": "failure",
    "test_outcome_changed": "failure",
    "test_alarm": "passed",
    "test_renamed": "passed",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("plugins")
    counted = "\n".join(f"def {name}(world): pass" for name in COUNTED)
    write_files(directory, conftest=REPORTS, test_it=SUBTESTS, test_reports=counted)
    return run_pytest(directory, *LOCAL, env=WIDE)


def test_a_failed_subtest_of_any_rank_fails_the_test(ran: InnerRun) -> None:
    assert {name: kind for name, kind in ran.outcomes().items() if name not in COUNTED} == {
        "test_one_rank_fails_one": "failure",
        "test_all_ranks_fail_one": "failure",
        "test_different_numbers": "failure",
        "test_all_pass": "passed",
        "test_fails_after_its_subtests": "failure",
        "test_writes_to_the_terminal": "passed",
        "test_passes": "passed",
        "test_subtest_fails": "failure",
        "test_fails": "failure",
        "test_teardown_fails": "failure",
        "test_skip": "skipped",
        "test_expected": "skipped",
        "test_unexpected": "failure",
        "test_one_rank_fails": "failure",
    }, ran.output
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "line",
    [
        "SUBFAILED[loss] (i='1') test_it.py::test_one_rank_fails_one - rank 1 of 2 on local1: "
        "AssertionError: loss 1 diverges",
        "FAILED test_it.py::test_one_rank_fails_one - contains 1 failed subtest",
        "SUBFAILED[first] test_it.py::test_all_ranks_fail_one - ranks 0-1 of 2",
        "SUBFAILED(i='1') test_it.py::test_different_numbers - rank 1 of 2 on local1: "
        "assert 1 == 0",
        "SUBFAILED(i='2') test_it.py::TestUnit::test_subtest_fails - rank 0 of 2 on local0: "
        "AssertionError: True is not false",
    ],
)  # fmt: skip
def test_a_failed_subtest_is_named_with_its_ranks(ran: InnerRun, line: str) -> None:
    assert line in ran.output, ran.output


def test_ranks_without_the_failure_are_named_too(ran: InnerRun) -> None:
    assert "[rank 0 of 2 on local0: passed]" in ran.output
    assert "[rank 0 of 2 on local0: did not report it]" in ran.output


def test_every_report_of_a_plugin_counts(ran: InnerRun) -> None:
    found = {name: {e.tag for e in case} - {"properties"} for name, case in ran.cases().items()}
    expected = {name: set() if o == "passed" else {o} for name, o in COUNTED.items()}
    for name, kinds in expected.items():
        assert kinds <= found[name], (name, ran.output)
        assert bool(kinds) == bool(found[name]), (name, ran.output)
    assert "a plugin reported the outcome 'rerun' of call" in ran.output


def test_warnings_as_errors_apply_to_tests_only(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        test_it="""
            import warnings

            def test_uses_a_group(process_group, device, measure):
                import torch, torch.distributed as dist
                x = torch.ones(1, device=device)
                dist.all_reduce(x)
                measure("sum", x.item(), equals=2)

            def test_commands(cluster):
                assert cluster.world().run(lambda *, world: world.rank) == [0, 1]

            def test_warns(rank):
                if rank == 1:
                    warnings.warn("from a test")
        """,
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    run = run_pytest(tmp_path, *LOCAL, env=WIDE)
    assert run.outcomes() == {
        "test_uses_a_group": "passed",
        "test_commands": "passed",
        "test_warns": "failure",
    }, run.output
    assert "rank 1 of 2 on local1: UserWarning: from a test" in run.output
