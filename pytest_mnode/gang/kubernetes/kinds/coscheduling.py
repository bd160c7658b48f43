"""The coscheduling plugin of scheduler-plugins: a PodGroup, which pods name in a label."""

from __future__ import annotations

from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.plain import (
    JOB,
    Plain,
    PodGang,
    Resource,
    job_spec,
    job_state,
)
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object
from pytest_mnode.launchers.kubernetes.manifest import Manifest

POD_GROUP = Resource("scheduling.x-k8s.io", "PodGroup", "podgroups")
SCHEDULER = "scheduler-plugins-scheduler"
"""Name of the scheduler in the plugin's Helm charts; a template may name another."""


class Coscheduling(Plain):
    """A PodGroup and a Job whose pods belong to it."""

    name: ClassVar[str] = "coscheduling"
    beside: ClassVar[tuple[Resource, ...]] = (POD_GROUP,)
    quoted: ClassVar[Resource | None] = POD_GROUP

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        template = gang.template
        template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = gang.name
        template["spec"].setdefault("schedulerName", SCHEDULER)
        group = {"minMember": gang.least, "scheduleTimeoutSeconds": 10}
        return {POD_GROUP: {"spec": group}, JOB: {"spec": job_spec(gang)}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        phase = ((quoted or {}).get("status") or {}).get("phase")
        return job_state(root, f"PodGroup {phase}" if phase else "")
