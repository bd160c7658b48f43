"""Nodes that are pods, which the run creates.

Only an option chooses Kubernetes: the pod of a CI runner has a service account too, and its runs
are not meant to create pods.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.backends.backend import (
    Backend,
    FreeNode,
    FreeNodes,
    NodeRequest,
)
from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.nodes import NO_SHARED_DIR, Nodes
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.criteria.launching.paths import SubmissionPath
    from pytest_mnode.gang.engine import Engine
    from pytest_mnode.jobs.job import Job
    from pytest_mnode.jobs.launched import LaunchedJob


class KubernetesBackend(Backend):
    name = "kubernetes"

    def option(self, settings: Settings) -> str | None:
        named = {
            "context": settings.k8s_context,
            "namespace": settings.k8s_namespace,
            "image": settings.k8s_image,
            "template": settings.k8s_template,
        }
        return next((f"--mnode-k8s-{n}={value}" for n, value in named.items() if value), None)

    def free(self, settings: Settings, spec: Spec) -> FreeNodes:
        """The nodes whose allocatable resources, minus all requests, fit a pod of the run."""
        from pytest_mnode.gang.kubernetes.served import admitted, served_views
        from pytest_mnode.launchers.kubernetes.api import Api, ApiError
        from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL, pod_template
        from pytest_mnode.launchers.kubernetes.template import read_manifest

        template = pod_template(read_manifest(settings, spec.accelerators.per_node))
        try:
            api = Api(settings.k8s_context, settings.k8s_namespace)
            pod, views = admitted(api, template), served_views(api, {RUN_LABEL: ""})
        except ApiError as error:
            raise ClusterError(
                f"cannot list nodes and the pods of all namespaces: {error}; give a number of "
                "nodes instead"
            ) from None
        there = [view for view in views if view.suits(pod)]
        taken = {view.name: why for view in there if (why := view.taken(pod))}
        others = "".join(f", {name} ({why})" for name, why in list(taken.items())[:4])
        free = [FreeNode(view.name, view.name) for view in there if view.name not in taken]
        return FreeNodes(free, f" of {len(there)}{others}")

    def launcher(self, request: NodeRequest) -> Launcher:
        from pytest_mnode.launchers.kubernetes.launcher import Kubernetes

        settings, given = request.settings, (request.nodes, request.spec, request.remote)
        return Kubernetes(*given, settings, settings.on, leftovers=self.leftovers)

    def leftovers(self, name: str, *where: str) -> Leftovers:
        """Objects of a run, by their label. where: context, namespace, and GROUP/PLURAL of each
        kind; "" for the kubeconfig's own context and namespace."""
        from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL

        context, namespace, *kinds = where
        program = (sys.executable, "-m", "pytest_mnode.launchers.kubernetes.cleanup")
        show, end = ((*program, what, name, *where) for what in ("show", "delete"))
        options = f"--context={context} " * bool(context) + f"-n {namespace} " * bool(namespace)
        names = ",".join(kind.rpartition("/")[2] for kind in kinds)
        what = f"objects labelled {RUN_LABEL}={name}{namespace and f' in namespace {namespace}'}"
        by_hand = f"kubectl {options}delete {names} -l {RUN_LABEL}={name}"
        return Leftovers(name, what, show, end, by_hand)

    def submit(self, cluster: Nodes, job: Job) -> LaunchedJob:
        """In its own pods if they would start beside the run's pods, else in those."""
        from pytest_mnode.jobs.kubernetes.pod_job import PodJob
        from pytest_mnode.jobs.kubernetes.pod_start import NotPlaced
        from pytest_mnode.jobs.running import RunningJob

        why = NO_SHARED_DIR
        if cluster.share_files:
            try:
                return PodJob.start(cluster, job, cluster.job_facts)
            except NotPlaced as error:
                why = str(error)
        return RunningJob.start(cluster, job, f"in the run's own pods: {why}")

    def path(self, cluster: Nodes) -> SubmissionPath:
        from pytest_mnode.criteria.launching.kubernetes import Pods

        return Pods(cluster, cluster.job_facts)

    def gangs(self, spec: Spec, settings: Settings, root: Path) -> Engine:  # noqa: ARG002
        from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
        from pytest_mnode.launchers.kubernetes.template import read_manifest

        manifest = read_manifest(settings, spec.accelerators.per_node)
        assert spec.scheduler is not None
        given = spec.scheduler, settings, manifest
        return KubernetesEngine(*given, leftovers=self.leftovers, python=settings.python)
