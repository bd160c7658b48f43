"""pytest-xdist: each worker is a client of the hub in the process that started it."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import pytest

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.session import Run
from pytest_mnode.errors import MnodeError
from pytest_mnode.protocol.channel import Keys, Line
from pytest_mnode.protocol.hub_messages import ClientGone

_INPUT = "mnode"
"""Key of what a worker is given, in the input that pytest-xdist sends it."""


def join(run: Run, workerinput: dict[str, Any]) -> None:
    """In a worker: speak to the hub of the process that started it, where it has one."""
    if (given := workerinput.get(_INPUT)) is not None:
        name, keys = given["client"], Keys(**given["keys"])
        run.client = Client(name, Line(name, given["endpoint"], keys))
        run.launcher, run.reason = given["launcher"], given["reason"]


class XdistController:
    """pytest plugin of the process that starts workers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker is about to start: it gets its way to the hub by standard input."""
        run = self._run
        if run.nodes is None:
            return
        spec = node.gateway.spec
        if not spec.popen or spec.via:
            raise pytest.UsageError(
                f"--tx: {spec} is no process of this machine, and only those have nodes; give -n, "
                "and name other machines as nodes by --mnode-hostfile"
            )
        try:
            pool = run.make_pool()
        except MnodeError as error:
            raise pytest.UsageError(str(error)) from None
        node.workerinput[_INPUT] = {
            "endpoint": pool.address.endpoint,
            "keys": asdict(pool.address.keys),
            "client": f"client/{node.gateway.id}-{os.getpid()}",
            "launcher": run.launcher,
            "reason": run.reason,
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker ended: the nodes that it held are free."""
        given = node.workerinput.get(_INPUT)
        if given is not None and self._run.client is not None:
            self._run.client.tell(ClientGone(given["client"]))
