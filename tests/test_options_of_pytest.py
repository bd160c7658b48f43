"""pytest's own options with tests in ranks: they work, and none ends in a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.inner import InnerRun, run_here, run_pytest, write_files

TESTS = """
    import logging, pathlib, warnings
    import pytest

    pytestmark = pytest.mark.criterion

    @pytest.fixture
    def plain(): yield "executed"

    @pytest.fixture(scope="module")
    def wide(world): yield world.rank

    def test_here(plain):
        logging.getLogger().info("first line")

    def test_in_ranks(wide, plain, process_group):
        open("ran", "w").close()
        logging.getLogger().info("of a rank")
        if pathlib.Path("run.log").exists():  # the controller was also given -W error
            with pytest.raises(UserWarning):
                warnings.warn("of a test")

    def test_with_nodes(cluster, plain):
        assert len(cluster.nodes) == 2
        logging.getLogger().info("last line")
"""
NODES = ("--mnode-nodes=2", "--mnode-launcher=local")
RUNS = "3 passed"
IN_RANKS = "test_it.py::test_in_ranks (fixtures used: plain, process_group"
STRICT = "-W error --import-mode=importlib --log-file=run.log --log-file-level=INFO"
WITHOUT = "-p no:cacheprovider -p no:faulthandler -p no:capture -p no:tmpdir"
PLAN = "SETUP    M wide (fixtures used: world)"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (f"--setup-show {WITHOUT} --import-mode=append", IN_RANKS),
        (f"--stepwise --lf --ff --durations=3 -x --maxfail=2 {STRICT}", RUNS),
        ("-p no:terminal -p no:setuponly -p no:setupplan -p no:debugging", ""),
    ],
)
def test_tests_are_run(tmp_path: Path, options: str, words: str) -> None:
    run = _run_apart(tmp_path, options)
    _ended_well(run)
    assert words in run.output
    assert (tmp_path / "ran").exists(), run.output
    if STRICT in options:
        text = (tmp_path / "run.log").read_text()
        assert "\0" not in text
        assert "first line" in text
        assert "last line" in text


@pytest.mark.parametrize(
    ("options", "words"),
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
def test_no_test_is_run(pytester: pytest.Pytester, options: str, words: str) -> None:
    directory = pytester.path
    options = f"--mnode-report=report {options}"
    starts = options.endswith(("--setup-only", "-n1"))
    run = _run_apart(directory, options) if starts else _run_here(pytester, options)
    _ended_well(run)
    assert words in run.output
    assert "= certificate =" not in run.output
    assert not (directory / "ran").exists()
    assert not (directory / "report").exists()
    # A run that sets nothing up needs no nodes either, which might be a whole allocation.
    assert (directory / "logs").exists() is options.endswith("--setup-only")


def _run_apart(directory: Path, options: str) -> InnerRun:
    write_files(directory, test_it=TESTS)
    return run_pytest(directory, *_args(options), limit_s=60)


def _run_here(pytester: pytest.Pytester, options: str) -> InnerRun:
    write_files(pytester.path, test_it=TESTS)
    return run_here(pytester, *_args(options))


def _args(options: str) -> tuple[str, ...]:
    return (*NODES, "--mnode-log-dir=logs", *options.split())


def _ended_well(run: InnerRun) -> None:
    assert run.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), run.output
    assert not re.search(r"Traceback \(|INTERNALERROR|AssertionError", run.output), run.output


def test_the_class_of_an_option_may_be_of_a_conftest(tmp_path: Path) -> None:
    """Agents cannot import it where pytest is run in another directory."""
    conftest = """
        from enum import Enum

        class Mode(Enum):
            SLOW = "slow"
            FAST = "fast"

        def pytest_addoption(parser):
            parser.addoption("--mode", type=Mode, default=Mode.SLOW)
    """
    module = """
        def test_in_ranks(world, pytestconfig):
            assert pytestconfig.getoption("--mode").name == "FAST"
    """
    here, project = tmp_path / "here", tmp_path / "project"
    for one in (here, project):
        one.mkdir()
    write_files(project, conftest=conftest, test_it=module)
    (project / "pytest.ini").touch()
    args = ("--mnode-nodes=1", "--mode=fast", "--import-mode=importlib", str(project))
    run = run_pytest(here, NODES[1], *args)
    assert "1 passed" in run.output, run.output
