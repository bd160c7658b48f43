"""Operators whose jobs are gangs: Volcano, Kubeflow's training operator, Kubeflow Trainer."""

from __future__ import annotations

import copy
from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.kueue import jobset_spec
from pytest_mnode.gang.kubernetes.kinds.plain import Plain, PodGang, Resource, ended
from pytest_mnode.gang.kubernetes.kinds.pod_groups import SCHEDULER
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object, conditions
from pytest_mnode.launchers.kubernetes.manifest import KEPT_S, PYTORCH, Manifest, rename_main

VOLCANO_JOB = Resource("batch.volcano.sh", "Job", "jobs")
VOLCANO_GROUP = Resource("scheduling.volcano.sh", "PodGroup", "podgroups")
PYTORCH_JOB = Resource("kubeflow.org", "PyTorchJob", "pytorchjobs")
TRAIN_JOB = Resource("trainer.kubeflow.org", "TrainJob", "trainjobs")
RUNTIME = Resource("trainer.kubeflow.org", "TrainingRuntime", "trainingruntimes")
_OVER = ("Completed", "Failed", "Terminated", "Aborted")
_RETRIES = 3
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_QUEUE = "scheduling.volcano.sh/queue-name"


class Volcano(Plain):
    """Volcano: a Job of its own, which starts once minAvailable of its pods fit."""

    name: ClassVar[str] = "volcano"
    root: ClassVar[Resource] = VOLCANO_JOB
    quoted: ClassVar[Resource | None] = VOLCANO_GROUP
    rank_variable: ClassVar[str] = "VC_TASK_INDEX"
    restarts_from: ClassVar[str] = "metadata.annotations['volcano.sh/job-retry-count']"

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        lost = "RestartJob" if gang.requeue else "TerminateJob"
        gang.template["spec"]["schedulerName"] = "volcano"
        spec: Manifest = {
            "schedulerName": "volcano",
            "queue": gang.queue or "default",
            "minAvailable": gang.least,
            "maxRetry": _RETRIES,
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


class PyTorchJob(Plain):
    """Kubeflow's training operator: a PyTorchJob with one master, and workers.

    Volcano or coscheduling keeps it whole, by an option of the operator (--gang-scheduler-name).
    """

    name: ClassVar[str] = "pytorchjob"
    root: ClassVar[Resource] = PYTORCH_JOB
    rank_variable: ClassVar[str] = "RANK"

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        template = gang.template
        template["spec"].pop("restartPolicy", None)
        rename_main(template, PYTORCH)
        policy: Manifest = {"minAvailable": gang.least}
        given = {"queue": gang.queue, "priorityClass": gang.priority}
        policy |= {name: value for name, value in given.items() if value}

        def replicas(count: int) -> Manifest:
            again = "OnFailure" if gang.requeue else "Never"
            return {
                "replicas": count,
                "restartPolicy": again,
                "template": copy.deepcopy(template),
            }

        each = {"Master": replicas(1)}
        if gang.size > 1:
            each["Worker"] = replicas(gang.size - 1)
        run: Manifest = {
            "activeDeadlineSeconds": gang.limit_s,
            "ttlSecondsAfterFinished": KEPT_S,
            "cleanPodPolicy": "All",
            "backoffLimit": 0,
            "schedulingPolicy": policy,
        }
        return {PYTORCH_JOB: {"spec": {"runPolicy": run, "pytorchReplicaSpecs": each}}}

    def state(self, root: Object, quoted: Object | None) -> RootState:  # noqa: ARG002
        return ended(root, "Succeeded", "")


class TrainJob(Plain):
    """Kubeflow Trainer: a runtime with the pod template and podGroupPolicy, and a TrainJob.

    Volcano schedules the gang if it has a queue, else coscheduling.
    """

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
