"""Nodes that are all this machine, where it cannot have a rack."""

from __future__ import annotations

from pytest_mnode.backends.backend import Backend, Here, NodeRequest
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.rack import Rack


class LocalBackend(Backend):
    name = "local"

    def meant(self, here: Here) -> str | None:  # noqa: ARG002
        return f"no rack: {Rack.unavailable()}"

    def launcher(self, request: NodeRequest) -> Launcher:
        return Local(request.nodes)
