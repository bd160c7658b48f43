"""Programs that call Slurm's commands, with fake commands first in PATH."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import syslog
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.slurm import files, on_node, queued, sbatch
from pytest_mnode.jobs.slurm.files import Plan, Status
from pytest_mnode.jobs.slurm.nodes import Names
from pytest_mnode.jobs.slurm.queued import Queued
from pytest_mnode.jobs.torchrun import Start
from pytest_mnode.launchers.cleanup import leftovers, queue_cleanup
from pytest_mnode.launchers.cleanup.leftovers import Cleanup
from pytest_mnode.launchers.cleanup.queue_cleanup import ANSWERED, clean_up
from pytest_mnode.launchers.slurm import Slurm, SlurmError
from tests.inner import OWN_ADDRESSES
from tests.programs import write_program
from tests.waiting import until

# Like squeue: it shows jobs of hidden partitions only with --all, and applies the user's filter
# variables.
SQUEUE = """#!/bin/sh
case " $* " in *" --all "*) [ -z "$SQUEUE_PARTITION$SQUEUE_STATES" ] && cat "$0.jobs";; esac
exit 0
"""
SCANCEL = """#!/bin/sh
echo "$*$SCANCEL_INTERACTIVE$SCANCEL_STATE" >>"$0.args"
rm -f "$(dirname "$0")/squeue.jobs"
"""
CANCELLED = "--full --name=mnode-1\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory first in PATH, with a queue of one running job."""
    directory = tmp_path / "a 'b"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    for name, text in {"squeue": SQUEUE, "scancel": SCANCEL}.items():
        program(directory, name, text)
    (directory / "squeue.jobs").write_text("12 RUNNING\n")
    return directory


def program(directory: Path, name: str, text: str) -> None:
    write_program(directory / name, text)


def cancelled(programs: Path) -> int:
    """Number of scancel calls, each with the right arguments."""
    path = programs / "scancel.args"
    text = path.read_text() if path.exists() else ""
    assert text == CANCELLED * text.count("\n")
    return text.count("\n")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(queue_cleanup, name, 0.01)
    monkeypatch.setattr(queue_cleanup, "_LATE_S", 0.5)


LEFT = SlurmBackend().leftovers("mnode-1")
SHOW, END = shlex.join(LEFT.show), shlex.join(LEFT.end)


def test_jobs_are_cancelled_when_their_owner_has_ended(programs: Path) -> None:
    cleanup = Cleanup(LEFT)
    process = cleanup._process
    until(lambda: signal.SIGTERM in _ignored(process.pid), "it ignores signals")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
    cleanup.close(done=False)
    assert process.wait(30) == 0
    # At once, and again before an empty list counts: a submission may be in progress.
    assert cancelled(programs) == 2


def _ignored(pid: int) -> set[signal.Signals]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return {number for number in signal.Signals if mask >> (number - 1) & 1}


def test_nothing_is_cancelled_for_a_job_that_has_ended(programs: Path) -> None:
    cleanup = Cleanup(LEFT)
    cleanup.close(done=True)
    cleanup.close(done=True)
    assert cancelled(programs) == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("last", "jobs", "times"),
    [
        (b"", "12 RUNNING\n", 2),
        (b"", "", 1),  # an empty list counts only after scancel
        (ANSWERED, "12 RUNNING\n", 1),
        (ANSWERED, "", 0),
        (ANSWERED, "12 COMPLETING\n", 1),
    ],
)
def test_how_often_jobs_are_cancelled(
    programs: Path, tmp_path: Path, last: bytes, jobs: str, times: int
) -> None:
    (programs / "squeue.jobs").write_text(jobs)
    directory = tmp_path / "beats"
    directory.mkdir()
    assert clean_up(last, SHOW, END, str(directory))
    assert cancelled(programs) == times
    assert not list(tmp_path.glob("beats*"))


@pytest.mark.usefixtures("quick")
def test_the_users_own_filters_hide_no_job(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_PARTITION", "SQUEUE_STATES", "SCANCEL_INTERACTIVE", "SCANCEL_STATE"):
        monkeypatch.setenv(name, "x")
    assert clean_up(ANSWERED, SHOW, END)
    assert cancelled(programs) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ["exit 1", "echo 12 RUNNING", "exec sleep 60"])
def test_an_unreachable_scheduler_is_tried_again(
    programs: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Until the limit; the directory is removed in any case."""
    for name, limit_s in (("SOON_S", 1.0), ("LIMIT_S", 1.0), ("COMMAND_S", 0.2)):
        monkeypatch.setattr(queue_cleanup, name, limit_s)
    program(programs, "squeue", f"#!/bin/sh\n{text}\n")
    directory = programs / "beats"
    directory.mkdir()
    assert not clean_up(ANSWERED, SHOW, END, str(directory))
    assert cancelled(programs) > 1
    assert not directory.exists()


def test_a_scheduler_is_tried_for_an_hour_at_growing_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks end without their directory, which is removed after a minute in any case."""
    (tmp_path / "run").mkdir()
    now, asked, there = [0.0], [], []
    back_s = 3000.0

    def run(argv: list[str]) -> str | None:
        now[0] += 0.1
        if argv == ["show"]:
            asked.append(now[0])
            there.append((tmp_path / "run").exists())
        return "" if now[0] > back_s else None

    monkeypatch.setattr(queue_cleanup, "_run", run)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    assert clean_up(ANSWERED, "show", "end", str(tmp_path / "run"))
    assert back_s < asked[-1] < back_s + 40
    assert 100 < len(asked) < 400
    assert 60 <= asked[there.index(False)] < 75
    back_s, now[0] = 1e9, 0.0
    assert not clean_up(ANSWERED, "show", "end", str(tmp_path / "run"))
    assert 3600 < now[0] < 3700


def test_what_cannot_be_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the system's log: nobody else may be there any more."""
    said: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda _, text: said.append(text))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    (tmp_path / "beats").mkdir()
    assert queue_cleanup.main("no-such-squeue", "no-such-scancel", "run x", str(tmp_path / "beats"))
    assert said == ["mnode: run x"]
    assert not (tmp_path / "beats").exists()


SBATCH = """#!/bin/sh
echo "$*" >"$0.args"
cat >"$0.script"
env >"$0.env"
printf '%s' "$MNODE_ANSWER"
printf '%s\\n' "$MNODE_COMPLAINT" >&2
exit "$MNODE_STATUS"
"""


def answers(status: int, answer: str = "", complaint: str = "") -> dict[str, str]:
    settings = {"STATUS": str(status), "ANSWER": answer, "COMPLAINT": complaint}
    named = {f"MNODE_{name}": value for name, value in settings.items()}
    return {"PATH": os.environ["PATH"], **named}


def test_a_script_is_submitted_with_the_environment_of_the_job(programs: Path) -> None:
    program(programs, "sbatch", SBATCH)
    env = answers(0, "12;cluster\n")
    assert sbatch.submit("#!/bin/sh\ntrue\n", env, ["--job-name=x"]) == 12
    assert (programs / "sbatch.args").read_text() == "--parsable --job-name=x\n"
    assert (programs / "sbatch.script").read_text() == "#!/bin/sh\ntrue\n"
    assert "LC_ALL" not in (programs / "sbatch.env").read_text()


def test_a_refusal_by_sbatch_is_one_line(programs: Path) -> None:
    program(programs, "sbatch", SBATCH)
    env = answers(1, "", "sbatch: error: Batch job submission failed: Invalid account\n")
    with pytest.raises(SlurmError, match=r"^sbatch: Batch job submission failed: Invalid account$"):
        sbatch.submit("", env, [])
    with pytest.raises(SlurmError, match=r"^sbatch: "):
        sbatch.submit("", answers(0, "Submitted, I think"), [])


def test_slurm_estimates_the_start_of_a_job(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs, "sbatch", SBATCH)
    complaint = "allocation failure: Invalid node name specified"
    for name, value in answers(1, "", complaint).items():
        monkeypatch.setenv(name, value)
    request = sbatch.Request("mnode-1", 2, output="/dev/null", directory="/")
    why = sbatch.why_not_submitted(request, 12)
    assert why == f"Slurm would not start it beside allocation 12 of this run ({complaint})"
    asked = (programs / "sbatch.args").read_text()
    assert asked == " ".join(["--test-only", *request.options()]) + "\n"


def test_no_sbatch_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SlurmError, match=r"^sbatch: no such command on this machine; install Slurm"
    ):
        sbatch.submit("", {"PATH": str(tmp_path)}, [])


def batch(programs: Path, address: str, nodes: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the batch script; nodes: Slurm's list."""
    program(programs, "srun", "#!/bin/sh\nexit 0\n")
    plan = files.Plan("abc", Job(["t.py"]), {"n0": files.JobNode("node0", address, None)})
    module = "pytest_mnode.jobs.slurm.on_node"
    argv = [sys.executable, "-m", module, "batch", str(plan.write(programs))]
    env = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_a_job_meets_at_the_address_of_its_first_node(programs: Path, address: str) -> None:
    done = batch(programs, address, "n0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    start = files.read_start(programs / "start.0.json")
    assert (start.nodes, start.address) == (("node0",), address)
    assert start.port > 0


def test_a_job_without_a_node_list(programs: Path) -> None:
    for given, said in (
        ("", "Slurm named no node of this job (SLURM_JOB_NODELIST)"),
        ("n[1-", "hosts 'n[1-': brackets do not match"),
    ):
        done = batch(programs, "127.0.0.1", given)
        assert (done.returncode, done.stdout, done.stderr) == (1, f"{said}\n", "")


def test_a_node_that_lacks_its_address_or_srun(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = batch(programs, "192.0.2.1", "n0")
    assert done.stdout.startswith("rendezvous: Cannot assign requested address")
    monkeypatch.setenv("PATH", str(programs / "none"))
    without = batch(programs, "127.0.0.1", "n0")
    assert without.stdout == "srun: No such file or directory\n"
    assert [(one.returncode, one.stderr) for one in (done, without)] == [(1, "")] * 2


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Queued:
    """Job 12, without a process that ends it."""
    monkeypatch.setattr(queued, "Cleanup", lambda _: SimpleNamespace(leftovers=LEFT))
    monkeypatch.setattr(queued, "POLL_JOB_S", 0.01)
    made = Queued(Slurm(), Names({"host0": "n0"}), LEFT)
    made.number = 12
    return made


SILENT = "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n"
RESTARTED = SILENT.replace("; exit 1", """; mv "$(dirname "$0")/next" "$0"; exit 1""")
OVER = "#!/bin/sh\necho JobId=12 JobName=x JobState=COMPLETED NodeList=n0\n"


def test_a_slurm_that_is_restarted_is_asked_again(
    programs: Path, monkeypatch: pytest.MonkeyPatch, job: Queued
) -> None:
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
    job.await_end()  # no answer once, then ended
    program(programs, "scontrol", SILENT)
    assert not job.answers()
    monkeypatch.setattr(queued, "SILENCE_S", 0.0)
    with pytest.raises(SlurmError, match="Unable to contact"):
        job.answers()


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_a_job_that_stays_in_the_queue_is_not_awaited(
    programs: Path, monkeypatch: pytest.MonkeyPatch, job: Queued, state: str
) -> None:
    """One that is completing may wait for a node that was lost; nothing is left of it then."""
    monkeypatch.setattr(queued, "_END_S", 0.2)
    program(programs, "scontrol", f"#!/bin/sh\necho JobId=12 JobName=x JobState={state}\n")
    with pytest.raises(
        ClusterError, match=f"job 12 is still {state} after scancel: .* scancel --name=mnode-1$"
    ):
        job.await_end()
    if state == "COMPLETING":
        job.await_end(lost=True)


def test_a_cleanup_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says before that what may be left."""
    monkeypatch.setattr(leftovers, "ENDED_S", 0.1)
    monkeypatch.setattr(leftovers, "_END_S", 0.2)
    cleanup = Cleanup(LEFT)
    os.kill(cleanup._process.pid, signal.SIGSTOP)
    assert cleanup.end(answered=True) == (
        "jobs named mnode-1 may be left; their end is retried for an hour; "
        "or run scancel --name=mnode-1"
    )
    cleanup.close(done=True)
    assert cleanup._wait(10) == -signal.SIGKILL


def test_a_requeue_that_slurm_never_makes_ends_the_job(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_node, "_REQUEUE_S", 0.1)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n0")
    program(programs, "scontrol", '#!/bin/sh\necho "$*" >>"$0.asked"\n')
    program(programs, "srun", "#!/bin/sh\nexit 75\n")
    files.write_status(programs, "node0", 0, files.Status(75, True, False))
    job = files.Plan(
        "a", Job(["t.py"], requeues=1), {"n0": files.JobNode("node0", "127.0.0.1", None)}
    )
    assert on_node.batch(job.write(programs)) == 75
    assert (programs / "scontrol.asked").read_text().splitlines()[-1] == "requeue 7"


@pytest.fixture
def torchrun(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Status]]:
    """Runs on_node's task with a shell's text in place of torchrun; SIGTERM ends no test."""
    monkeypatch.setenv("SLURMD_NODENAME", "s0")
    monkeypatch.delenv("TMPDIR", raising=False)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    made = Plan("mnode-1", Job(("job",)), {"s0": files.JobNode("n0", "127.0.0.1", None)})
    plan = made.write(programs)
    start = files.write_start(programs, Start("mnode-1", ("n0",), 1, "127.0.0.1", 1))

    def run(text: str) -> Status:
        monkeypatch.setattr(Start, "argv", lambda *_: ["sh", "-c", text])
        code = on_node.task(plan, start)
        status = files.read_status(programs, "n0", 1)
        assert status is not None
        assert status.code == code
        return status

    yield run
    signal.signal(signal.SIGTERM, before)


def test_how_torchrun_ended_is_written(torchrun: Callable[[str], Status], programs: Path) -> None:
    assert torchrun("echo $TMPDIR; exit 3") == Status(3, preempted=False, sigterm=False)
    assert files.read_sigterm(programs, "n0", 1) is None
    assert torchrun("echo more") == Status(0, preempted=False, sigterm=False)
    assert torchrun("kill -9 $$").code == 128 + 9
    assert files.log_of(programs, "n0", 1).read_text() == f"{programs}\nmore\n"


def test_a_sigterm_is_noted_once_while_torchrun_goes_on(
    torchrun: Callable[[str], Status], programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp/own")
    times = iter((1000.0, 1001.0))
    monkeypatch.setattr(on_node, "time", SimpleNamespace(time=lambda: next(times)))
    write = Mock(wraps=files.write_sigterm)
    monkeypatch.setattr(files, "write_sigterm", write)
    noted = shlex.quote(f"{programs}/n0.1.sigterm")
    text = f"""
        echo $TMPDIR $$
        kill -TERM $PPID
        while ! [ -e {noted} ]; do sleep 0.01; done
        kill -TERM $PPID
        exec sleep 0.15"""
    assert torchrun(text) == Status(0, preempted=False, sigterm=True)
    folder, pid = files.log_of(programs, "n0", 1).read_text().split()
    assert folder == "/tmp/own"
    assert files.read_sigterm(programs, "n0", 1) == (int(pid), 1000.0)
    write.assert_called_once()
