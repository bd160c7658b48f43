"""A pytest run inside a test that ends before it writes its junit says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import run_pytest


def test_a_run_without_a_junit_shows_its_output(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "--no-such-option")
    with pytest.raises(pytest.fail.Exception, match=r"status 4:[^$]*arguments: --no-such-option"):
        run.outcomes()
