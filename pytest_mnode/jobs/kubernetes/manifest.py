"""The Indexed Job of one start: pods like the run's own, on the nodes that it names. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from pytest_mnode.launchers.kubernetes.manifest import (
    HOST_NAME,
    MOST_RUN_S,
    Manifest,
    as_workload,
    main_container,
    pod_template,
)

JOB_LABEL = "pytest-mnode/job"
"""On a start's Job and on its pods; its value is the Job's name."""
_OURS = ("backoffLimit", "podFailurePolicy", "successPolicy", "ttlSecondsAfterFinished", "selector",
         "manualSelector", "podReplacementPolicy")  # fmt: skip
"""What the user's Job says of failed pods, and of a Job that is over, is decided here."""


def job_manifest(
    given: Mapping[str, object],
    name: str,
    owner: Mapping[str, str],
    nodes: Sequence[str],
    command: Sequence[str],
) -> tuple[Manifest, str | None]:
    """The Job, and which container of its pods has the command. Everything else that the user's
    manifest says of pods and of queues is kept.

    owner: an owner reference. nodes: one pod on each. Raises UsageError where no pod is in it.
    """
    template = pod_template(given)
    workload = as_workload(copy.deepcopy(dict(given)), name)
    labels = dict(workload.get("metadata", {}).get("labels") or {})
    plain = workload["kind"] == "Job" and "tasks" not in workload["spec"]
    spec: Manifest = workload["spec"] if plain else {}
    spec = {key: value for key, value in spec.items() if key not in _OURS}
    spec |= {
        "completionMode": "Indexed",
        "completions": len(nodes),
        "parallelism": len(nodes),
        # A node that fails leaves the others alone, and nothing is started again but all of it.
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": len(nodes),
        "template": template,
    }
    spec.setdefault("activeDeadlineSeconds", MOST_RUN_S)
    template.setdefault("metadata", {}).setdefault("labels", {})[JOB_LABEL] = name
    pod = template["spec"]
    main = next(c for c in pod["containers"] if c.get("name") == main_container(template))
    main["command"] = list(command)
    main.pop("args", None)
    pod["restartPolicy"] = "Never"
    pod.setdefault("enableServiceLinks", False)
    _one_on_each(pod, name, nodes)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**labels, JOB_LABEL: name},
            "ownerReferences": [dict(owner)],
        },
        "spec": spec,
    }, main_container(template)


def _one_on_each(pod: Manifest, name: str, nodes: Sequence[str]) -> None:
    affinity = pod.setdefault("affinity", {})
    required = affinity.setdefault("podAntiAffinity", {}).setdefault(
        "requiredDuringSchedulingIgnoredDuringExecution", []
    )
    labels = {"matchLabels": {JOB_LABEL: name}}
    required.append({"topologyKey": HOST_NAME, "labelSelector": labels})
    there = affinity.setdefault("nodeAffinity", {}).setdefault(
        "requiredDuringSchedulingIgnoredDuringExecution", {}
    )
    # A field can be asked for one value only, and terms are alternatives.
    named = [{"key": "metadata.name", "operator": "In", "values": [node]} for node in nodes]
    there["nodeSelectorTerms"] = [
        {**term, "matchFields": [*term.get("matchFields", ()), one]}
        for term in there.get("nodeSelectorTerms") or [{}]
        for one in named
    ]
