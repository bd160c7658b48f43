"""Kubeflow's training operator: a PyTorchJob, whose gang Volcano or coscheduling keeps whole.

An option of the operator (--gang-scheduler-name) chooses between them.
"""

from __future__ import annotations

import copy
from typing import ClassVar

from pytest_mnode.gang.kubernetes.kinds.jobset import ended
from pytest_mnode.gang.kubernetes.kinds.plain import Plain, PodGang, Resource
from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object
from pytest_mnode.launchers.kubernetes.manifest import KEPT_S, PYTORCH, Manifest, rename_main

PYTORCH_JOB = Resource("kubeflow.org", "PyTorchJob", "pytorchjobs")


class PyTorchJob(Plain):
    """A PyTorchJob with one master, and workers."""

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
