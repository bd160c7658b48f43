"""Nodes that are pods, which the run creates.

Only an option chooses Kubernetes: the pod of a CI runner has a service account too, and its runs
are not meant to create pods.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.backends.backend import (
    Backend,
    FreeNode,
    FreeNodes,
    NodeRequest,
)
from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
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
        return KubernetesOptions.of(settings).given

    def free(self, settings: Settings, spec: Spec) -> FreeNodes:
        """The nodes whose allocatable resources, minus all requests, fit a pod of the run."""
        from pytest_mnode.gang.kubernetes.served import admitted, served_views
        from pytest_mnode.launchers.kubernetes.api import Api, ApiError
        from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL, pod_template
        from pytest_mnode.launchers.kubernetes.template import read_manifest

        options = KubernetesOptions.of(settings)
        template = pod_template(read_manifest(options, spec.accelerators.per_node))
        try:
            api = Api(options.context, options.namespace)
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

        settings = request.settings
        options = KubernetesOptions.of(settings)
        return Kubernetes(request.nodes, request.spec, request.remote, options, settings.on)

    def submit(self, cluster: Nodes, job: Job) -> LaunchedJob:
        """In its own pods if they would start beside the run's pods, else in those."""
        from pytest_mnode.jobs.kubernetes.pod_job import PodJob
        from pytest_mnode.jobs.kubernetes.pod_start import NotPlaced
        from pytest_mnode.jobs.running import RunningJob

        why = NO_SHARED_DIR
        assert cluster.pods is not None
        if cluster.share_files:
            try:
                return PodJob.launch(cluster, job, cluster.pods)
            except NotPlaced as error:
                why = str(error)
        return RunningJob.start(cluster, job, f"in the run's own pods: {why}")

    def path(self, cluster: Nodes) -> SubmissionPath:
        from pytest_mnode.criteria.launching.pods import Pods

        assert cluster.pods is not None
        return Pods(cluster, cluster.pods)

    def gangs(self, spec: Spec, settings: Settings, root: Path) -> Engine:  # noqa: ARG002
        from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
        from pytest_mnode.launchers.kubernetes.template import read_manifest

        options = KubernetesOptions.of(settings)
        manifest = read_manifest(options, spec.accelerators.per_node)
        assert spec.scheduler is not None
        return KubernetesEngine(spec.scheduler, options, manifest, python=settings.python)
