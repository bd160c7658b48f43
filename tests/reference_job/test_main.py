"""The program, up to the start of training."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.reference_job import JobConfig

MODULE = "pytest_mnode.reference_job"
USAGE = "train: usage: python -m pytest_mnode.reference_job CONFIG.json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"directory": "run", "steps": 0}', "train: config.json: steps=0: give at least 1"),
        ("", "train: config.json: not JSON"),
        (None, USAGE),
    ],
)
def test_a_bad_config_is_one_line(
    text: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = [] if text is None else ["config.json"]
    Path("config.json").write_text(text or "")
    monkeypatch.setattr(sys, "argv", ["-m", *argv])
    monkeypatch.delitem(sys.modules, f"{MODULE}.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (2, 1)
    assert error.startswith(message)


def test_a_start_without_torchrun_is_one_line(tmp_path: Path) -> None:
    path = JobConfig(str(tmp_path)).write(tmp_path / "config.json")
    argv = [sys.executable, "-m", MODULE, str(path)]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is not set; start" in done.stderr
