"""Schedulers that keep PodGroups whole: a gang is a PodGroup and a Job whose pods belong to it."""

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

NATIVE_GROUP = Resource("scheduling.k8s.io", "PodGroup", "podgroups")
POD_GROUP = Resource("scheduling.x-k8s.io", "PodGroup", "podgroups")
SCHEDULER = "scheduler-plugins-scheduler"
"""Name of the scheduler in the plugin's Helm charts; a template may name another."""


class Native(Plain):
    """The default scheduler: the pods of a Job name a PodGroup.

    Kubernetes 1.36 and later, with the feature gate GenericWorkload. Source: KEP-4671.
    """

    name: ClassVar[str] = "native"
    beside: ClassVar[tuple[Resource, ...]] = (NATIVE_GROUP,)
    quoted: ClassVar[Resource | None] = NATIVE_GROUP

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
        return {NATIVE_GROUP: {"spec": group}, JOB: {"spec": job}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        # The reason why a group waits is shown by its pods.
        found = conditions(quoted)
        shown = ("DisruptionTarget", "PodGroupInitiallyScheduled")
        return job_state(root, next((name for name in shown if is_true(found, name)), ""))


class Coscheduling(Plain):
    """The coscheduling plugin of scheduler-plugins: the pods of a Job have a PodGroup's label."""

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
