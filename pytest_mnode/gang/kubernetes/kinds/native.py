"""Gangs of the default scheduler: a PodGroup of scheduling.k8s.io, which the pods name.

Kubernetes 1.36 and later, with the feature gate GenericWorkload. Source: KEP-4671.
"""

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
from pytest_mnode.launchers.kubernetes.conditions import Object, conditions, is_true
from pytest_mnode.launchers.kubernetes.manifest import Manifest

POD_GROUP = Resource("scheduling.k8s.io", "PodGroup", "podgroups")


class Native(Plain):
    """A PodGroup and a Job whose pods belong to it."""

    name: ClassVar[str] = "native"
    beside: ClassVar[tuple[Resource, ...]] = (POD_GROUP,)
    quoted: ClassVar[Resource | None] = POD_GROUP

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        gang.template["spec"]["schedulingGroup"] = {"podGroupName": gang.name}
        group: Manifest = {"schedulingPolicy": {"gang": {"minCount": gang.least}}}
        if gang.priority:
            # Gangs are evicted whole, because a gang without one pod is useless.
            group |= {"priorityClassName": gang.priority, "disruptionMode": {"all": {}}}
        job = job_spec(gang)
        if gang.requeue:
            # Pods that the scheduler evicts are recreated, and wait for room for all of them.
            evicted = {"type": "DisruptionTarget", "status": "True"}
            rule = {"action": "Ignore", "onPodConditions": [evicted]}
            job["podFailurePolicy"] = {"rules": [rule]}
        return {POD_GROUP: {"spec": group}, JOB: {"spec": job}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        # The reason why a group waits is shown by its pods.
        found = conditions(quoted)
        shown = ("DisruptionTarget", "PodGroupInitiallyScheduled")
        return job_state(root, next((name for name in shown if is_true(found, name)), ""))
