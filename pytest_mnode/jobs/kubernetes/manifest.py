"""The manifest of one start of a job: pods like the run's own, on given nodes, in an object of the
kind that the user gave. It starts every pod once and none again. Pure.

The user's settings for failed pods and for finished objects are replaced here: a node that fails
leaves the others alone, and only the whole job is started again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.manifest import (
    MOST_RUN_S,
    PYTORCH,
    Manifest,
    as_workload,
    keep_apart,
    main_container,
    only_on,
    pod_template,
    rename_main,
    set_command,
)

JOB_LABEL = "pytest-mnode/job"
"""Label of a start's object and of its pods; its value is the object's name."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TRAINER = "node"
"""The step of a TrainJob that runs its command, and the container in that step."""


def job_manifest(
    given: Mapping[str, object],
    name: str,
    owner: Mapping[str, str],
    nodes: Sequence[str],
    command: Sequence[str],
) -> tuple[Manifest, str | None]:
    """An object of the kind of `given`, and the container of its pods that gets the command.
    Everything else in the user's manifest about pods and queues is kept.

    owner: an owner reference. nodes: one pod on each. Raises UsageError if `given` has no pod.
    """
    workload = as_workload(given)
    kind = workload.get("kind")
    labels = {JOB_LABEL: name}
    if kind == "TrainJob":
        affinity = affinity_of(workload["spec"])
        keep_apart(affinity, JOB_LABEL, name)
        only_on(affinity, nodes)
        pod = {"metadata": {"labels": labels}, "spec": {"affinity": affinity}}
        spec = trainjob(workload["spec"], list(command), len(nodes), pod)
        container: str | None = TRAINER
    else:
        template = _template(given, name, nodes, command)
        if kind not in KINDS:
            raise UsageError(f"kind {kind}: not known; accepted: {', '.join(KINDS)}")
        spec = KINDS[kind](workload["spec"], template, len(nodes))
        container = main_container(template)
    given_labels = workload.get("metadata", {}).get("labels") or {}
    metadata = {
        "name": name,
        "labels": {**given_labels, **labels},
        "ownerReferences": [dict(owner)],
    }
    made = {"apiVersion": workload["apiVersion"], "kind": kind, "metadata": metadata, "spec": spec}
    return made, container


def _template(
    given: Mapping[str, object], name: str, nodes: Sequence[str], command: Sequence[str]
) -> Manifest:
    """The user's pod template with the command. Raises UsageError if there is none."""
    template = pod_template(given)
    template.setdefault("metadata", {}).setdefault("labels", {})[JOB_LABEL] = name
    pod = template["spec"]
    set_command(template, command)
    pod["restartPolicy"] = "Never"
    pod.setdefault("enableServiceLinks", False)
    affinity = pod.setdefault("affinity", {})
    keep_apart(affinity, JOB_LABEL, name)
    only_on(affinity, nodes)
    return template


def job(given: Manifest, template: Manifest, count: int) -> Manifest:
    """Spec of an Indexed Job. given: the user's spec."""
    ours = ("backoffLimit", "podFailurePolicy", "successPolicy", "ttlSecondsAfterFinished",
            "selector", "manualSelector", "podReplacementPolicy")  # fmt: skip
    return {"activeDeadlineSeconds": MOST_RUN_S} | _without(given, *ours) | {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": count,
        "template": template,
    }  # fmt: skip


def jobset(given: Manifest, template: Manifest, count: int) -> Manifest:
    """Spec of a JobSet of one Job; without a failure policy it fails with its Job."""
    first = _without(given["replicatedJobs"][0], "dependsOn")
    around = first["template"]
    one = {"replicas": 1, "template": {**around, "spec": job(around["spec"], template, count)}}
    ours = ("failurePolicy", "successPolicy", "startupPolicy", "coordinator",
            "ttlSecondsAfterFinished")  # fmt: skip
    return _without(given, *ours) | {"replicatedJobs": [first | one]}


def volcano(given: Manifest, template: Manifest, count: int) -> Manifest:
    """Spec of a Job of Volcano; without a policy, a pod that fails leaves the others alone."""
    first = _without(given["tasks"][0], "policies", "minAvailable", "maxRetry", "dependsOn")
    one = {"replicas": count, "template": template}
    ours = ("policies", "maxRetry", "minSuccess", "ttlSecondsAfterFinished")
    return _without(given, *ours) | {"minAvailable": count, "tasks": [first | one]}


def pytorchjob(given: Manifest, template: Manifest, count: int) -> Manifest:
    """Spec of a PyTorchJob, whose pods stay if one of them fails."""

    def replicas(number: int) -> Manifest:
        own = copy.deepcopy(template)
        return {"replicas": number, "restartPolicy": "Never", "template": own}

    each = {"Master": replicas(1)} | ({"Worker": replicas(count - 1)} if count > 1 else {})
    policy = _without(given.get("runPolicy") or {}, "backoffLimit", "ttlSecondsAfterFinished")
    if "schedulingPolicy" in policy:
        policy["schedulingPolicy"] = policy["schedulingPolicy"] | {"minAvailable": count}
    policy = {"activeDeadlineSeconds": MOST_RUN_S} | policy | {"cleanPodPolicy": "None"}
    rest = _without(given, "elasticPolicy", "nprocPerNode")
    return rest | {"runPolicy": policy, "pytorchReplicaSpecs": each}


KINDS: dict[str, Callable[[Manifest, Manifest, int], Manifest]] = {
    "Job": lambda given, template, count: (volcano if "tasks" in given else job)(
        given, template, count
    ),
    "JobSet": jobset,
    "PyTorchJob": pytorchjob,
}
"""Spec of an object of each kind, from the user's spec, the pods' template and their number."""


def of_engine(given: Mapping[str, Any], engine: str | None, queue: str | None) -> Manifest:
    """The user's manifest; a Pod, PodTemplate or plain Job becomes an object of the kind that the
    spec's scheduler names.

    Raises UsageError for trainjob, because only a TrainJob's manifest names the runtime of its
    pods.
    """
    manifest = as_workload(given)
    plain = manifest.get("kind") == "Job" and "tasks" not in manifest.get("spec", {})
    if not plain or engine not in ("jobset", "pytorchjob", "volcano", "trainjob"):
        return dict(given)
    if engine == "trainjob":
        raise UsageError(
            "scheduler.engine trainjob: a TrainJob takes its pods from a runtime of the "
            "cluster; give --mnode-k8s-template of kind TrainJob that names the runtime"
        )
    template = pod_template(manifest)
    labels = dict(manifest.get("metadata", {}).get("labels") or {})
    if engine == "jobset":
        labels |= {QUEUE_LABEL: queue} if queue else {}
        api, kind = "jobset.x-k8s.io/v1alpha2", "JobSet"
        one = {"name": "node", "template": {"spec": {"template": template}}}
        spec: Manifest = {"replicatedJobs": [one]} | ({"suspend": True} if queue else {})
    elif engine == "volcano":
        api, kind = "batch.volcano.sh/v1alpha1", "Job"
        template["spec"]["schedulerName"] = "volcano"
        spec = {"schedulerName": "volcano", "queue": queue or "default"}
        spec["tasks"] = [{"name": "node", "template": template}]
    else:
        api, kind = "kubeflow.org/v1", "PyTorchJob"
        rename_main(template, PYTORCH)
        spec = {"pytorchReplicaSpecs": {"Master": {"template": template}}}
        spec["runPolicy"] = {"schedulingPolicy": {"queue": queue} if queue else {}}
    return {"apiVersion": api, "kind": kind, "metadata": {"labels": labels}, "spec": spec}


def trainjob(given: Manifest, command: list[str], count: int, pod: Manifest) -> Manifest:
    """Spec of a TrainJob. pod: metadata and affinity that its pods get besides their runtime's."""
    trainer = _without(given.get("trainer") or {}, "args")
    overrides = [*(given.get("podTemplateOverrides") or ())]
    overrides.append({"targetJobs": [{"name": TRAINER}], **pod})
    trainer |= {"numNodes": count, "command": command}
    return given | {"trainer": trainer, "podTemplateOverrides": overrides}


def affinity_of(given: Manifest) -> Manifest:
    """A copy of the pods' affinity in a TrainJob; a later override would replace it."""
    found: Manifest = {}
    for one in given.get("podTemplateOverrides") or ():
        if any(target.get("name") == TRAINER for target in one.get("targetJobs") or ()):
            found = (one.get("spec") or {}).get("affinity") or found
    return copy.deepcopy(found)


def _without(found: Manifest, *keys: str) -> Manifest:
    return {key: value for key, value in found.items() if key not in keys}
