"""Commands that query all nodes, and how they are started."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.remote import run_all as module
from pytest_mnode.launchers.remote.run_all import run_all
from tests.waiting import soon, until


def test_options_of_the_surrounding_job_do_not_apply_to_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_GPUS", "16")  # as in a job of sbatch --gpus=16
    monkeypatch.setenv("SRUN_CPUS_PER_TASK", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    lines = run_all([("n0", ["env"])], 30)[0].stdout.splitlines()
    assert "SLURM_JOB_ID=7" in lines
    assert not [line for line in lines if line.startswith(("SLURM_GPUS", "SRUN_"))]


@pytest.fixture
def _few_files() -> Iterator[None]:
    """Limits this process to sixteen more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_few_files")
def test_many_nodes_need_few_files() -> None:
    found = run_all([(str(number), ["sh", "-c", "echo x; echo y >&2"]) for number in range(40)], 30)
    assert [(asked.stdout, asked.stderr) for asked in found] == [("x\n", "y\n")] * 40


def test_many_nodes_are_queried_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    def run(commands: list[tuple[str, list[str]]], **_: object) -> list[CommandResult]:
        turns.append(len(commands))
        return [CommandResult(name, 1, "", f"{name}: off\n", 0.1) for name, _ in commands]

    monkeypatch.setattr(module, "run_all", run)
    names = [f"n{number}" for number in range(module.REPORTS_AT_ONCE + 2)]
    reports, problems = module.collect_reports(
        {name: ["true"] for name in names}, "/", "", limit_s=60.0
    )
    assert turns == [module.REPORTS_AT_ONCE, 2]
    assert (reports, problems) == ({}, dict.fromkeys(names, "off"))


def test_a_command_that_exceeds_its_limit_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    argv = ["sh", "-c", f"echo on; echo $$ > {note}; exec sleep 60"]
    [asked] = run_all([("n0", argv)], 1.0, str(tmp_path))
    assert (asked.returncode, asked.stdout) == (None, "on\n")
    assert not psutil.pid_exists(int(note.read_text()))
    assert list(tmp_path.iterdir()) == [note]


def test_if_one_command_cannot_be_started_all_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    first = f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 60"

    def later() -> Iterator[tuple[str, list[str]]]:
        yield "n0", ["sh", "-c", first]
        until(note.exists)
        yield "n1", ["/no/such/program"]

    why = "n1: cannot start /no/such/program on this machine: No such file or directory"
    with pytest.raises(ClusterError, match=f"^{why}$"):
        run_all(later(), 30)
    assert not psutil.pid_exists(int(note.read_text()))


def test_slow_commands_are_polled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    program = SimpleNamespace(poll=lambda: looks.append(now[0]))
    assert module._end_times([cast(Any, program)], 60.0) == {}
    assert looks[1] < 0.01
    assert len(looks) < 1500


def test_nodes_whose_report_never_comes_are_unusable() -> None:
    with soon():
        reports, problems = module.collect_reports({"n1": ["sleep", "60"]}, "/", "", limit_s=0.2)
    assert (reports, set(problems)) == ({}, {"n1"})


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [
        (1, "n1: a banner\n\nn1: No space left on device\n \n", "No space left on device"),
        (1, " \n", "it printed nothing"),
        (None, "n1: a banner\n", "no answer within 3 s"),
        (127, "sh: python3: not found\n", f"sh: python3: not found; {module.NAME_PYTHON}"),
    ],
)
def test_the_last_line_of_a_command_is_why_it_has_no_report(
    code: int | None, stderr: str, reason: str
) -> None:
    assert module.why_no_report(CommandResult("n1", code, "", stderr, 0.1), 3.0) == reason
