"""What failed beside others runs once more, alone, and is listed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST
from tests.inner import clean_env, run_pytest, write_files

PLUGIN = """
    from tests.again import Failed

    def pytest_configure(config):
        config.pluginmanager.register(Failed())
"""
TESTS = """
    import pathlib
    import pytest

    @pytest.mark.parametrize("number", range(NUMBER))
    def test_busy(number):
        seen = pathlib.Path(f"seen {number}")
        try:
            assert seen.exists()
        finally:
            seen.touch()

    @pytest.fixture
    def broken():
        yield
        assert BROKEN == 0

    def test_broken(broken):
        pathlib.Path("runs").open("a").write("x")
"""


@pytest.mark.parametrize(
    ("number", "broken", "workers", "again", "status"),
    [(1, 0, 0, True, 0), (MOST, 0, 2, True, 0), (MOST + 1, 0, 2, False, 1), (0, 1, 2, True, 1)],
)
def test_a_few_failures_run_again_alone(  # noqa: PLR0917  parameters
    tmp_path: Path, number: int, broken: int, workers: int, again: bool, status: int
) -> None:
    text = TESTS.replace("NUMBER", str(number)).replace("BROKEN", str(broken))
    write_files(tmp_path, conftest=PLUGIN, test_it=text)
    first = run_pytest(tmp_path, "-p", "no:mnode", "-n", str(workers))
    assert first.returncode == 1, first.output
    done = _again(tmp_path, 1)
    assert done.returncode == status, done.stdout
    for busy in range(number):
        assert (f"  test_it.py::test_busy[{busy}]\n" in done.stdout) is again
    runs = (tmp_path / "runs").read_text()
    assert len(runs) == 1 + broken, "what passed is not run again"


@pytest.mark.parametrize("status", [0, 2, 10])
def test_a_session_that_ended_otherwise_is_not_repeated(tmp_path: Path, status: int) -> None:
    assert _again(tmp_path, status).returncode == status


def _again(directory: Path, status: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.again", str(status)],
        cwd=directory,
        env={**clean_env(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
