"""pytest's own options beside tests that run in ranks: they work, and none ends in a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.inner import clean_env, command, run_to_end, write_files

TESTS = """
    import pytest

    pytestmark = pytest.mark.criterion

    @pytest.fixture
    def plain(): yield "executed"

    @pytest.fixture(scope="module")
    def wide(world): yield world.rank

    def test_here(plain): assert plain

    def test_in_ranks(wide, plain, process_group):
        open("ran", "w").close()

    def test_with_nodes(cluster, plain): assert len(cluster.nodes) == 2
"""
NODES = ("--mnode-nodes=2", "--mnode-launcher=local")
RUNS = "3 passed"
IN_RANKS = "test_it.py::test_in_ranks (fixtures used: plain, process_group"
NO_CACHE = "-p no:cacheprovider -p no:faulthandler"
PLAN = "SETUP    M wide (fixtures used: world)"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"--setup-show {NO_CACHE}", IN_RANKS),
        ("--stepwise --lf --ff --durations=3 -x --maxfail=2 --import-mode=importlib", RUNS),
        ("-p no:terminal -p no:setuponly -p no:setupplan", ""),
        ("-p no:capture -p no:tmpdir --import-mode=append", RUNS),
    ],
)
def test_tests_are_run(tmp_path: Path, options: str, said: str) -> None:
    output = _run(tmp_path, options)
    assert said in output
    assert (tmp_path / "ran").exists(), output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--setup-plan", PLAN),
        ("--setup-plan -n1", ""),
        ("--setup-only", IN_RANKS),
        ("--collect-only", "<Function test_in_ranks>"),
        ("--co -q", "test_it.py::test_in_ranks"),
        ("--fixtures", "The default process group, initialised over all ranks of the world."),
        ("--fixtures-per-test", "fixtures used by test_in_ranks"),
        ("--markers", "@pytest.mark.mnode(nodes=N"),
        ("--cache-show", "cachedir: "),
        ("--help", "--mnode-nodes=N"),
        ("--version", "pytest "),
    ],
)
def test_no_test_is_run(tmp_path: Path, options: str, said: str) -> None:
    output = _run(tmp_path, f"--mnode-report=report {options}")
    assert said in output
    assert "= certificate =" not in output
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "report").exists()
    # What sets nothing up needs no nodes either, which might be those of a whole allocation.
    assert (tmp_path / "logs").exists() is (options == "--setup-only")


def _run(directory: Path, options: str) -> str:
    """The output of a run that must end well."""
    (directory / "pytest.ini").touch()
    write_files(directory, test_it=TESTS)
    argv = command(*NODES, "--mnode-log-dir=logs", *options.split())
    run = run_to_end(argv, directory, clean_env(), 60)
    assert run.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), run.output
    assert not re.search(r"Traceback \(|INTERNALERROR|AssertionError", run.output), run.output
    return run.output
