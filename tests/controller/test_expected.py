"""Runs whose tests need no nodes start none, whatever options say; and the others start in time."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller import expected
from tests.inner import InnerRun, run_pytest, write_files

NOTES = """
    import os, sys, time
    import psutil, pytest

    def pytest_sessionfinish(session):
        names = [process.name() for process in psutil.Process().children(recursive=True)]
        print("\\nchildren:", sorted(names), "torch" in sys.modules)

    def pytest_runtest_logreport(report):
        if report.outcome != "passed":
            now = time.time()
            print("\\ntimes:", now - 600 < report.start <= report.stop <= now)
"""
NONE = "children: [] False"
PLAIN = "def test_plain(): pass"
MIXED = """
    import pytest

    @pytest.fixture
    def device(): return "cpu"

    def test_plain(device): pass

    def test_ranks(world, device): pass
"""
LOOKS_ALIKE = """
    import psutil, pytest

    @pytest.fixture
    def cluster(): return "of another kind"

    def test_it(cluster): assert not psutil.Process().children()
"""
UNSTARTED = f"""{MIXED}
    @pytest.mark.skip(reason="not today")
    def test_skipped(world): pass

    @pytest.mark.mnode(nodes=2)
    @pytest.mark.skip("nor tomorrow")
    class TestIt:
        def test_of_a_class(self): pass

    @pytest.mark.skip(reason="never")
    def test_skipped_in_the_controller(cluster): pass

    @pytest.mark.mnode(nodes=3)
    def test_too_many(rank): pass

    @pytest.mark.mnode(nodes=3)
    def test_in_the_controller(cluster): pass
"""
OF_OTHERS = """
    class TestOfOthers:
        is_dist_test = True

        def test_it(self): pass

    class Reads(type):
        @property
        def world_size(cls): raise RuntimeError("read")

    class TestThatReads(metaclass=Reads):
        is_dist_test = True

        def test_it_too(self): pass
"""


def ran(tmp_path: pytest.TempPathFactory, text: str, *args: str, ini: str = "") -> InnerRun:
    directory = tmp_path.mktemp("expected")
    write_files(directory, conftest=NOTES, test_it=text)
    (directory / "pytest.ini").write_text(textwrap.dedent(f"[pytest]\n{ini}"))
    return run_pytest(directory, "-s", "-rs", "--mnode-launcher=local", *args, cold=True)


@pytest.mark.parametrize(
    ("text", "args", "expects"),
    [
        (PLAIN, (), False),
        (OF_OTHERS, (), False),
        (MIXED, (), True),
        (MIXED, ("-k", "plain"), False),
        (MIXED, ("-m", "skip"), False),
        (MIXED, ("--lf",), False),
        (MIXED, ("test_it.py",), True),
        (MIXED, ("test_it.py::test_plain",), False),
        (LOOKS_ALIKE, (), True),
    ],
)
def test_nodes_are_expected_by_the_text_of_all_files(
    pytester: pytest.Pytester, text: str, args: tuple[str, ...], expects: bool
) -> None:
    write_files(pytester.path, test_it=text)
    assert expected.expects_nodes(pytester.parseconfig(*args)) == expects


@pytest.fixture(scope="module")
def unstarted(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    """A run of tests that need no nodes: plain ones, skipped ones, and those that cannot run."""
    return ran(tmp_path_factory, UNSTARTED, "--mnode-nodes=2", "-k", "not test_ranks")


def test_a_run_that_needs_no_nodes_starts_none(unstarted: InnerRun) -> None:
    assert unstarted.outcomes()["test_plain"] == "passed", unstarted.output
    assert NONE in unstarted.output, unstarted.output


def test_what_was_started_for_a_look_alike_ends(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = ran(tmp_path_factory, LOOKS_ALIKE, "--mnode-nodes=2")
    assert run.outcomes() == {"test_it": "passed"}, run.output
    assert NONE in run.output, run.output


def test_a_key_of_the_ini_file_starts_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    run = ran(tmp_path_factory, f"{PLAIN}\n{textwrap.dedent(OF_OTHERS)}", ini="mnode_nodes = 2")
    assert set(run.outcomes().values()) == {"passed"}, run.output
    assert NONE in run.output, run.output


def test_ranks_start_however_late_they_are_found(tmp_path: Path) -> None:
    late = "def test_it(rank): pass"  # a name that the fixtures of many suites have
    write_files(tmp_path, test_it=late)
    run = run_pytest(tmp_path, "--mnode-launcher=local", "--mnode-nodes=2")
    assert run.outcomes() == {"test_it": "passed"}, run.output
    assert run.output.count("mnode: launcher local (requested), 2 nodes") == 1


def test_a_plain_skip_is_pytests_own(unstarted: InnerRun) -> None:
    outcomes = unstarted.outcomes()
    skipped = ("test_skipped", "test_of_a_class", "test_skipped_in_the_controller")
    assert {outcomes[name] for name in skipped} == {"skipped"}, unstarted.output
    for line in ("test_it.py:11: not today", "test_it.py: nor tomorrow", "test_it.py:19: never"):
        assert f"SKIPPED [1] {line}" in unstarted.output, unstarted.output


def test_too_many_nodes_are_found_at_collection(unstarted: InnerRun) -> None:
    for name in ("test_too_many", "test_in_the_controller"):
        assert unstarted.outcomes()[name] == "error", unstarted.output
        why = f"test_it.py::{name} needs 3 nodes, but the run has 2; give --mnode-nodes=3"
        assert why in unstarted.output, unstarted.output
    assert "times: False" not in unstarted.output
    assert unstarted.output.count("times: True") == 5  # skipped ones too


def test_environments_and_barred_directories_are_not_read(tmp_path: Path) -> None:
    for folder in ("env/lib", "node_modules/x", "tests/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "test_it.py").write_text("def test_it(): pass\n")
    (tmp_path / "env/pyvenv.cfg").touch()
    options = {"python_files": ["test_*.py"], "norecursedirs": ["node_modules"]}
    config: Any = SimpleNamespace(
        args=["."], invocation_params=SimpleNamespace(dir=tmp_path), getini=options.__getitem__
    )
    assert list(expected._files(config)) == [tmp_path / "tests/deep/test_it.py"]
