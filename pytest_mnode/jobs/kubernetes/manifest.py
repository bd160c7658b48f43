"""The manifest of one start of a job: pods like the run's own, on given nodes. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from pytest_mnode.errors import UsageError
from pytest_mnode.jobs.kubernetes import kinds
from pytest_mnode.launchers.kubernetes.manifest import (
    Manifest,
    as_workload,
    keep_apart,
    main_container,
    only_on,
    pod_template,
    set_command,
)

JOB_LABEL = "pytest-mnode/job"
"""Label of a start's object and of its pods; its value is the object's name."""


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
    workload = as_workload(copy.deepcopy(dict(given)), name)
    kind = workload.get("kind")
    labels = {JOB_LABEL: name}
    if kind == "TrainJob":
        affinity = kinds.affinity_of(workload["spec"])
        keep_apart(affinity, JOB_LABEL, name)
        only_on(affinity, nodes)
        pod = {"metadata": {"labels": labels}, "spec": {"affinity": affinity}}
        spec = kinds.trainjob(workload["spec"], list(command), len(nodes), pod)
        container: str | None = kinds.TRAINER
    else:
        template = _template(given, name, nodes, command)
        if kind not in kinds.KINDS:
            raise UsageError(f"kind {kind}: not known; accepted: {', '.join(kinds.KINDS)}")
        spec = kinds.KINDS[kind](workload["spec"], template, len(nodes))
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
