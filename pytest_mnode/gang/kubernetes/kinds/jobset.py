"""JobSet under Kueue: JobSet has no gangs, so Kueue suspends it until quota is available."""

from __future__ import annotations

from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.kueue import Kueue, admitted, kueue_words, queued
from pytest_mnode.gang.kubernetes.kinds.plain import PodGang, Resource, job_spec
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object, conditions, is_true
from pytest_mnode.launchers.kubernetes.manifest import KEPT_S, Manifest

JOB_SET = Resource("jobset.x-k8s.io", "JobSet", "jobsets")
_RESTARTS = 3


class JobSet(Kueue):
    """A JobSet of one Job; it is restarted as a whole if a pod fails."""

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


def ended(root: Object, complete: str, words: str) -> RootState:
    """State of an object that ends with the condition `complete` or Failed."""
    found = conditions(root)
    end = next((name for name in ("Failed", complete) if is_true(found, name)), "")
    return RootState(end or words, bool(end), end == "Failed")
