"""Coverage of code in ranks: of pytest-cov under pytest-xdist, and of `coverage run`.

Of pytest-cov without workers: tests/dayone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.contrib.coverage import NAME, Measured, RanksCoverage, mapped
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.protocol.messages import Shape, TornDown, WorldInfo
from tests.inner import (
    InnerRun,
    clean_env,
    junit_command,
    released_plugins,
    run_pytest,
    run_to_end,
    write_files,
)
from tests.watched import Watch

LIB = """\
def by_rank(rank):
    if rank == 0:
        return "first"
    return "other"


def crashes():
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)


def fails():
    raise ValueError


def hidden():
    return 1


def sent(*, world):
    return world.rank


def forked():
    return 2


def never():
    return 3
"""
START = """\
import coverage, runpy

coverage.process_startup()  # what its .pth file does where it is installed
runpy.run_path("program.py", run_name="__main__")
"""
PROGRAM = """\
def program():
    return 4


if __name__ == "__main__":
    program()
"""
TESTS = """
    import os, subprocess, sys
    import lib, pytest

    def test_by_rank(rank):
        lib.by_rank(rank)

    def test_one_fails(rank):
        if rank == 1:
            lib.fails()

    def test_crashes(rank):
        if rank == 1:
            lib.crashes()

    @pytest.mark.no_cover
    def test_hidden(rank):
        lib.hidden()

    def test_program(rank):
        if rank == 0:
            subprocess.run([sys.executable, "start.py"], check=True)

    def test_fork(rank):
        if rank == 1:
            pid = os.fork()
            if pid == 0:
                lib.forked()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0

    def test_sent(cluster):
        assert cluster.world().run(lib.sent) == [0, 1]
"""
RC = """\
[run]
source = .
branch = true
patch =
    subprocess
    fork
    _exit
"""
RAN = {"by_rank": {3, 4}, "fails": {13}, "sent": {21}, "forked": {25}}
"""Lines of LIB that only ranks and their forked children run."""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH of pytest-cov and coverage alone."""
    directory = tmp_path_factory.mktemp("plugins")
    for path in released_plugins().glob("*cov*"):
        (directory / path.name).symlink_to(path)
    return str(directory)


@pytest.fixture(scope="module", params=["xdist", "coverage run"])
def covered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plugins: str
) -> tuple[str, InnerRun, dict[str, Any]]:
    """The way of measuring, the run, and coverage's JSON report."""
    how, directory = request.param, tmp_path_factory.mktemp("covered")
    write_files(directory, test_it=TESTS)
    (directory / "lib.py").write_text(LIB)
    (directory / "program.py").write_text(PROGRAM)
    (directory / "start.py").write_text(START)
    (directory / ".coveragerc").write_text(RC)
    env = {"PYTHONPATH": plugins, "COLUMNS": "200"}
    args = ["--mnode-nodes=2", "--mnode-launcher=local"]
    if how == "coverage run":  # with `patch`, the data files must be combined
        watch = Watch(directory / "tmp")
        env = clean_env() | env | watch.env
        python, *argv = junit_command(directory, *args)
        coverage = [python, "-m", "coverage"]
        run = run_to_end([*coverage, "run", *argv], directory, env, limit_s=120)
        watch.expect_nothing_left()
        for words in (["combine"], ["json", "--show-contexts"]):
            subprocess.run([*coverage, *words], cwd=directory, env=env, timeout=60, check=False)
    else:
        cov = ["--cov", "--cov-context=test", "--cov-report=json", "--cov-fail-under=99", "-n1"]
        run = run_pytest(directory, *args, *cov, env=env, limit_s=120)
    report = directory / "coverage.json"
    assert report.exists(), run.output
    return how, run, json.loads(report.read_text())


def test_lines_that_only_ranks_run_are_covered(
    covered: tuple[str, InnerRun, dict[str, Any]],
) -> None:
    _, run, report = covered
    lib = report["files"]["lib.py"]
    ran = set(lib["executed_lines"])
    assert {name for name, lines in RAN.items() if not lines <= ran} == set(), run.output
    assert {9, 17, 29} <= set(lib["missing_lines"])
    assert [2, 3] in lib["executed_branches"]
    assert [2, 4] in lib["executed_branches"]
    assert report["files"]["program.py"]["missing_lines"] == []
    assert run.outcomes() == {
        "test_by_rank": "passed",
        "test_one_fails": "failure",
        "test_crashes": "failure",
        "test_hidden": "passed",
        "test_program": "passed",
        "test_fork": "passed",
        "test_sent": "passed",
    }, run.output


def test_a_rank_that_died_is_named(covered: tuple[str, InnerRun, dict[str, Any]]) -> None:
    _, run, _ = covered
    assert "coverage lacks data of rank 1 of 2 on local1 for this test" in run.output, run.output
    assert run.output.count("coverage lacks") == 1, run.output


def test_the_bound_counts_ranks(covered: tuple[str, InnerRun, dict[str, Any]]) -> None:
    how, run, report = covered
    if how != "coverage run":
        total = f"{report['totals']['percent_covered']:.2f}%"
        assert f"Required test coverage of 99% not reached. Total coverage: {total}" in run.output


def test_nothing_is_left(covered: tuple[str, InnerRun, dict[str, Any]]) -> None:
    _, run, _ = covered
    directory = run.junit.parent
    left = {path.name for path in directory.glob(".coverage*")} - {".coveragerc"}
    assert left == {".coverage"}, left


def contexts_of(data: Path) -> set[str]:
    sys.path.append(str(released_plugins()))
    try:
        from coverage import CoverageData  # type: ignore[import-not-found]
    finally:
        sys.path.pop()
    measured = CoverageData(str(data))
    measured.read()
    return set(measured.measured_contexts())


def test_contexts_name_tests(covered: tuple[str, InnerRun, dict[str, Any]]) -> None:
    how, run, _ = covered
    if how != "coverage run":
        found = contexts_of(run.junit.parent / ".coverage")
        assert "test_it.py::test_by_rank|run" in found


def test_a_node_without_coverage_is_named(tmp_path: Path, plugins: str) -> None:
    lacks = """
        import sys

        def pytest_collection_finish(session):
            if session.config.pluginmanager.has_plugin("mnode-rank-session"):
                sys.modules["coverage"] = None
    """
    write_files(tmp_path, conftest=lacks, test_it="def test_it(world): assert world.size == 2")
    run = run_pytest(
        tmp_path,
        *("--mnode-nodes=2", "--mnode-launcher=local", "--cov=."),
        env={"PYTHONPATH": plugins},
    )
    assert run.outcomes() == {"test_it": "passed"}, run.output
    why = "ModuleNotFoundError: import of coverage halted; None in sys.modules"
    lost = f"coverage lacks data of ranks for this test: {os.uname().nodename}: {why}"
    assert run.output.count(lost) == 1, run.output


def test_files_of_another_python_are_mapped_to_this_one() -> None:
    here = sysconfig.get_path("purelib")
    assert mapped("/node/lib/site/numpy/a.py", "/node/lib/site") == f"{here}/numpy/a.py"
    assert mapped("/work/lib.py", "/node/lib/site") == "/work/lib.py"
    assert mapped(f"{here}/a.py", here) == f"{here}/a.py"


def test_data_that_cannot_be_read_are_said_for_every_test(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ranks = RanksCoverage(None, pytestconfig)
    monkeypatch.setattr(ranks, "_warn", lambda text, nodeid: said.append(nodeid))
    world = WorldInfo("w1", Shape(1, 1), ("node0",))
    torn_down = TornDown(data={NAME: Measured((b"no data of coverage",))})
    outcome = Outcome(world, {0: RankState(0, "node0", torn_down=torn_down)}, 1.0)
    for nodeid in ("test_a", "test_b"):
        ranks.pytest_mnode_of_ranks(nodeid, outcome)
    assert said == ["test_a", "test_b"]
