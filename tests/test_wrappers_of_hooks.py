"""The plugin's hook wrappers are hidden in tracebacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import run_pytest, write_files

CONFTEST = """
    import pytest

    @pytest.fixture
    def torn():
        yield
        raise OSError("no such share")
"""


def test_wrappers_are_hidden_in_the_controller(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_it(torn): pass")
    output = pytester.runpytest().stdout.str()
    assert "OSError: no such share" in output
    assert "pytest_mnode" not in output


def test_wrappers_are_hidden_in_ranks(tmp_path: Path) -> None:
    write_files(tmp_path, conftest=CONFTEST, test_a="def test_it(torn, world): pass")
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert "OSError: no such share" in run.output
    assert "in pytest_runtest_teardown" not in run.output
    assert "def pytest_runtest_teardown" not in run.output
