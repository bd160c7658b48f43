"""Job states, read from `squeue` or `scontrol --oneliner show job`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.hosts import expand
from pytest_mnode.launchers.slurm.nodes import gpus_of
from pytest_mnode.launchers.slurm.records import number, records, text_of

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
                     "RESV_DEL_HOLD", "SPECIAL_EXIT", "RECONFIG_FAIL", "EXPEDITING"})  # fmt: skip
BOOTING = frozenset({"CONFIGURING", "POWER_UP_NODE"})
ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
RUNNING = BOOTING | ENDING | {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
OVER = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                  "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", "LAUNCH_FAILED"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """State of one job at one moment; a field is None if Slurm does not report it.

    state: such as PENDING, RUNNING, COMPLETED; or a flag that Slurm shows in its place, such as
        COMPLETING, while it still ends processes of a job that is over. Source: Job State Codes.
    reason: why it is in this state, such as Resources; None if Slurm gives none.
    nodes: names of the nodes that it holds, or held.
    restarts: how often it was requeued.
    gpus: number of GPUs that it holds on all of its nodes together; None if none are counted: it
        has none, or Slurm does not account for GPUs.
    reservation: name of the reservation that it was submitted to.
    """

    job_id: int
    name: str
    state: str
    reason: str | None = None
    nodes: tuple[str, ...] = ()
    partition: str | None = None
    user: str | None = None
    restarts: int | None = None
    gpus: int | None = None
    reservation: str | None = None

    @property
    def waits(self) -> bool:
        """Whether it holds no resources yet."""
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        """Whether it holds nodes and has not ended."""
        return self.state in RUNNING

    @property
    def ending(self) -> bool:
        """Whether its script has ended; it may still hold its nodes."""
        return self.state in ENDING

    @property
    def over(self) -> bool:
        """Whether it has ended with all its processes; a COMPLETING job still holds its nodes."""
        return self.state in OVER

    @property
    def known(self) -> bool:
        """Whether this package knows the state; an unknown state proves nothing."""
        return self.state in WAITING | RUNNING | OVER

    @property
    def text(self) -> str:
        """State and reason, such as `TIMEOUT (TimeLimit)`."""
        return f"{self.state} ({self.reason})" if self.reason else self.state


def jobs_from_text(text: str) -> tuple[JobState, ...]:
    """All jobs in the output of `scontrol --oneliner show job`. Raises ClusterError."""
    try:
        found = tuple(_job(record) for record in records(text, "JobId"))
    except KeyError as error:
        raise ClusterError(f"scontrol show job: cannot be read: no {error.args[0]}=") from None
    except (ValueError, UsageError) as error:
        raise _unreadable("scontrol show job", error) from None
    if not found and "No jobs in the system" not in text:
        raise no_job_in(text)
    return found


_FIELDS = {
    "JobID": "JobId",
    "State": "JobState",
    "RestartCnt": "Restarts",
    "Reason": "Reason",
    "NodeList": "NodeList",
    "Partition": "Partition",
    "Reservation": "Reservation",
    "UserName": "UserId",
    "Name": "JobName",  # last: it may contain the separator
}
"""scontrol's keys, by squeue's fields."""
SHORT = f"--Format={':|,'.join(_FIELDS)}:"
"""The format of squeue that `jobs_from_lines` reads; a field without a width is not cut."""


def jobs_from_lines(text: str) -> tuple[JobState, ...]:
    """All jobs in the output of squeue with SHORT. Raises ClusterError."""
    most = len(_FIELDS) - 1
    try:
        # A name may contain a newline too.
        jobs = (job.strip() for job in re.split(r"^(?=\d+\|)", text, flags=re.MULTILINE))
        lines = [job.split("|", most) for job in jobs if job]
        return tuple(_job(dict(zip(_FIELDS.values(), words, strict=True))) for words in lines)
    except (ValueError, UsageError) as error:
        raise _unreadable("squeue", error) from None


def _unreadable(what: str, error: Exception) -> ClusterError:
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    return ClusterError(f"{what}: cannot be read: {why}")


def unrequested_gpus(text: str) -> dict[str, int]:
    """GPUs by node of a job that requested none, from `scontrol -d --oneliner show job`."""
    record = next(records(text, "JobId"), {})
    if any(key.startswith("TresPer") for key in record):
        return {}
    found: dict[str, int] = {}
    for nodes, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S+)", text):
        if (gpus := gpus_of(gres)) is not None:
            found |= dict.fromkeys(expand(nodes), gpus)
    return found


def no_job_in(text: str) -> ClusterError:
    """The error for a text that should describe a job but does not."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = repr(lines[0][:80]) if lines else "it printed nothing"
    return ClusterError(f"scontrol show job: cannot be read: {found}")


def _job(record: Mapping[str, str]) -> JobState:
    state = record["JobState"].upper()
    job_id = number(record["JobId"])
    if job_id is None or not state:
        raise ValueError(f"job {record['JobId']!r} is in state {state!r}")
    user = record.get("UserId", "").partition("(")[0]
    return JobState(
        job_id=job_id,
        name=record.get("JobName", ""),
        state=state,
        reason=text_of(record.get("Reason")),
        nodes=expand(text_of(record.get("NodeList")) or ""),
        partition=text_of(record.get("Partition")),
        user=text_of(user),
        restarts=number(record.get("Restarts")),
        gpus=None if state in WAITING else _gpus(record.get("AllocTRES", record.get("TRES"))),
        reservation=text_of(record.get("Reservation")),
    )


def _gpus(resources: str | None) -> int | None:
    """GPUs in `cpu=8,node=4,gres/gpu=32,gres/gpu:a100=32`, where the total includes all types; the
    sum of the types if Slurm accounts only for types."""
    whole = re.search(r"(?:^|,)gres/gpu=(\d+)", resources or "")
    if whole:
        return int(whole[1])
    typed = re.findall(r"(?:^|,)gres/gpu:[^=,]+=(\d+)", resources or "")
    return sum(map(int, typed)) if typed else None
