"""Jobs in the output of several versions of Slurm."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import JobState
from pytest_mnode.launchers.slurm.jobs import jobs_from_text

TEXT = (
    "JobId=17 JobName=gang a UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A JobState=RUNNING "
    "Reason=None Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 ExitCode=0:0 "
    "SubmitTime=1700000000 StartTime=1700000001 EndTime=1700003601 Partition=all "
    "ReqNodeList=(null) NodeList=node[0-2] BatchHost=node0 NumNodes=3 NumCPUs=6 "
    "TRES=cpu=24,node=3,gres/gpu=24,gres/gpu:a100=24 "
    "Command=/home/ada/run State=job WorkDir=/home/ada"
)
READ = JobState(
    job_id=17,
    name="gang a",
    state="RUNNING",
    nodes=("node0", "node1", "node2"),
    partition="all",
    user="ada",
    restarts=1,
    gpus=24,
)


def job_of(text: str) -> JobState:
    (job,) = jobs_from_text(text)
    return job


def test_jobs_are_read_from_text() -> None:
    assert jobs_from_text(f"{TEXT}\n") == (READ,)
    assert jobs_from_text("No jobs in the system\n") == ()


def test_a_name_may_have_words_that_look_like_fields() -> None:
    job = job_of(TEXT.replace("JobName=gang a", "JobName=sweep LR=0.1 Nodes=2"))
    assert (job.name, job.user) == ("sweep LR=0.1 Nodes=2", "ada")


def test_a_component_of_a_heterogeneous_job() -> None:
    job = job_of(
        "JobId=301 HetJobId=300 HetJobOffset=1 JobName=pretrain\n   HetJobIdSet=300-301\n"
        "   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n"
        "   JobState=RUNNING Reason=None NodeList=gpu[01-02] TRES=cpu=16,node=2,gres/gpu=16\n"
    )
    assert (job.job_id, job.name, job.user, job.gpus) == (301, "pretrain", "ann", 16)


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error: x\n", "12 RUNNING\n"])
def test_text_without_a_job_is_an_error(text: str) -> None:
    with pytest.raises(ClusterError) as error:
        jobs_from_text(text)
    printed = repr(text.strip()) if text.strip() else "it printed nothing"
    assert str(error.value) == f"scontrol show job: cannot be read: {printed}"


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ("cpu=256,gres/gpu=16,gres/gpu:a100=16", 16),
        ("cpu=256,gres/gpu:a100=8,gres/gpu:h100=4", 12),  # only types of GPUs are accounted for
        ("gres/gpu=0,cpu=1", 0),
        ("cpu=256,mem=2T,node=2,billing=256", None),
        ("cpu=256,gres/gpumem=4", None),
    ],
)
def test_gpus_are_counted_if_slurm_accounts_for_them(resources: str, gpus: int | None) -> None:
    assert job_of(f"JobId=1 JobState=RUNNING AllocTRES={resources}").gpus == gpus


def test_the_reservation_of_a_job() -> None:
    job = job_of("JobId=1 JobState=PENDING Reservation=maint_1")
    assert job.reservation == "maint_1"


def test_a_pending_job_has_no_nodes() -> None:
    job = job_of("JobId=1 JobState=PENDING Reason=Resources NodeList=(null)")
    assert (job.waits, job.runs, job.over) == (True, False, False)
    assert (job.reason, job.nodes) == ("Resources", ())


@pytest.mark.parametrize(
    ("states", "waits", "runs", "over"),
    [
        ("CONFIGURING", False, True, False),
        ("COMPLETING", False, True, False),
        ("COMPLETED", False, False, True),
        ("STAGE_OUT", False, True, False),
        ("POWER_UP_NODE", False, True, False),
        ("REQUEUED", True, False, False),
        ("NODE_FAIL", False, False, True),
        ("SOMETHING_NEW", False, False, False),
    ],
)
def test_phases_of_job_states(states: str, waits: bool, runs: bool, over: bool) -> None:
    job = job_of(f"JobId=1 JobState={states}")
    assert (job.waits, job.runs, job.over) == (waits, runs, over)
    assert job.known is (states != "SOMETHING_NEW")


@pytest.mark.parametrize(
    "text",
    ["JobId=1 JobState=", "JobId=x JobState=RUNNING", "JobId=1 JobState=RUNNING NodeList=n[3-"],
)
def test_an_unreadable_job_is_an_error(text: str) -> None:
    with pytest.raises(ClusterError) as error:
        jobs_from_text(text)
    assert str(error.value).startswith("scontrol show job: cannot be read: ")
    assert "\n" not in str(error.value)


def test_a_record_on_several_lines_and_one_without_a_state() -> None:
    text = "JobId=31 JobName=a b\n   UserId=ada(7)\n   JobState=RUNNING\n   NodeList=n[3-4]\n"
    job = job_of(text)
    assert (job.name, job.user, job.state, job.nodes) == ("a b", "ada", "RUNNING", ("n3", "n4"))
    with pytest.raises(ClusterError, match="cannot be read: no JobState="):
        jobs_from_text("JobId=31 JobName=a\n")


@pytest.mark.parametrize("state", ["RECONFIG_FAIL", "EXPEDITING", "REQUEUE_HOLD"])
def test_a_requeued_job_is_pending(state: str) -> None:
    job = job_of(f"JobId=1 JobState={state}")
    assert (job.known, job.waits, job.runs, job.over) == (True, True, False, False)
