"""A run of a part of the tests certifies nothing, however the others were left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inner import run_here, run_pytest, write_files

TESTS = """
    import pathlib
    import pytest

    pytestmark = pytest.mark.criterion

    def test_right():
        pass

    def test_mended():
        assert pathlib.Path("mended").exists()
"""


def facts_of(pytester: pytest.Pytester, *args: str) -> dict[str, Any]:
    """What a certificate says of its run; in a process of its own if it has workers."""
    if "-n1" in args:
        run = run_pytest(pytester.path, "--mnode-report=report", *args)
    else:
        run = run_here(pytester, "--mnode-report=report", *args)
    page = pytester.path / "report" / "certificate.json"
    assert page.exists(), run.output
    facts: dict[str, Any] = json.loads(page.read_text())["run"]
    page.unlink()
    return facts


def left_out(facts: dict[str, Any]) -> dict[str, list[str]]:
    """The tests that the manifest names."""
    lists = ("deselected", "removed", "not_run", "repeated")
    return {name: facts["manifest"][name] for name in lists if facts["manifest"][name]}


def test_deselected_tests_are_named(pytester: pytest.Pytester) -> None:
    write_files(pytester.path, test_it=TESTS)
    assert left_out(facts_of(pytester)) == {}
    (pytester.path / "mended").touch()
    last_failed = facts_of(pytester, "-n1", "--lf", ".")
    assert last_failed["cut_short"] == ["--lf"]
    assert left_out(last_failed) == {"deselected": [RIGHT]}
    assert facts_of(pytester, "--lf", ".")["cut_short"] == []  # no test failed before
    chosen = facts_of(pytester, "-k", "right")
    assert (chosen["manifest"]["collected"], left_out(chosen)) == (2, {"deselected": [MENDED]})
    assert left_out(facts_of(pytester, RIGHT)) == {"deselected": [MENDED]}
    assert left_out(facts_of(pytester, f"--deselect={RIGHT}")) == {"deselected": [RIGHT]}


def test_deselected_tests_are_noted_if_only_tests_request_nodes(pytester: pytest.Pytester) -> None:
    module = """
        import pytest
        pytestmark = pytest.mark.criterion
        def test_a(cluster): pass
        def test_b(cluster): pass
    """
    write_files(pytester.path, test_it=module)
    run = run_pytest(pytester.path, "--mnode-launcher=local", "-k", "test_a")
    assert "1 test deselected: test_it.py::test_b" in run.output


RIGHT, MENDED = "test_it.py::test_right", "test_it.py::test_mended"
SHORTENING = {
    "in-place": """
        def pytest_collection_modifyitems(items): items[:] = items[:1]
    """,
    "around-all-others": """
        import pytest
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(items):
            result = yield
            items[:] = items[:1]
            return result
    """,
    "when-collected": """
        import pytest
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_finish(session): del session.items[1:]
    """,
    "out-of-its-file": """
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_make_collect_report(collector):
            report = yield
            if isinstance(collector, pytest.Module):
                del report.result[1:]
            return report
    """,
}
NOT_RUNNING = {
    "skipped": """
        def pytest_runtest_protocol(item): return item.name != "test_right" or None
    """,
    "faked": """
        import pytest
        def pytest_runtest_protocol(item):
            if item.name == "test_right":
                return None
            for when in ("setup", "call", "teardown"):
                report = pytest.TestReport.from_item_and_call(
                    item, pytest.CallInfo.from_call(lambda: None, when)
                )
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """,
    "never-begun": """
        import pytest
        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(session):
            session.shown, session.items = session.items, session.items[:1]
        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish(session): session.items = session.shown
    """,
}
TWICE = """
    from _pytest.runner import runtestprotocol
    def pytest_runtest_protocol(item, nextitem):
        if item.name == "test_right":
            return None
        for time in 1, 2:
            runtestprotocol(item, nextitem=nextitem, log={log})
        return True
"""
REPEATING = {
    "twice": TWICE.format(log=True),
    "first-hidden": TWICE.format(log="time == 2"),
}
RERUN = """
    from _pytest.runner import runtestprotocol
    def pytest_runtest_protocol(item, nextitem):
        if item.name == "test_right":
            return None
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for report in reports[:2]:
            report.outcome = "rerun" if report.when == "call" else report.outcome
            item.ihook.pytest_runtest_logreport(report=report)
        runtestprotocol(item, nextitem=nextitem)
        return True
"""
"""As pytest-rerunfailures does, which reports a failed run of a test as a rerun."""
KEEPING = {
    "reversed": "def pytest_collection_modifyitems(items): items.reverse()",
    "replaced": """
        import copy
        def pytest_collection_modifyitems(items): items[:] = map(copy.copy, items)
    """,
}


@pytest.mark.parametrize(
    ("conftest", "named"),
    [
        *(pytest.param(text, "removed", id=how) for how, text in SHORTENING.items()),
        *(pytest.param(text, "not_run", id=how) for how, text in NOT_RUNNING.items()),
        *(pytest.param(text, "repeated", id=how) for how, text in REPEATING.items()),
        *(pytest.param(text, "", id=how) for how, text in KEEPING.items()),
        pytest.param(RERUN, "", id="rerun"),
    ],
)
def test_a_test_that_a_plugin_leaves_out_or_repeats_is_named(
    pytester: pytest.Pytester, conftest: str, named: str
) -> None:
    (pytester.path / "mended").touch()
    write_files(pytester.path, test_it=TESTS, conftest=conftest)
    facts = facts_of(pytester)
    assert facts["cut_short"] == []
    assert left_out(facts) == ({named: [MENDED]} if named else {})


def test_each_is_named_with_workers_and_groups(pytester: pytest.Pytester) -> None:
    tests = """
        import pytest
        pytestmark = [pytest.mark.criterion, pytest.mark.xdist_group("one")]
        def test_removed(): pass
        def test_skipped(): pass
        def test_twice(): pass
    """
    conftest = """
        from _pytest.runner import runtestprotocol
        def pytest_collection_modifyitems(items): del items[0]
        def pytest_runtest_protocol(item, nextitem):
            for log in (False, True) if "twice" in item.name else ():
                runtestprotocol(item, nextitem=nextitem, log=log)
            return True
    """
    write_files(pytester.path, test_it=tests, conftest=conftest)
    facts = facts_of(pytester, "-n1", "--dist=loadgroup")
    removed, skipped, twice = ([f"test_it.py::test_{n}"] for n in ("removed", "skipped", "twice"))
    assert left_out(facts) == {"removed": removed, "not_run": skipped, "repeated": twice}
