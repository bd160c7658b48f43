"""Kueue: a Job or JobSet in a queue is suspended until the quota has room for all of its pods.

`Admitted` is about quota, not nodes, so it is only quoted; the pods decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.plain import (
    JOB,
    Plain,
    PodGang,
    Resource,
    ended,
    job_spec,
    job_state,
    words_of,
)
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object, conditions
from pytest_mnode.launchers.kubernetes.manifest import KEPT_S, Manifest

WORKLOAD = Resource("kueue.x-k8s.io", "Workload", "workloads")
JOB_SET = Resource("jobset.x-k8s.io", "JobSet", "jobsets")
_RESTARTS = 3
_QUEUE = "kueue.x-k8s.io/queue-name"
_JOB_UID = "kueue.x-k8s.io/job-uid"


class Kueue(Plain):
    """A suspended Job with a queue label."""

    name: ClassVar[str] = "kueue"
    quoted: ClassVar[Resource | None] = WORKLOAD

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        return {JOB: queued(gang, {"suspend": True, **job_spec(gang)})}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        return admitted(job_state(root, kueue_words(quoted)), quoted)

    def quoted_by(self, run_id: str, roots: Iterable[Object]) -> str:  # noqa: ARG002
        return f"{_JOB_UID} in ({','.join(root['metadata']['uid'] for root in roots)})"


class JobSet(Kueue):
    """A suspended JobSet of one Job, restarted as a whole if a pod fails; JobSet has no gangs."""

    name: ClassVar[str] = "jobset"
    root: ClassVar[Resource] = JOB_SET
    restarts_from: ClassVar[str] = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        spec = {"suspend": True, **jobset_spec(gang)}
        return {JOB_SET: queued(gang, spec)}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        state = ended(root, "Completed", kueue_words(quoted))
        restarts = int((root.get("status") or {}).get("restarts") or 0)
        return admitted(RootState(state.words, state.over, state.failed, restarts), quoted)


def jobset_spec(gang: PodGang) -> Manifest:
    """Spec of a JobSet with one replicated Job, which has the time limit: a JobSet has none."""
    job = job_spec(gang)
    job.pop("ttlSecondsAfterFinished")
    return {
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        "failurePolicy": {"maxRestarts": _RESTARTS if gang.requeue else 0},
        "ttlSecondsAfterFinished": KEPT_S,
    }


def queued(gang: PodGang, spec: Manifest) -> Manifest:
    return {"metadata": {"labels": {_QUEUE: gang.queue}}, "spec": spec}


def kueue_words(workload: Object | None) -> str:
    """Kueue's status of a job, in words; "" without a workload."""
    if workload is None:
        return ""
    evicted = conditions(workload).get("Evicted", {})
    if evicted.get("status") == "True":
        return f"Evicted ({evicted.get('reason')})"
    return words_of(workload, "Admitted", "QuotaReserved")


def admitted(state: RootState, workload: Object | None) -> RootState:
    """`state`, blocked if the queue admits nothing, because it does not exist or is stopped."""
    reserved = conditions(workload).get("QuotaReserved", {})
    blocked = reserved.get("reason") == "Inadmissible"
    return RootState(state.words, state.over, state.failed, state.restarts, blocked)
