"""The program, up to the start of training."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_mnode.criteria.launching import meeting
from pytest_mnode.criteria.launching.meeting import meet
from pytest_mnode.errors import MnodeError
from pytest_mnode.measuring import ranks
from pytest_mnode.reference_job import JobConfig

MODULE = "pytest_mnode.reference_job"
REMEDY = "start the job with torchrun"
USAGE = "usage: python -m pytest_mnode.reference_job CONFIG.json"
Program = Callable[..., tuple[object, str]]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Runs the program in this process; returns its exit status and its one line."""

    def run(*argv: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["-m", *argv])
        monkeypatch.delitem(sys.modules, f"{MODULE}.__main__", raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return ended.value.code, error

    return run


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"directory": "run", "steps": 0}', "steps=0: Input should be gr"), ("", "no config")],
)
def test_a_bad_config_is_one_line(
    program: Program, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    status, error = program(str(path))
    assert status == 2
    assert error.startswith(f"train: {path}: {message}")


def test_the_usage_and_any_other_error_are_one_line(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, error = program()
    assert status == 2
    assert error.startswith(f"train: {USAGE}")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(JobConfig, "read", lambda _: meet(5.0))  # as without torchrun
    status, error = program("config.json")
    assert (status, error.partition(",")[0]) == (1, f"train: RANK is not set; {REMEDY}")


def test_a_rank_is_on_the_node_that_its_job_names(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nodes that are all this machine share its host name."""

    def gathered(name: str) -> None:
        raise MnodeError(f"on {name}")

    path = tmp_path / "config.json"
    path.write_text('{"directory": "run", "steps": 1, "deterministic": false}')
    monkeypatch.setenv("MNODE_JOB_NODE", "local1")
    monkeypatch.setattr(meeting, "meet", lambda _: None)
    monkeypatch.setattr(ranks, "gathered", gathered)
    assert program(str(path)) == (1, "train: on local1\n")
