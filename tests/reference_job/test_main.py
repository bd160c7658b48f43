"""The program, up to the start of training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.reference_job import JobConfig


def _program(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_mnode.reference_job", *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"directory": "run", "steps": 0}', "steps=0: give at least 1"), ("", "not JSON")],
)
def test_a_bad_config_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    done = _program(str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"train: {path}: {message}")
    assert done.stderr.count("\n") == 1


def test_the_usage_line(tmp_path: Path) -> None:
    assert _program().stderr.startswith(
        "train: usage: python -m pytest_mnode.reference_job CONFIG.json"
    )
    done = _program(str(JobConfig(str(tmp_path)).write(tmp_path / "config.json")))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is not set; start" in done.stderr


def test_config_and_records_need_no_torch() -> None:
    code = "import sys, pytest_mnode.reference_job; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
