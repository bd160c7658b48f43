"""Kinds of gangs on Kubernetes: a class of a few pure functions for each kind.

The default scheduler, which keeps nothing whole, and what all kinds share; PodGroups of schedulers
that keep them whole; Kueue's queues; and operators whose jobs are gangs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.manifest import (
    KEPT_S,
    PYTORCH,
    RUN_LABEL,
    Manifest,
    rename_main,
)
from pytest_mnode.launchers.kubernetes.pods import Object, conditions, is_true


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of API object. group: "" for v1. kind: name in manifests. plural: name in paths."""

    group: str
    kind: str
    plural: str


JOB = Resource("batch", "Job", "jobs")


@dataclass(frozen=True, slots=True)
class PodGang:
    """A gang to create.

    name: of its root object. size: number of pods. least: number of pods with which it may start.
    template: complete pod template. labels: labels of its objects. limit_s: time limit. requeue:
    whether it restarts after it lost a node. queue, priority: "" if the spec names none.
    """

    name: str
    size: int
    least: int
    template: Manifest
    labels: Mapping[str, str]
    limit_s: int
    requeue: bool = False
    queue: str = ""
    priority: str = ""


class Plain:
    """A kind of gang. Its objects have the gang's name unless a controller makes them.

    root: the object that creates the pods. beside: objects created before it and deleted with it.
    quoted: objects whose conditions are shown with the pods' and the root's; None for none.
    rank_variable: environment variable with the rank. restarts_from: path of the pod's field with
    the number of restarts; "" if a gang has only one start.
    """

    name: ClassVar[str] = "default"
    root: ClassVar[Resource] = JOB
    beside: ClassVar[tuple[Resource, ...]] = ()
    quoted: ClassVar[Resource | None] = None
    rank_variable: ClassVar[str] = "JOB_COMPLETION_INDEX"
    restarts_from: ClassVar[str] = ""

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        """The objects of a gang, in order of creation; without apiVersion, and without metadata
        except labels and annotations specific to the kind."""
        return {JOB: {"spec": job_spec(gang)}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        """State from the root object and the quoted object; None if there is none."""
        return job_state(root, words_of(quoted, "status") if quoted else "")

    def quoted_by(self, run_id: str, roots: Iterable[Object]) -> str:  # noqa: ARG002
        """Label selector of the quoted objects."""
        return f"{RUN_LABEL}={run_id}"

    def root_of(self, quoted: Object) -> str:
        """Name of the root object that a quoted object belongs to."""
        owners = quoted["metadata"].get("ownerReferences") or []
        mine = (o["name"] for o in owners if o["kind"] == self.root.kind)
        return str(next(mine, quoted["metadata"]["name"]))


def job_spec(gang: PodGang) -> Manifest:
    """Spec of an Indexed Job that fails with its first failed pod."""
    return {
        "parallelism": gang.size,
        "completions": gang.size,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": gang.limit_s,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": gang.template,
    }


def job_state(root: Object, words: str = "") -> RootState:
    """State of a Job of batch/v1. words: status from the component that admits it."""
    found = conditions(root)
    failed = is_true(found, "Failed") or is_true(found, "FailureTarget")
    over = is_true(found, "Complete") or is_true(found, "Failed")
    ends = next((name for name in ("Failed", "Complete") if is_true(found, name)), "")
    reason = found.get(ends, {}).get("reason") if ends == "Failed" else ""
    shown = f"{ends} ({reason})" if reason else ends
    return RootState(shown or words, over, failed)


def words_of(found: Object, *names: str) -> str:
    """The first of these conditions that exists: its type if it is true, else its reason."""
    every = conditions(found)
    for name in names:
        if (one := every.get(name)) is None:
            continue
        if one["status"] == "True":
            return name
        reason = " ".join(str(one.get("message") or one.get("reason") or "").split())
        return f"not {name} ({reason})"
    return ""


def ended(root: Object, complete: str, words: str) -> RootState:
    """State of an object that ends with the condition `complete` or Failed."""
    found = conditions(root)
    end = next((name for name in ("Failed", complete) if is_true(found, name)), "")
    return RootState(end or words, bool(end), end == "Failed")


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


WORKLOAD = Resource("kueue.x-k8s.io", "Workload", "workloads")
JOB_SET = Resource("jobset.x-k8s.io", "JobSet", "jobsets")
_RESTARTS = 3
_QUEUE = "kueue.x-k8s.io/queue-name"
_JOB_UID = "kueue.x-k8s.io/job-uid"


class Kueue(Plain):
    """A suspended Job with a queue label, until the quota has room for all of its pods.

    `Admitted` is about quota, not nodes, so it is only quoted; the pods decide.
    """

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


VOLCANO_JOB = Resource("batch.volcano.sh", "Job", "jobs")
VOLCANO_GROUP = Resource("scheduling.volcano.sh", "PodGroup", "podgroups")
PYTORCH_JOB = Resource("kubeflow.org", "PyTorchJob", "pytorchjobs")
TRAIN_JOB = Resource("trainer.kubeflow.org", "TrainJob", "trainjobs")
RUNTIME = Resource("trainer.kubeflow.org", "TrainingRuntime", "trainingruntimes")
_OVER = ("Completed", "Failed", "Terminated", "Aborted")
_RETRIES = 3
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


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
            "metadata": {"annotations": {_VOLCANO_QUEUE: gang.queue}} if volcano else {},
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


KINDS: dict[str, Plain] = {
    kind.name: kind
    for kind in (
        *(Plain(), Native(), Kueue(), Volcano()),
        *(Coscheduling(), JobSet(), TrainJob(), PyTorchJob()),
    )
}
"""Kinds of gangs, by the spec's `scheduler.engine`."""
