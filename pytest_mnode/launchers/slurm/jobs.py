"""Jobs as Slurm tells of them: `squeue --json` of any version, and `scontrol --oneliner` text."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.hostlist import expand
from pytest_mnode.launchers.slurm.fields import moment, number, records, text_of

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
                     "RESV_DEL_HOLD", "SPECIAL_EXIT", "STAGE_OUT", "POWER_UP_NODE"})  # fmt: skip
RUNNING = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING",
                     "COMPLETING"})  # fmt: skip
OVER = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                  "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", "LAUNCH_FAILED"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """One job at one moment. Times are seconds since the epoch; None is what Slurm did not say.

    state: the base state, such as PENDING, RUNNING, COMPLETED; flags: what is said besides it,
        such as COMPLETING, while processes of a job that has ended are still being ended.
    reason: why it is in this state, such as Resources; None where Slurm names none.
    nodes: what it holds, or held, by name.
    restarts: how often it was requeued.
    starts_at: when it started, or, while it waits, is predicted to.
    exit_status, exit_signal: of its batch script, once that has ended.
    gpus: that it holds, on all of its nodes together; None where none are counted: it has none,
        or Slurm does not account for GPUs.
    reservation: that it was submitted to.
    """

    job_id: int
    name: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str | None = None
    nodes: tuple[str, ...] = ()
    nodes_wanted: int | None = None
    partition: str | None = None
    user: str | None = None
    restarts: int | None = None
    submitted_at: float | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    exit_status: int | None = None
    exit_signal: int | None = None
    array_job_id: int | None = None
    gpus: int | None = None
    reservation: str | None = None

    @property
    def waits(self) -> bool:
        """Holds nothing yet."""
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        """Holds nodes and has not ended."""
        return self.state in RUNNING

    @property
    def over(self) -> bool:
        """Has ended, and everything of it; a job that is COMPLETING still holds its nodes."""
        return self.state in OVER and "COMPLETING" not in self.flags

    @property
    def known(self) -> bool:
        """Whether the state is one that this package knows; else nothing follows from it."""
        return self.state in WAITING | RUNNING | OVER

    @property
    def text(self) -> str:
        """`TIMEOUT (TimeLimit)`."""
        return f"{self.state} ({self.reason})" if self.reason else self.state


def jobs_from_json(text: str) -> tuple[JobState, ...]:
    """All jobs in the output of `squeue --json`.

    Raises ClusterError, one line, where it is not that; one job that cannot be read is not left
    out, for the question is often whether there is none.
    """
    try:
        data = json.loads(text)
        entries = data["jobs"]
        found = tuple(_from_entry(entry) for entry in entries)
        wrong = data.get("errors")
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ClusterError(f"squeue --json: cannot be read: {told}") from None
    if wrong:  # a controller that does not answer is an empty list, and exit status 0
        first = wrong[0] if isinstance(wrong, list) else wrong
        said = first.get("description") if isinstance(first, Mapping) else None
        raise ClusterError(f"squeue --json: {str(said or first).splitlines()[0]}")
    return found


def jobs_from_text(text: str) -> tuple[JobState, ...]:
    """All jobs in the output of `scontrol --oneliner show job`; ClusterError as above."""
    try:
        found = tuple(_from_record(record) for record in records(text, "JobId"))
    except (KeyError, ValueError, UsageError) as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ClusterError(f"scontrol show job: cannot be read: {told}") from None
    if not found and "No jobs in the system" not in text:
        raise no_job_in(text)
    return found


def no_job_in(text: str) -> ClusterError:
    """For text that should tell of a job, and does not."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = repr(lines[0][:80]) if lines else "it said nothing"
    return ClusterError(f"scontrol show job: cannot be read: {told}")


def _from_entry(entry: Mapping[str, Any]) -> JobState:
    states = entry["job_state"]
    states = [states] if isinstance(states, str) else [str(state) for state in states]
    status, signal = _exit_of(entry.get("exit_code"))
    base, flags = _base_and_flags(states)
    job_id = number(entry["job_id"])
    if job_id is None:
        raise ValueError(f"job_id {entry['job_id']!r}")
    return JobState(
        job_id=job_id,
        name=str(entry.get("name") or ""),
        state=base,
        flags=flags,
        reason=text_of(entry.get("state_reason")),
        nodes=expand(text_of(entry.get("nodes")) or ""),
        nodes_wanted=number(entry.get("node_count")),
        partition=text_of(entry.get("partition")),
        user=text_of(entry.get("user_name")),
        restarts=number(entry.get("restart_cnt")),
        submitted_at=moment(entry.get("submit_time")),
        starts_at=moment(entry.get("start_time")),
        ends_at=moment(entry.get("end_time")),
        exit_status=status if base in OVER else None,
        exit_signal=signal if base in OVER else None,
        array_job_id=number(entry.get("array_job_id")) or None,
        gpus=_gpus(text_of(entry.get("tres_alloc_str"))),
        reservation=text_of(entry.get("resv_name")),
    )


def _from_record(record: Mapping[str, str]) -> JobState:
    status, _, signal = record.get("ExitCode", "").partition(":")
    base, flags = _base_and_flags(record["JobState"].split("+"))
    user = record.get("UserId", "").partition("(")[0]
    job_id = number(record["JobId"])
    if job_id is None:
        raise ValueError(f"JobId={record['JobId']}")
    return JobState(
        job_id=job_id,
        name=record.get("JobName", ""),
        state=base,
        flags=flags,
        reason=text_of(record.get("Reason")),
        nodes=expand(text_of(record.get("NodeList")) or ""),
        nodes_wanted=number(record.get("NumNodes")),
        partition=text_of(record.get("Partition")),
        user=text_of(user),
        restarts=number(record.get("Restarts")),
        submitted_at=moment(record.get("SubmitTime")),
        starts_at=moment(record.get("StartTime")),
        ends_at=moment(record.get("EndTime")),
        exit_status=number(status) if base in OVER else None,
        exit_signal=(number(signal) or None) if base in OVER else None,
        array_job_id=number(record.get("ArrayJobId")),
        gpus=None if base in WAITING else _gpus(record.get("AllocTRES", record.get("TRES"))),
        reservation=text_of(record.get("Reservation")),
    )


def _gpus(resources: str | None) -> int | None:
    """Of `cpu=8,node=4,gres/gpu=32,gres/gpu:a100=32`, where types are counted in the whole; of
    types alone where Slurm accounts for those only."""
    whole = re.search(r"(?:^|,)gres/gpu=(\d+)", resources or "")
    if whole:
        return int(whole[1])
    typed = re.findall(r"(?:^|,)gres/gpu:[^=,]+=(\d+)", resources or "")
    return sum(map(int, typed)) if typed else None


def _base_and_flags(states: list[str]) -> tuple[str, frozenset[str]]:
    """Newer versions list the base state with its flags; COMPLETING alone hides which it is."""
    words = [state.strip().upper() for state in states if state.strip()]
    if not words:
        raise ValueError("a job without a state")
    flags = {"COMPLETING", "CONFIGURING", "REQUEUED", "RESIZING", "SIGNALING", "STOPPED"}
    base = next((word for word in words if word not in flags), words[0])
    return base, frozenset(words) - {base}


def _exit_of(value: Any) -> tuple[int | None, int | None]:
    """Exit status and signal: older versions give wait's status, newer ones both by name."""
    if isinstance(value, Mapping) and "return_code" in value:
        signal = value.get("signal") or {}
        at = signal.get("id", signal.get("signal_id"))
        return number(value["return_code"]), number(at) or None
    raw = number(value)
    if raw is None:
        return None, None
    if os.WIFSIGNALED(raw):
        return os.WEXITSTATUS(raw), os.WTERMSIG(raw)
    return os.WEXITSTATUS(raw), None
