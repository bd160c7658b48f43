"""What talks to Slurm's commands, beside commands of the same names that do as they are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.slurm import files, guarding, queue, queued
from pytest_mnode.jobs.slurm.guard import Guard
from pytest_mnode.jobs.slurm.names import Names
from pytest_mnode.jobs.slurm.queued import Queued
from pytest_mnode.jobs.slurm.room import Foretold
from pytest_mnode.launchers.slurm import Slurm, SlurmError

QUEUED = """#!/bin/sh
cat "$0.jobs" 2>/dev/null
exit 0
"""
CANCEL = """#!/bin/sh
echo "$*" >>"$0.said"
rm -f "$(dirname "$0")/squeue.jobs"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that comes first in PATH."""
    directory = tmp_path / "a 'b"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    for name, text in {"squeue": QUEUED, "scancel": CANCEL}.items():
        program(directory, name, text)
    return directory


def program(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)


def start(name: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-I", "-S", guarding.__file__, name]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)


def test_a_guard_cancels_by_name_when_its_owner_is_gone(programs: Path) -> None:
    (programs / "squeue.jobs").write_text("12 RUNNING\n")
    guard = start("mnode-1")
    time.sleep(0.3)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        guard.send_signal(number)
    assert guard.poll() is None
    assert guard.stdin is not None
    began = time.monotonic()
    guard.stdin.close()
    assert guard.wait(30) == 0
    # At once, and once more before the empty list is believed.
    assert (programs / "scancel.said").read_text() == "--name mnode-1\n" * 2
    assert time.monotonic() - began > 2.5, "a submission that is under way is waited for"


def test_a_guard_of_a_job_that_is_taken_care_of_cancels_nothing(programs: Path) -> None:
    (programs / "squeue.jobs").write_text("12 RUNNING\n")
    guard = Guard("mnode-1")
    guard.close()
    guard.close()
    assert not (programs / "scancel.said").exists()


def test_what_slurm_did_not_do_is_left_to_the_guard(programs: Path) -> None:
    (programs / "squeue.jobs").write_text("12 RUNNING\n")
    guard = Guard("mnode-1")
    guard.close(done=False)
    assert guard._process.wait(30) == 0
    assert (programs / "scancel.said").read_text() == "--name mnode-1\n" * 2


def test_what_is_being_taken_down_already_is_not_cancelled_again(programs: Path) -> None:
    (programs / "squeue.jobs").write_text("12 COMPLETING\n")
    guard = start("mnode-1")
    assert guard.stdin is not None
    guard.stdin.close()
    time.sleep(1)
    assert not (programs / "scancel.said").exists()
    (programs / "squeue.jobs").unlink()
    assert guard.wait(30) == 0


# As squeue does: jobs of hidden partitions with --all only, and what the user likes to see.
HIDING = """#!/bin/sh
case " $* " in *" --all "*) [ -z "$SQUEUE_PARTITION$SQUEUE_STATES" ] && cat "$0.jobs";; esac
exit 0
"""
ASKING = """#!/bin/sh
echo "$* $SCANCEL_INTERACTIVE$SCANCEL_STATE" >>"$0.said"
rm -f "$(dirname "$0")/squeue.jobs"
"""


def test_a_guard_sees_jobs_whatever_its_user_likes_to_see(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_PARTITION", "SQUEUE_STATES", "SCANCEL_INTERACTIVE", "SCANCEL_STATE"):
        monkeypatch.setenv(name, "x")
    program(programs, "squeue", HIDING)
    program(programs, "scancel", ASKING)
    (programs / "squeue.jobs").write_text("12 RUNNING\n")
    guard = start("mnode-1")
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(30) == 0
    assert (programs / "scancel.said").read_text() == "--name mnode-1 \n" * 2


def test_a_guard_believes_an_empty_list_only_when_it_has_cancelled(programs: Path) -> None:
    program(programs, "squeue", "#!/bin/sh\nexit 0\n")
    guard = start("mnode-1")
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(30) == 0
    assert (programs / "scancel.said").read_text() == "--name mnode-1\n"


SBATCH = """#!/bin/sh
echo "$*" >"$0.said"
cat >"$0.script"
env >"$0.env"
printf '%s' "$ANSWER"
printf '%s\\n' "$COMPLAINT" >&2
exit "$STATUS"
"""


def answers(status: int, answer: str = "", complaint: str = "") -> dict[str, str]:
    told = {"STATUS": str(status), "ANSWER": answer, "COMPLAINT": complaint}
    return {"PATH": os.environ["PATH"], **told}


def test_a_script_is_submitted_with_the_environment_of_the_job(programs: Path) -> None:
    program(programs, "sbatch", SBATCH)
    env = answers(0, "12;cluster\n")
    assert queue.submit("#!/bin/sh\ntrue\n", env, ["--job-name=x"]) == 12
    assert (programs / "sbatch.said").read_text() == "--parsable --job-name=x\n"
    assert (programs / "sbatch.script").read_text() == "#!/bin/sh\ntrue\n"
    assert "LC_ALL" not in (programs / "sbatch.env").read_text()


def test_what_sbatch_refuses_is_one_line(programs: Path) -> None:
    program(programs, "sbatch", SBATCH)
    env = answers(1, "", "sbatch: error: Batch job submission failed: Invalid account\n")
    with pytest.raises(SlurmError, match=r"^sbatch: Batch job submission failed: Invalid account$"):
        queue.submit("", env, [])
    with pytest.raises(SlurmError, match=r"^sbatch: "):
        queue.submit("", answers(0, "Submitted, I think"), [])


def test_a_start_is_foretold_whatever_the_exit_status(programs: Path) -> None:
    program(programs, "sbatch", SBATCH)
    found = queue.ask(answers(1, "", "allocation failure: Invalid node name specified"), ["-N2"])
    assert found == Foretold(None, "allocation failure: Invalid node name specified")
    assert (programs / "sbatch.said").read_text() == "--test-only -N2\n"


def test_no_sbatch_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"^sbatch: cannot be run: No such file"):
        queue.submit("", {"PATH": str(tmp_path)}, [])


def lead(programs: Path, address: str, nodes: str) -> subprocess.CompletedProcess[str]:
    """The batch script's program, where Slurm says that these are the job's nodes."""
    program(programs, "scontrol", f"#!/bin/sh\n{nodes}\n")
    program(programs, "srun", "#!/bin/sh\nexit 0\n")
    plan = files.Plan("abc", Job(["t.py"]), {"n0": files.Place("node0", address, None)})
    argv = [sys.executable, "-m", "pytest_mnode.jobs.slurm.lead", str(plan.write(programs))]
    env = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_job_meets_at_the_address_of_its_first_node(programs: Path, address: str) -> None:
    done = lead(programs, address, "echo n0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    start = files.read_start(programs / "start.0.json")
    assert (start.nodes, start.address) == (("node0",), address)
    assert start.port > 0


def test_a_job_that_cannot_learn_its_nodes_says_so(programs: Path) -> None:
    done = lead(programs, "127.0.0.1", "echo no controller >&2; exit 1")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "scontrol show hostnames n0: no controller",
        "Slurm named no node of this job (SLURM_JOB_NODELIST=n0)",
    ]


SILENT = "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n"
RESTARTED = SILENT.replace("; exit 1", """; mv "$(dirname "$0")/next" "$0"; exit 1""")
OVER = "#!/bin/sh\necho JobId=12 JobName=x JobState=COMPLETED NodeList=n0\n"


def test_a_slurm_that_is_restarted_is_asked_again(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "LOOK_S", 0.01)
    job = Queued(Slurm(), Names({"host0": "n0"}), "mnode-1")
    job.number = 12
    try:
        program(programs, "scontrol", SILENT)
        assert not job.answers()
        assert job.state is None
        program(programs, "scontrol", "#!/bin/sh\nexit 0\n")
        assert not job.answers()
        program(programs, "scontrol", OVER)
        assert job.answers()
        assert job.state is not None
        assert job.state.nodes == ("host0",)
        program(programs, "scontrol", RESTARTED)
        program(programs, "next", OVER)
        job.await_end()  # once unanswered, then over
        program(programs, "scontrol", SILENT)
        assert not job.answers()
        monkeypatch.setattr(queued, "SILENCE_S", 0.0)
        with pytest.raises(SlurmError, match="Unable to contact"):
            job.answers()
    finally:
        job.close(True)
