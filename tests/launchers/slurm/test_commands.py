"""Slurm's commands: limits, and one-line errors. The programs here are fakes on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import Slurm, SlurmError, commands
from pytest_mnode.launchers.slurm.commands import NodesHidden, error_line
from tests.programs import write_program


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin it's"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def write(directory: Path, name: str, script: str) -> None:
    path = directory / name
    write_program(path, f"#!/bin/sh\n{script}\n")


def test_a_failure_is_one_line_with_the_first_error(fake: Path) -> None:
    lines = ["note", "sbatch: error: Batch job submission failed: no", "sbatch: error: more"]
    write(fake, "sbatch", "; ".join(f'echo "{line}" >&2' for line in lines) + "; exit 1")
    with pytest.raises(SlurmError) as error:
        Slurm().run("sbatch", "x")
    assert str(error.value) == "sbatch: Batch job submission failed: no"
    assert error.value.returncode == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["salloc: Granted job allocation 17", "salloc: Nodes n[1-4] are ready for job",
          "salloc: Job allocation 17 has been revoked."],
         "salloc: Job allocation 17 has been revoked."),
        (["squeue: unrecognized option '--x'", 'Try "squeue --help" for more information'],
         "squeue: unrecognized option '--x'"),
        (["salloc: Pending job allocation 17", "salloc: error: Job violates policy", "salloc: x"],
         "Job violates policy"),
        ([], "ended with status 3 and no message"),
    ],
)  # fmt: skip
def test_an_error_line_is_preferred_over_the_last_line(lines: list[str], message: str) -> None:
    assert error_line("\n".join(lines), 3) == message


def test_a_missing_program(fake: Path) -> None:
    with pytest.raises(SlurmError, match=r"^no-slurm: no such command on this machine; install "):
        Slurm().run("no-slurm")


def test_a_command_that_exceeds_its_limit(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "COMMAND_LIMIT_S", 0.2)
    write(fake, "squeue", "exec sleep 20")
    with pytest.raises(SlurmError, match=r"^squeue: no answer in 0\.2 s$") as error:
        Slurm().run("squeue")
    assert error.value.returncode is None
    with pytest.raises(SlurmError, match="no answer"):  # the list of all jobs is not tried
        Slurm().jobs("a")


def test_squeue_variables_of_the_user_have_no_effect(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    write(fake, "squeue", 'echo "$SQUEUE_STATES $SLURM_TIME_FORMAT"')
    assert Slurm().run("squeue") == " %s\n"


def test_more_nodes_than_fit_into_an_argument_by_name(fake: Path) -> None:
    write(fake, "scontrol", 'echo "NodeName=$5 State=IDLE"')
    [node] = Slurm().nodes(f"frontier{number:05d}" for number in range(1, 9473))
    assert node.name == "frontier[00001-09472]"


@pytest.mark.parametrize(
    ("squeue", "calls"),
    [("echo \"squeue: unrecognized option '--me'\" >&2; exit 1", 1), ("echo 1RUNNING0", 2)],
)
def test_jobs_of_an_older_squeue(fake: Path, squeue: str, calls: int) -> None:
    write(fake, "squeue", f"echo >>'{fake.parent}/called'; {squeue}")
    write(fake, "scontrol", "for n in a b; do echo JobId=1 JobName=$n JobState=RUNNING; done")
    slurm = Slurm()
    assert [job.name for job in (*slurm.jobs("a"), *slurm.jobs("a"))] == ["a", "a"]
    assert len((fake.parent / "called").read_text().splitlines()) == calls


def test_a_failed_squeue_does_not_list_all_jobs(fake: Path) -> None:
    write(fake, "squeue", 'echo "slurm_load_jobs error: Unable to contact" >&2; exit 1')
    write(fake, "scontrol", "echo JobId=1 JobName=a JobState=RUNNING")
    with pytest.raises(SlurmError, match=r"^squeue: .*Unable to contact"):
        Slurm().jobs("a")


def test_one_job_by_its_number(fake: Path) -> None:
    write(fake, "scontrol", "echo JobId=7 JobName=a JobState=PENDING")
    job = Slurm().job(7)
    assert job is not None
    assert job.waits
    write(fake, "scontrol", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert Slurm().job(7) is None
    write(fake, "scontrol", 'echo "slurm_load_jobs error: Unable to contact" >&2; exit 1')
    with pytest.raises(SlurmError, match="Unable to contact"):
        Slurm().job(7)


@pytest.mark.parametrize("answer", ["exit 0", "echo JobId=8 JobName=a JobState=PENDING"])
def test_an_answer_about_another_job_is_ignored(fake: Path, answer: str) -> None:
    write(fake, "scontrol", answer)
    with pytest.raises(ClusterError, match=r"^scontrol show job: cannot be read: "):
        Slurm().job(7)


def test_cancelling_an_ended_job_is_no_error(fake: Path) -> None:
    ended = "scancel: error: Kill job error on job id 7: Invalid job id specified"
    write(fake, "scancel", f"echo '{ended}' >&2; exit 1")
    Slurm().cancel(7)
    Slurm().cancel()
    write(fake, "scancel", 'echo "scancel: error: Access/permission denied" >&2; exit 1')
    with pytest.raises(SlurmError, match="denied"):
        Slurm().cancel(7)


def test_missing_commands_are_named(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake))
    assert "srun, salloc, sbatch, scontrol not found in PATH" in str(Slurm.unavailable())


def test_only_jobs_of_one_name_are_requested(fake: Path) -> None:
    asked = fake.parent / "asked"
    lines = (
        "7|RUNNING|2|None|n[0-1]|all||me|a\n8|PENDING|0|Resources||all|maintenance|me|a|b\n"
        "9|COMPLETING|0|None|n2|all|(null)|me|a"
    )
    write(fake, "squeue", f"echo \"$@\" >>{asked}; echo '{lines}'")
    found = Slurm().jobs("a")
    assert [(job.job_id, job.state, job.restarts, job.nodes) for job in found] == [
        (7, "RUNNING", 2, ("n0", "n1")),
        (8, "PENDING", 0, ()),
        (9, "COMPLETING", 0, ("n2",)),
    ]
    assert (found[1].reason, found[1].name) == ("Resources", "a|b")
    # By these a request that can never be granted is known.
    assert [job.reservation for job in found] == [None, "maintenance", None]
    assert {job.partition for job in found} == {"all"}
    assert asked.read_text().startswith("--all --states=all --me --name=a --noheader ")


def test_nodes_that_slurm_hides_from_its_users(fake: Path) -> None:
    write(fake, "scontrol", "echo 'slurm_load_node error: Access/permission denied' >&2; exit 1")
    with pytest.raises(NodesHidden, match=r"no nodes \(PrivateData=nodes\)$"):
        Slurm().nodes(["n0"])


EXCLUSIVE = (
    "JobId=7 JobName=x JobState=RUNNING NodeList=n[0-2] TRES=cpu=4,node=3,billing=4 JOB_GRES=gpu:9 "
    "  Nodes=n[0-1] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:4(IDX:0,2-4)   Nodes=n2 CPU_IDs=0 Mem=10 "
    "GRES=gpu:a100:1(IDX:0),nic:2   Nodes=n3 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1"
)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (EXCLUSIVE, {"n0": 4, "n1": 4, "n2": 1}),
        (f"{EXCLUSIVE} TresPerNode=gres:gpu:4", {}),
        (f"{EXCLUSIVE} TresPerJob=gres:gpu:8", {}),
        ("JobId=7 JobName=x JobState=RUNNING", {}),
    ],
)
def test_gpus_that_an_exclusive_job_holds_without_a_request(
    fake: Path, text: str, gpus: dict[str, int]
) -> None:
    write(fake, "scontrol", f'case "$*" in *" -d "*) echo "{text}";; *) exit 1;; esac')
    assert Slurm().gpus_beside_requests(7) == gpus
    write(fake, "scontrol", "kill -SEGV $$")
    assert Slurm().gpus_beside_requests(7) == {}
