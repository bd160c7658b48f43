"""Nodes that are pods, which the run creates.

Only an option chooses Kubernetes: the pod of a CI runner has a service account too, and its runs
are not meant to create pods.
"""

from __future__ import annotations

from pytest_mnode.launchers.backends import Backend, Here, NodeRequest
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.node import Launcher


class KubernetesBackend(Backend):
    name = "kubernetes"

    def meant(self, here: Here) -> str | None:
        return KubernetesOptions.of(here.settings).given

    def launcher(self, request: NodeRequest) -> Launcher:
        from pytest_mnode.launchers.kubernetes.launcher import Kubernetes

        settings = request.settings
        options = KubernetesOptions.of(settings)
        return Kubernetes(request.nodes, request.spec, request.remote, options, settings.on)
