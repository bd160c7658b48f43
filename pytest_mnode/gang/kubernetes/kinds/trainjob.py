"""Kubeflow Trainer: a TrainJob with a runtime that has the pod template and podGroupPolicy.

Volcano schedules the gang if it has a queue, else coscheduling.
"""

from __future__ import annotations

from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.coscheduling import SCHEDULER
from pytest_mnode.gang.kubernetes.kinds.jobset import ended, jobset_spec
from pytest_mnode.gang.kubernetes.kinds.plain import Plain, PodGang, Resource
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object
from pytest_mnode.launchers.kubernetes.manifest import Manifest

TRAIN_JOB = Resource("trainer.kubeflow.org", "TrainJob", "trainjobs")
RUNTIME = Resource("trainer.kubeflow.org", "TrainingRuntime", "trainingruntimes")
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_QUEUE = "scheduling.volcano.sh/queue-name"


class TrainJob(Plain):
    """A TrainingRuntime for one gang, and a TrainJob that uses it."""

    name: ClassVar[str] = "trainjob"
    root: ClassVar[Resource] = TRAIN_JOB
    beside: ClassVar[tuple[Resource, ...]] = (RUNTIME,)

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        volcano = bool(gang.queue)
        gang.template["spec"].setdefault("schedulerName", "volcano" if volcano else SCHEDULER)
        sets = jobset_spec(gang)
        # The controller completes the step with this name, and ends the JobSet itself.
        sets["replicatedJobs"][0]["template"]["metadata"] = {"labels": {_STEP: "trainer"}}
        sets.pop("ttlSecondsAfterFinished")
        policy: Manifest = {"volcano": {}}
        if not volcano:
            policy = {"coscheduling": {"scheduleTimeoutSeconds": 10}}
        runtime: Manifest = {
            "metadata": {"annotations": {_QUEUE: gang.queue}} if volcano else {},
            "spec": {
                "mlPolicy": {"numNodes": gang.size},
                "podGroupPolicy": policy,
                "template": {"spec": sets},
            },
        }
        ref = {"apiGroup": RUNTIME.group, "kind": RUNTIME.kind, "name": gang.name}
        train = {"runtimeRef": ref, "trainer": {"numNodes": gang.size}}
        return {RUNTIME: runtime, TRAIN_JOB: {"spec": train}}

    def state(self, root: Object, quoted: Object | None) -> RootState:  # noqa: ARG002
        return ended(root, "Complete", "")
