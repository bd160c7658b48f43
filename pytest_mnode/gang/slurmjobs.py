"""What an experiment sees of Slurm's jobs and nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.engine import Phase, Record
from pytest_mnode.launchers.slurm import JobState, NodeState, expand

ON = "--format=%A|%T|%u|%N|%j"
"""Of squeue: what `jobs_on` reads."""

_FAILED = frozenset(
    {"FAILED", "LAUNCH_FAILED", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE"}
)
_BARRED = re.compile(
    r"QOS|Assoc|Licenses|JobHeld|JobHold|Held|Dependency|BeginTime|PartitionDown|PartitionInactive"
    r"|Invalid(?:Account|QOS)|AccountNotAllowed|\w*Limit\b"
)
"""Reasons for which a job waits though nodes were free: who may run, and when, and how much."""
_TAKEN_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "RESERVED", "REBOOT"})


def phase_of(job: JobState) -> Phase:
    """What a job does with nodes. Raises ClusterError for a state that nothing is known of."""
    if not job.known:
        raise ClusterError(f"job {job.job_id} is {job.state}, which nothing is known of")
    if "COMPLETING" in {job.state, *job.flags}:
        return Phase.ENDING
    if job.waits:
        return Phase.WAITING
    return Phase.OVER if job.over else Phase.HOLDING


def record_of(job: JobState) -> Record:
    """A job as the experiment sees it."""
    phase = phase_of(job)
    nodes = job.nodes if phase in (Phase.HOLDING, Phase.ENDING) else ()
    said = "+".join([job.state, *sorted(job.flags)])
    said += f" ({job.reason})" if job.reason and job.reason != "None" else ""
    failed = phase is Phase.OVER and job.state in _FAILED
    barred = phase is Phase.WAITING and bool(_BARRED.match(job.reason or ""))
    return Record(str(job.job_id), phase, nodes, said, job.restarts or 0, failed, barred)


def jobs_on(text: str) -> tuple[JobState, ...]:
    """Jobs in what squeue prints by ON; a job whose line is none is left out."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|", 4)
        if len(words) == 5 and words[0].isdigit():
            number, state, user, nodes, name = words
            found.append(JobState(int(number), name, state, nodes=expand(nodes), user=user))
    return tuple(found)


def others_of(
    nodes: Sequence[str], jobs: Iterable[JobState], there: Iterable[NodeState], ours: str
) -> dict[str, str]:
    """Of these nodes those that a job has whose name is not `ours`, that were taken out of use, or
    that are away, and by whom or why."""
    found = {
        node.name: node.text
        for node in there
        # What Slurm drains because our own ranks would not end is no decision of somebody else.
        if (node.flags & _TAKEN_OUT or not node.usable) and "Kill task failed" not in node.text
    }
    for job in jobs:
        if job.runs and job.name != ours:
            found |= dict.fromkeys(job.nodes, f"job {job.job_id} of {job.user or 'somebody'}")
    return {node: found[node] for node in nodes if node in found}
