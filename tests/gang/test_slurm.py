"""What the engine makes of Slurm's states and a spec's names, and how it ends what it left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.gang import guarding
from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.slurm import options_of, script
from pytest_mnode.gang.slurmjobs import others_of, phase_of, record_of
from pytest_mnode.launchers.slurm import JobState, NodeState

NODES = ("node0", "node1")


@pytest.mark.parametrize(
    ("state", "flags", "phase"),
    [
        ("PENDING", [], Phase.WAITING),
        ("REQUEUE_HOLD", [], Phase.WAITING),
        ("RUNNING", [], Phase.HOLDING),
        ("RUNNING", ["CONFIGURING"], Phase.HOLDING),
        ("SUSPENDED", [], Phase.HOLDING),
        ("COMPLETING", [], Phase.ENDING),
        ("COMPLETED", ["COMPLETING"], Phase.ENDING),
        ("PENDING", ["COMPLETING"], Phase.ENDING),
        ("COMPLETED", [], Phase.OVER),
        ("NODE_FAIL", [], Phase.OVER),
        ("CANCELLED", [], Phase.OVER),
    ],
)
def test_what_a_job_does_with_nodes(state: str, flags: list[str], phase: Phase) -> None:
    job = JobState(7, "x", state, frozenset(flags), nodes=NODES)
    assert phase_of(job) is phase
    held = NODES if phase in (Phase.HOLDING, Phase.ENDING) else ()
    assert record_of(job).nodes == held


def test_a_state_that_nothing_is_known_of() -> None:
    with pytest.raises(ClusterError, match="job 7 is DREAMING, which nothing is known of"):
        phase_of(JobState(7, "x", "DREAMING"))


def test_slurms_own_words_go_with_the_record() -> None:
    waits = record_of(JobState(7, "x", "PENDING", reason="Resources", restarts=2))
    assert (waits.job, waits.said, waits.life) == ("7", "PENDING (Resources)", 2)
    runs = record_of(JobState(7, "x", "RUNNING", reason=None, nodes=NODES))
    assert (runs.said, runs.life) == ("RUNNING", 0)


def test_names_of_the_spec_become_options() -> None:
    assert options_of({"partition": "gpu", "qos": "high"}) == ["--partition=gpu", "--qos=high"]
    with pytest.raises(UsageError) as caught:
        options_of({"queue": "x"})
    assert str(caught.value).startswith("scheduler.names: queue: accepted for slurm: partition, ")


def test_what_is_submitted(tmp_path: Path) -> None:
    directory = tmp_path / "it's here"
    text = script("/usr/bin/python3", directory, 5.0)
    first, command = text.split("\n", 1)
    words = shlex.split(command)
    assert first == "#!/bin/sh"
    assert words[:3] == ["exec", "srun", "--ntasks-per-node=1"]
    assert words[-6:-4] == [str(directory), "5.000"]
    assert words[-4:] == ["SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURMD_NODENAME"]
    compile(words[words.index("-c") + 1], "rank", "exec")


def test_a_failure_is_one_in_slurms_words() -> None:
    def failed(state: str) -> bool:
        return record_of(JobState(7, "x", state)).failed

    assert [failed(s) for s in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY")] == [True] * 3
    assert not any(failed(s) for s in ("COMPLETED", "CANCELLED", "NODE_FAIL", "RUNNING"))


def test_who_else_is_on_the_nodes() -> None:
    jobs = [
        JobState(7, "ours", "RUNNING", nodes=("n0",)),
        JobState(8, "theirs", "RUNNING", nodes=("n1", "n8"), user="bob"),
        JobState(9, "theirs", "COMPLETED", nodes=("n2",), user="bob"),
        JobState(10, "theirs", "PENDING", user="bob"),
    ]
    there = [
        NodeState("n2", "IDLE", frozenset({"DRAIN"}), reason="fan"),
        NodeState("n3", "IDLE", frozenset({"DRAIN"}), reason="Kill task failed"),
        NodeState("n4", "DOWN", frozenset({"NOT_RESPONDING"}), reason="Not responding"),
        NodeState("n5", "IDLE", frozenset({"NOT_RESPONDING"})),
        NodeState("n6", "IDLE", frozenset({"PLANNED"})),
    ]
    found = others_of(("n0", "n1", "n2", "n3", "n4", "n5", "n6"), jobs, there, "ours")
    assert found == {
        "n1": "job 8 of bob",
        "n2": "IDLE+DRAIN: fan",
        "n4": "DOWN+NOT_RESPONDING: Not responding",
        "n5": "IDLE+NOT_RESPONDING",
    }


def start_guard(directory: Path, shows: str, ends: str) -> subprocess.Popen[Any]:
    argv = [sys.executable, "-I", "-S", guarding.__file__, str(directory), shows, ends]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)


def test_the_guard_acts_when_the_controller_is_gone(tmp_path: Path) -> None:
    directory, flag = tmp_path / "run", tmp_path / "flag"
    directory.mkdir()
    queue = tmp_path / "queue"
    queue.write_text("7\n")
    guard = start_guard(directory, f"cat '{queue}'", f"mv '{queue}' '{flag}'")
    until = time.monotonic() + 20
    while not _ignores(guard.pid, signal.SIGTERM) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(guard.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert guard.poll() is None
    assert not flag.exists()
    assert guard.stdin is not None
    guard.stdin.close()
    # A submission that was under way arrives when the first jobs have been ended.
    while not flag.exists() and time.monotonic() < until:
        time.sleep(0.02)
    flag.unlink()
    queue.write_text("")
    time.sleep(1.2)
    queue.write_text("8\n")
    while not flag.exists() and time.monotonic() < until + 20:
        time.sleep(0.02)
    queue.write_text("")
    assert guard.wait(20) == 0
    assert flag.read_text() == "8\n"
    assert not directory.exists()


def test_the_guard_waits_for_nothing_where_all_was_answered(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    began = time.monotonic()
    guard = start_guard(tmp_path / "run", "true", "false")
    assert guard.stdin is not None
    guard.stdin.write(guarding.ANSWERED)
    guard.stdin.close()
    assert guard.wait(20) == 0
    assert time.monotonic() - began < guarding.LATE_S
    assert not (tmp_path / "run").exists()


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_guard_that_could_not_says_so(tmp_path: Path) -> None:
    guard = start_guard(tmp_path / "none", "mnode-no-such-program", "true")
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(20) == 1


@pytest.mark.parametrize("shows", ["echo 7", "false"])
def test_what_is_left_or_not_known_is_not_done(shows: str) -> None:
    assert not guarding._none_left(shows.split(), ["true"], 0.0, 0.3)
    assert guarding._none_left(["true"], ["true"], 0.0, 0.3)


def test_a_guard_tries_for_an_hour_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm is away; ranks end with the directory all the same, a minute after the run."""
    (tmp_path / "run").mkdir()
    now, asked, there = [0.0], [], []

    def run(argv: list[str]) -> str | None:
        now[0] += 0.1
        if argv == ["shows"]:
            asked.append(now[0])
            there.append((tmp_path / "run").exists())
        return "" if now[0] > until else None

    monkeypatch.setattr(guarding, "run", run)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    until = 3000.0
    assert guarding.end(str(tmp_path / "run"), ["shows"], ["ends"], 0.0)
    assert until < asked[-1] < until + 40
    assert 100 < len(asked) < 400
    gone = asked[there.index(False)]
    assert 60 <= gone < 75
    until, now[0] = 1e9, 0.0
    assert not guarding.end(str(tmp_path / "run"), ["shows"], ["ends"], 0.0)
    assert 3600 < now[0] < 3700
