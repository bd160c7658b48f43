"""Volcano: a Job of its own, which starts once minAvailable of its pods fit."""

from __future__ import annotations

from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.plain import Plain, PodGang, Resource
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object, conditions
from pytest_mnode.launchers.kubernetes.manifest import KEPT_S, Manifest

VOLCANO_JOB = Resource("batch.volcano.sh", "Job", "jobs")
POD_GROUP = Resource("scheduling.volcano.sh", "PodGroup", "podgroups")
_OVER = ("Completed", "Failed", "Terminated", "Aborted")
_RESTARTS = 3


class Volcano(Plain):
    """A Job with one task."""

    name: ClassVar[str] = "volcano"
    root: ClassVar[Resource] = VOLCANO_JOB
    quoted: ClassVar[Resource | None] = POD_GROUP
    rank_variable: ClassVar[str] = "VC_TASK_INDEX"
    restarts_from: ClassVar[str] = "metadata.annotations['volcano.sh/job-retry-count']"

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        lost = "RestartJob" if gang.requeue else "TerminateJob"
        gang.template["spec"]["schedulerName"] = "volcano"
        spec: Manifest = {
            "schedulerName": "volcano",
            "queue": gang.queue or "default",
            "minAvailable": gang.least,
            "maxRetry": _RESTARTS,
            "ttlSecondsAfterFinished": KEPT_S,
            "plugins": {"env": []},
            "policies": [{"events": ["PodFailed", "PodEvicted"], "action": lost}],
            "tasks": [{"name": "rank", "replicas": gang.size, "template": gang.template}],
        }
        if gang.priority:
            spec["priorityClassName"] = gang.priority
        return {VOLCANO_JOB: {"spec": spec}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        status = root.get("status") or {}
        state = status.get("state") or {}
        phase = str(state.get("phase") or "not seen yet")
        group = ((quoted or {}).get("status") or {}).get("phase")
        why = conditions(quoted).get("Unschedulable", {})
        words = f"{phase}, PodGroup {group}" if group else phase
        if group in ("Pending", "Inqueue") and why.get("status") == "True":
            words += f" ({' '.join(str(why.get('message', '')).split())})"
        return RootState(
            words=words,
            over=phase in _OVER,
            failed=phase == "Failed",
            restarts=int(status.get("retryCount") or 0),
        )
