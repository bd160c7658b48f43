"""The object that creates a run's pods: the user's manifest, or an Indexed Job. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mnode.errors import UsageError

RUN_LABEL = "pytest-mnode/run"
"""Label of the object and its pods; its value is the run's id."""
CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
HOST_NAME = "kubernetes.io/hostname"
PYTORCH = "pytorch"
"""The container that the operator of PyTorchJobs requires."""
_ACCELERATOR = re.compile(
    r"nvidia\.com/(?:gpu|mig-|pgpu).*|amd\.com/gpu.*|gpu\.intel\.com/.*|habana\.ai/gaudi.*"
    r"|aws\.amazon\.com/neuron.*|google\.com/tpu|huawei\.com/Ascend.*|qualcomm\.com/qaic.*"
    r"|(?:volcano\.sh|aliyun\.com|tencent\.com)/v?gpu.*|run\.ai/gpu.*|[^/]+/(?:v|shared-)?gpu"
)
"""Resources by which device plugins give accelerators to containers; NICs have others."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MOST_RUN_S = 24 * 3600
"""Time after which the API server ends a run that has not ended (activeDeadlineSeconds)."""
KEPT_S = 60
"""Time that a finished Job stays (ttlSecondsAfterFinished) if nobody deletes it."""
KINDS = "Pod, PodTemplate, Job, JobSet, TrainJob, PyTorchJob, or a Job of Volcano"
GROUPS = {
    "Job": "jobs",
    "JobSet": "jobsets",
    "PyTorchJob": "pytorchjobs",
    "TrainJob": "trainjobs",
}
"""Plural of each kind, as in paths; a Job may be of batch/v1 or of Volcano."""
_NO_INITIALIZERS = (
    "jobset.sigs.k8s.io/replicatedjob-name notin (dataset-initializer,model-initializer)"
)
"""Pods of a TrainJob that end before its nodes start."""
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodsOfRun:
    """The object to create, and how to find its pods.

    selector: labels of the pods. container: the container that runs commands; None for the first.
    """

    manifest: Manifest
    selector: str
    container: str | None

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def replaces(self) -> bool:
        """Whether a pod that ends is replaced by another one, as Jobs do."""
        jobs = [self.manifest, *(one["template"] for one in _replicated(self.manifest))]
        return any(int(job["spec"].get("backoffLimit", 0)) > 0 for job in jobs)


@dataclass(frozen=True, slots=True)
class RunInPods:
    """Settings that make the pods of a job like the run's own pods.

    context, namespace: of the API server, "" for the default. manifest: the user's, or the default.
    owner: an owner reference to the run's object; objects that have it are deleted with the run's.
    packages: directory of this package, by node; "" if it is the same as here.
    engine, queue: from the spec's scheduler.
    """

    context: str
    namespace: str
    manifest: Mapping[str, Any]
    owner: Mapping[str, str]
    packages: Mapping[str, str]
    engine: str | None = None
    queue: str | None = None


def default_template(image: str, resources: Mapping[str, str]) -> Manifest:
    """The template of a node's pod, if the user gives no manifest."""
    container: Manifest = {"name": "node", "image": image}
    if resources:
        container["resources"] = {"limits": dict(resources), "requests": dict(resources)}
    return {"kind": "PodTemplate", "template": {"spec": {"containers": [container]}}}


def pod_template(given: Mapping[str, Any]) -> Manifest:
    """The first pod template in the user's manifest, a copy. Raises UsageError if there is none."""
    return _pod_templates(as_workload(given))[0]


def _pod_templates(manifest: Manifest) -> list[Manifest]:
    found = list(_templates(manifest.get("spec", {})))
    if not found:
        raise UsageError(f"kind {manifest.get('kind')} has no pod template; accepted: {KINDS}")
    return found


def kind_of(given: Mapping[str, Any]) -> str:
    """GROUP/PLURAL of the object that `pods_of_run` makes of a manifest."""
    made = as_workload(given)
    group = str(made.get("apiVersion", "")).rpartition("/")[0]
    return f"{group}/{GROUPS.get(made.get('kind', ''), '')}"


def pods_of_run(given: Mapping[str, Any], run_id: str, nodes: int, wait: list[str]) -> PodsOfRun:
    """The object to create for a run. Everything else in the manifest is kept.

    given: the user's manifest. run_id: the label's value. wait: the command of each pod's main
    process. Raises UsageError for a manifest without pods.
    """
    manifest = as_workload(given)
    metadata = manifest.setdefault("metadata", {})
    metadata.pop("generateName", None)
    metadata["name"] = f"mnode-{run_id}"
    metadata.setdefault("labels", {})[RUN_LABEL] = run_id
    if manifest.get("kind") == "TrainJob":
        _train(manifest["spec"], nodes, wait)
        of_jobset = f"jobset.sigs.k8s.io/jobset-name={metadata['name']}"
        return PodsOfRun(manifest, f"{of_jobset},{_NO_INITIALIZERS}", "node")
    templates = _pod_templates(manifest)
    mains = list(dict.fromkeys(map(main_container, templates)))
    if len(mains) > 1:
        raise UsageError(
            f"the pods' containers for tests have different names, {', '.join(map(str, mains))}: "
            "give them one name"
        )
    for template in templates:
        _fill(template, run_id, wait)
    _set_count(manifest, nodes)
    return PodsOfRun(manifest, f"{RUN_LABEL}={run_id}", mains[0])


def as_workload(given: Mapping[str, Any]) -> Manifest:
    """A copy of an object; of a pod or a pod's template, an Indexed Job around it, without name."""
    manifest = copy.deepcopy(dict(given))
    kind = manifest.get("kind")
    if kind == "Pod":
        template = {"metadata": manifest.get("metadata", {}), "spec": manifest.get("spec", {})}
        template["metadata"].pop("name", None)
    elif kind == "PodTemplate":
        template = manifest.get("template", {})
    else:
        return manifest
    labels = template.get("metadata", {}).get("labels", {})
    if template.get("spec", {}).get("restartPolicy") == "Always":  # a pod's default; Jobs refuse it
        del template["spec"]["restartPolicy"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"labels": dict(labels)},
        "spec": {"template": template},
    }


def _templates(found: object) -> Iterator[Manifest]:
    """Every pod template in an object."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "template" and isinstance(value, dict) and _has_containers(value):
                yield value
            else:
                yield from _templates(value)
    elif isinstance(found, list):
        for value in found:
            yield from _templates(value)


def _has_containers(template: Manifest) -> bool:
    return bool(isinstance(template.get("spec"), dict) and template["spec"].get("containers"))


def main_container(template: Manifest) -> str | None:
    """Name of the container in which commands run."""
    name: str | None = main_of(template).get("name")
    return name


def rename_main(template: Manifest, name: str) -> None:
    """Give the main container the name that an operator requires."""
    main_of(template)["name"] = name
    annotations = template.get("metadata", {}).get("annotations") or {}
    if CONTAINER_ANNOTATION in annotations:
        annotations[CONTAINER_ANNOTATION] = name


def set_command(template: Manifest, command: Sequence[str]) -> Manifest:
    """Let the main container run this command; returns the container."""
    main = main_of(template)
    main["command"] = list(command)
    main.pop("args", None)
    return main


def main_of(template: Manifest) -> Manifest:
    """The container in which commands run: the annotated one, else the one with the accelerators,
    else the first.

    Raises UsageError if several containers have accelerators and none is annotated, or if the
    annotated one has none and another has: ranks could not use them.
    """
    annotations = template.get("metadata", {}).get("annotations") or {}
    named = annotations.get(CONTAINER_ANNOTATION)
    containers: list[Manifest] = template["spec"]["containers"]
    able = [c for c in containers if _has_accelerators(c)]
    able = able or [c for c in containers if (c.get("resources") or {}).get("claims")]
    names = ", ".join(str(c.get("name")) for c in able)
    for one in containers:
        if one.get("name") == named:
            if able and one not in able:
                raise UsageError(
                    f"container {named}, which {CONTAINER_ANNOTATION} names, has no accelerators, "
                    f"and {names} has: let the annotation name that, or remove it"
                )
            return one
    if len(able) > 1:
        raise UsageError(
            f"containers {names} have accelerators, and tests run in one of them: name it by the "
            f"annotation {CONTAINER_ANNOTATION} of the pod"
        )
    return able[0] if able else containers[0]


def _has_accelerators(container: Manifest) -> bool:
    """Whether it asks for accelerators; a limit without a request is a request too."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(_ACCELERATOR.fullmatch(name) and str(n) != "0" for name, n in asked.items())


def _fill(template: Manifest, run_id: str, wait: list[str]) -> None:
    """Set the run's label, the command that waits, and at most one pod per node."""
    template.setdefault("metadata", {}).setdefault("labels", {})[RUN_LABEL] = run_id
    set_command(template, wait)
    spec = template["spec"]
    spec.setdefault("restartPolicy", "Never")
    spec.setdefault("terminationGracePeriodSeconds", 2)
    spec.setdefault("enableServiceLinks", False)
    keep_apart(spec.setdefault("affinity", {}), RUN_LABEL, run_id)


def keep_apart(affinity: Manifest, label: str, value: str) -> None:
    """Allow at most one pod with this label per node."""
    selector = {"matchLabels": {label: value}}
    required = affinity.setdefault("podAntiAffinity", {}).setdefault(_REQUIRED, [])
    required.append({"topologyKey": HOST_NAME, "labelSelector": selector})


def only_on(affinity: Manifest, names: Sequence[str]) -> None:
    """Limit pods to those of these nodes that their affinity allows already."""
    required = affinity.setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    # Terms are alternatives, and a field selector accepts only one name: one term per node.
    named = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in names]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or []), one]}
        for term in required.get("nodeSelectorTerms") or [{}]
        for one in named
    ]


def keep_on(given: Mapping[str, Any], names: Sequence[str]) -> Manifest:
    """The manifest, with its pods limited to those of the named nodes that it allows itself.

    Raises UsageError for a manifest without a pod template.
    """
    manifest = as_workload(given)
    templates = list(_templates(manifest.get("spec", {})))
    if not templates:
        raise UsageError(
            f"--mnode-nodes=free: kind {manifest.get('kind')} has no pod template, which would "
            "limit its pods to free nodes; accepted: --mnode-nodes=N"
        )
    for template in templates:
        only_on(template["spec"].setdefault("affinity", {}), names)
    return manifest


def _replicated(manifest: Mapping[str, Any]) -> list[Manifest]:
    """The Jobs of a JobSet; [] for other kinds."""
    return manifest["spec"].get("replicatedJobs", []) if manifest["kind"] == "JobSet" else []


def _set_count(manifest: Manifest, nodes: int) -> None:
    """Set the number of pods to the run's nodes, in each kind's own way."""
    spec, kind = manifest["spec"], manifest["kind"]
    if kind == "Job" and "tasks" in spec:  # Volcano's
        first, *others = spec["tasks"]
        first["replicas"] = _left(nodes, (task.get("replicas", 1) for task in others))
        first.pop("minAvailable", None)
        spec["minAvailable"] = nodes
        spec.setdefault("ttlSecondsAfterFinished", KEPT_S)
    elif kind == "Job":
        _set_job(spec, nodes)
    elif kind == "JobSet":
        first, *others = spec["replicatedJobs"]
        first["replicas"] = 1
        besides = (
            one.get("replicas", 1) * one["template"]["spec"].get("parallelism", 1) for one in others
        )
        _set_job(first["template"]["spec"], _left(nodes, besides), own_end=False)
        spec.setdefault("ttlSecondsAfterFinished", KEPT_S)
    elif kind == "PyTorchJob":
        replicas = spec["pytorchReplicaSpecs"]
        master = replicas.get("Master", {}).get("replicas", 1) if "Master" in replicas else 0
        if nodes > master:
            replicas.setdefault("Worker", copy.deepcopy(replicas.get("Master")))
            replicas["Worker"]["replicas"] = nodes - master
        else:
            replicas.pop("Worker", None)
        policy = spec.setdefault("runPolicy", {})
        policy.setdefault("activeDeadlineSeconds", MOST_RUN_S)
        policy.setdefault("ttlSecondsAfterFinished", KEPT_S)
    else:
        raise UsageError(f"kind {kind} is not supported; accepted: {KINDS}")


def _left(nodes: int, besides: Iterable[int]) -> int:
    """Number of pods of the first kind, if all pods are nodes of the run. Raises UsageError."""
    others = sum(besides)
    if others >= nodes:
        raise UsageError(
            f"{nodes} nodes: the template has {others} pods besides its first kind of pod, and "
            "each is a node; remove them, or request more nodes"
        )
    return nodes - others


def _set_job(spec: Manifest, nodes: int, *, own_end: bool = True) -> None:
    spec["parallelism"] = spec["completions"] = nodes
    spec["completionMode"] = "Indexed"
    # A pod whose node was lost is replaced; the run reports the loss. Failures are counted by
    # index, so that those of one node do not delay the pods of others.
    spec.setdefault("backoffLimit", 1000)
    if spec["template"]["spec"]["restartPolicy"] == "Never":  # else Kubernetes refuses it
        spec.setdefault("backoffLimitPerIndex", 1000)
    spec.setdefault("activeDeadlineSeconds", MOST_RUN_S)
    if own_end:
        spec.setdefault("ttlSecondsAfterFinished", KEPT_S)


def _train(spec: Manifest, nodes: int, wait: list[str]) -> None:
    trainer = spec.setdefault("trainer", {})
    trainer["numNodes"] = nodes
    trainer["command"] = wait
    trainer.pop("args", None)
