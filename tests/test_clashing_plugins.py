"""Plugins whose work a rank would do a second time, or undo: what they do in short, under their
names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import InnerRun, run_here, run_pytest, write_files

LOCAL = ("--mnode-nodes=2", "--mnode-launcher=local")
RETRY = """
    import pytest

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(item, call):
        report = (yield).get_result()
        if call.when != "call" or call.excinfo is None:
            return
        hook = item.ihook
        parent = pytest.Class.from_parent(item.session, name="Fakeboi")
        pytest.CallInfo.from_call(
            lambda: hook.pytest_runtest_teardown(item=item, nextitem=parent), when="teardown"
        )
        item._initrequest()
        pytest.CallInfo.from_call(lambda: hook.pytest_runtest_setup(item=item), when="setup")
        call = pytest.CallInfo.from_call(lambda: hook.pytest_runtest_call(item=item), when="call")
        again = pytest.TestReport.from_item_and_call(item, call)
        report.outcome, report.longrepr = again.outcome, again.longrepr
"""
TESTMON = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--testmon", dest="testmon", action="store_true")

    def pytest_configure(config):
        if config.getoption("testmon"):
            config.pluginmanager.register(Collect())

    class Fake:
        nodeid = "test_it.py::test_stable"

    class Collect:
        def pytest_collection_modifyitems(self, config):
            config.hook.pytest_deselected(items=[Fake()])

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item, call):
            result = yield
            if call.when == "teardown":
                lines = {item.nodeid: {"test_it.py": {3, 4}}}
                result.get_result().nodes_files_lines = lines

        def pytest_runtest_logreport(self, report):
            if report.when == "teardown":
                print("lines", sorted(report.nodes_files_lines.values(), key=str))
"""
SYRUPY = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--snapshot-update", dest="update_snapshots", action="store_true")

    @pytest.fixture
    def snapshot(): return {}
"""
TESTS = """
    from pathlib import Path

    def test_twice(world):
        tried = Path(__file__).with_name(f"tried{world.rank}")
        if not tried.exists():
            tried.touch()
            raise ConnectionError("first time")

    def test_fails(world): assert world.rank == 0
    def test_next(world): pass
    def test_here(): pass
    def test_late(request): request.getfixturevalue("world")
"""


def run_with(directory: Path, name: str, plugin: str, *args: str, tests: str = TESTS) -> InnerRun:
    write_files(directory, test_it=tests, **{name: plugin})
    env = {"PYTHONPATH": str(directory), "COLUMNS": "200"}
    return run_pytest(directory, *LOCAL, "-p", name, *args, env=env, limit_s=100)


def test_a_test_that_is_run_again_in_a_wrapper(tmp_path: Path) -> None:
    run = run_with(tmp_path, "pytest_retry", RETRY)
    assert run.outcomes() == {
        "test_twice": "passed",
        "test_fails": "failure",
        "test_next": "passed",
        "test_here": "passed",
        "test_late": "failure",
    }
    assert run.output.count("[rank 1 of 2 on local1]") == 1, run.output
    assert "def test_fails(world): assert world.rank == 0" in run.output
    assert "pytest_mnode/controller" not in run.output, "the frames of this package"
    assert "world lives in ranks, and this test runs in the controller" in run.output
    assert "add @pytest.mark.mnode" in run.output


def test_lines_and_snapshots_of_the_controller_are_kept_alone(tmp_path: Path) -> None:
    write_files(tmp_path, syrupy=SYRUPY)
    args = ("--testmon", "-s", "-p", "syrupy", "--snapshot-update")
    tests = """
        def test_next(world): pass
        def test_here(snapshot): pass
    """
    run = run_with(tmp_path, "testmon", TESTMON, *args, tests=tests)
    assert run.outcomes() == {"test_next": "passed", "test_here": "passed"}, run.output
    assert "lines []" in run.output
    assert "lines [{'test_it.py': {3, 4}}]" in run.output


def test_snapshots_of_ranks_are_not_updated(pytester: pytest.Pytester) -> None:
    tests = "def test_snap(world, snapshot): pass"
    write_files(pytester.path, syrupy=SYRUPY, test_it=tests)
    pytester.syspathinsert()
    run = run_here(pytester, *LOCAL, "-p", "syrupy", "--snapshot-update")
    assert "--snapshot-update: test_it.py::test_snap runs in ranks, where" in run.output
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
