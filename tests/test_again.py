"""What failed beside others runs once more, alone, and is listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import KEY, MOST, main
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


@pytest.mark.parametrize(("number", "broken", "workers"), [(MOST, 0, 1), (0, 1, 0)])
def test_a_few_failures_run_again_alone(
    tmp_path: Path, number: int, broken: int, workers: int
) -> None:
    text = TESTS.replace("NUMBER", str(number)).replace("BROKEN", str(broken))
    write_files(tmp_path, conftest=PLUGIN, test_it=text)
    first = run_pytest(tmp_path, "-p", "no:mnode", "-n", str(workers))
    assert first.returncode == 1, first.output
    done = subprocess.run(
        [sys.executable, "-m", "tests.again", "1"],
        cwd=tmp_path,
        env={**clean_env(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == broken, done.stdout
    for busy in range(number):
        assert f"  test_it.py::test_busy[{busy}]\n" in done.stdout
    runs = (tmp_path / "runs").read_text()
    assert len(runs) == 1 + broken, "what passed is not run again"


@pytest.mark.parametrize(("status", "failed"), [(0, 1), (2, 1), (10, 1), (1, MOST + 1), (1, 0)])
def test_other_sessions_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, failed: int
) -> None:
    kept = tmp_path / ".pytest_cache/v" / KEY
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps([f"test_{number}.py::test_it" for number in range(failed)]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda *words: pytest.fail(f"runs {words}"))
    assert main(str(status)) == status
