"""Plugins that replace pytest's test loop, and plugins that drop a test."""

from __future__ import annotations

import pytest

from tests.inner import run_here, run_pytest, write_files

LOCAL = ("--mnode-nodes=2", "--mnode-launcher=local")
LOOPS = {
    "loops, and looks for a worker": """
        import pytest
        from _pytest.runner import runtestprotocol

        def pytest_configure(config):
            if hasattr(config, "workerinput"):
                config.seed = config.workerinput["seed"] + 1

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            for time in 1, 2:
                item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
                print(item.name, time, *(report.outcome for report in reports))
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """,
    "runs elsewhere": """
        import json, os, threading
        import pytest
        from _pytest.runner import runtestprotocol

        def forked(item, nextitem):
            readable, writable = os.pipe()
            if os.fork() == 0:
                serialized = item.config.hook.pytest_report_to_serializable
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
                data = [serialized(config=item.config, report=report) for report in reports]
                os.write(writable, json.dumps(data).encode())
                os._exit(0)
            os.close(writable)
            os.wait()
            read = item.config.hook.pytest_report_from_serializable
            return [read(config=item.config, data=d) for d in json.load(open(readable))]

        def threaded(item, nextitem):
            reports = []
            def run():
                reports.extend(runtestprotocol(item, nextitem=nextitem, log=False))
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            return reports

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            run = forked if item.name == "test_fails" else threaded
            for report in run(item, nextitem):
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """,
    "swallows": """
        import pytest

        class Late:
            @pytest.hookimpl(tryfirst=True)
            def pytest_runtest_protocol(self, item, nextitem):
                return True

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(session):
            session.config.pluginmanager.register(Late(), "late")
    """,
    "never runs": """
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(session):
            return True
    """,
}


@pytest.mark.parametrize(
    ("plugin", "outcomes", "line"),
    [
        ("loops, and looks for a worker", "passed failure", "test_fails 2 passed failed passed"),
        ("runs elsewhere", "error error", "a plugin runs this test in a child process of its own"),
        ("swallows", "error error", "late may have suppressed it"),
        ("never runs", "", "test_it.py::test_fails was selected but never ran"),
    ],
)
def test_no_plugin_drops_a_test_silently(
    pytester: pytest.Pytester, plugin: str, outcomes: str, line: str
) -> None:
    tests = """
        def test_passes(world): pass
        def test_fails(world): assert world.rank == 0
    """
    write_files(pytester.path, conftest=LOOPS[plugin], test_it=tests)
    if plugin in ("swallows", "never runs"):  # without ranks
        run = run_here(pytester, *LOCAL, "-s")
    else:
        run = run_pytest(pytester.path, *LOCAL, "-s", limit_s=60)
    assert list(run.outcomes().values()) == outcomes.split(), run.output
    assert line in run.output, run.output
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
