"""Ranks that all passed a test begin the next one while the controller still reports the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import InnerRun, run_pytest, write_files

CONFTEST = """
    import time
    from pathlib import Path
    from pytest_mnode.controller import rank_reports

    HERE, merged = Path(__file__).parent, rank_reports.merged

    def until_begun(item, *args):
        '''Report a test only once a rank has begun the next one, and note whether it has.'''
        number = int(item.name[-1])
        end = time.monotonic() + {limits_s}.get(number, 0)
        while not (begun := list(HERE.glob(f"body{{number + 1}}.*"))) and time.monotonic() < end:
            time.sleep(0.02)
        (HERE / f"reported{{number}}").write_text(str(len(begun) > 0))
        return merged(item, *args)

    rank_reports.merged = until_begun
"""
HOOK = """
    def pytest_runtest_logreport(report): pass
"""
LOOP = """
    def pytest_runtestloop(session):
        '''Skip a test that it named as the next one.'''
        one, two, three = session.items
        for item, after in (one, two), (three, None):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        return True
"""
STOP = """
    reported = rank_reports.merged

    def then_stop(item, *args):
        '''As a handler of a signal may, while the ranks run the next test.'''
        reports = reported(item, *args)
        item.session.shouldstop = "a signal"
        return reports

    rank_reports.merged = then_stop
"""
HELD = """
    import pytest
    from pathlib import Path

    @pytest.fixture(scope="module")
    def kept(world): return 1

    def test_1(kept): pass
    def test_2(world, kept): Path(__file__).with_name(f"body2.{world.rank}").write_text("x")
"""
TESTS = """
    import os
    from pathlib import Path
    HERE = Path(__file__).parent

    def note(world, number):
        with (HERE / f"body{number}.{world.rank}").open("a") as file: file.write("x")

    def test_1(world): note(world, 1)
    def test_2(world): note(world, 2)
    def test_3(world):
        note(world, 3)
        assert world.rank == 0
    def test_4(world): note(world, 4)
    def test_5(world):
        note(world, 5)
        if world.rank: os._exit(3)
    def test_6(world): note(world, 6)
"""


def ran(path: Path, *options: str, limits_s: dict[int, float], hook: str = "") -> InnerRun:
    """limits_s: of the wait before the report of a test, by its number."""
    write_files(path, conftest=CONFTEST.format(limits_s=limits_s) + hook, test_a=TESTS)
    return run_pytest(path, "--mnode-nodes=2", "--mnode-launcher=local", *options)


def bodies(path: Path, number: int) -> list[str]:
    """What each rank noted: one letter for each time that it ran this body."""
    return [file.read_text() for file in sorted(path.glob(f"body{number}.*"))]


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, InnerRun]:
    path = tmp_path_factory.mktemp("begun")
    return path, ran(path, "-k", "not test_3", limits_s={1: 20, 4: 20})


def test_the_next_test_begins_before_a_pass_is_reported(of_all: tuple[Path, InnerRun]) -> None:
    path, _ = of_all
    assert (path / "reported1").read_text() == "True"
    assert (path / "reported4").read_text() == "True"


def test_a_rank_that_dies_in_it_fails_it_and_it_runs_once(of_all: tuple[Path, InnerRun]) -> None:
    path, run = of_all
    expected = {"test_5": "failure"}
    assert run.outcomes() == {f"test_{n}": "passed" for n in (1, 2, 4, 6)} | expected
    assert "rank 1 of 2 on local1: exited with code 3" in run.output
    assert [bodies(path, n) for n in (1, 2, 4, 5, 6)] == [["x", "x"]] * 5


def test_what_follows_a_failure_waits_for_its_report(tmp_path: Path) -> None:
    """Only one rank fails: the other would have begun the next test."""
    run = ran(tmp_path, "-x", limits_s={2: 20, 3: 1})
    assert run.outcomes() == {"test_1": "passed", "test_2": "passed", "test_3": "failure"}
    assert (tmp_path / "reported2").read_text() == "True"
    assert bodies(tmp_path, 4) == []


def test_nothing_begins_early_where_hooks_of_others_come_between(tmp_path: Path) -> None:
    run = ran(tmp_path, "-k", "test_1 or test_2", limits_s={1: 1}, hook=HOOK)
    assert run.outcomes() == {"test_1": "passed", "test_2": "passed"}
    assert (tmp_path / "reported1").read_text() == "False"


def test_a_run_that_stops_awaits_no_nodes_of_a_test_that_has_begun(tmp_path: Path) -> None:
    """To end the module's fixture in its ranks it would lease the nodes that the ranks hold."""
    write_files(tmp_path, conftest=CONFTEST.format(limits_s={1: 20}) + STOP, test_a=HELD)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert run.outcomes() == {"test_1": "passed"}
    assert (tmp_path / "reported1").read_text() == "True"
    assert "Interrupted: a signal" in run.output


def test_no_test_gets_the_result_of_one_that_a_loop_of_others_skips(tmp_path: Path) -> None:
    run = ran(tmp_path, "-k", "test_1 or test_3 or test_4", limits_s={1: 1}, hook=LOOP)
    assert run.outcomes() == {"test_1": "passed", "test_4": "passed"}
    assert bodies(tmp_path, 3) == []
