"""Nodes that are lost before a test gets them are booted again: each once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller.session import Run
from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.marks import WorldRequest
from pytest_mnode.options import Settings
from pytest_mnode.protocol.launcher_requests import PowerOn


class Client:
    """A hub that answers a lease with each of `losses` first. boots: whether a node can boot."""

    def __init__(self, losses: list[str], *, boots: bool) -> None:
        self.losses, self.boots, self.booted = losses, boots, list[str]()

    def lease(self, *_: object, **__: object) -> str:
        if self.losses:
            node = self.losses.pop(0)
            raise NodeLostError(node, "the connection was lost")
        return "a lease"

    def ask_launcher(self, request: PowerOn) -> None:
        self.booted.append(request.node)
        if not self.boots:
            raise ClusterError("no command")


@pytest.mark.parametrize(
    ("losses", "boots", "booted", "ended"),
    [
        ([], True, [], None),
        (["n1"], True, ["n1"], None),
        (["n1", "n2"], True, ["n1", "n2"], None),
        (["n1", "n1"], True, ["n1", "n1"], ""),  # booted in vain; it is booted again for the next
        (["n1"], False, ["n1"], "it could not be booted again: no command"),
    ],
)
def test_a_lost_node_is_booted_once(
    losses: list[str], boots: bool, booted: list[str], ended: str | None
) -> None:
    session = SimpleNamespace(shouldstop="")
    plugins = SimpleNamespace(getplugin=lambda _: session, has_plugin=lambda _: False)
    config: Any = SimpleNamespace(pluginmanager=plugins, getoption=lambda *_: None)
    run = Run(config, Settings(nodes=2))
    run.console.close()
    client: Any = Client([*losses], boots=boots)
    run.client = client
    need = WorldRequest(2, None, "warm", 60.0, exclusive=False)
    if ended is None:
        lease: object = run.lease(need, "test_it")
        assert lease == "a lease"
    else:
        with pytest.raises(NodeLostError) as lost:
            run.lease(need, "test_it")
        assert lost.value.node == losses[-1]
        run.repair(lost.value)
        assert run.ended.endswith(ended)
        assert bool(run.ended) == bool(ended)
    assert client.booted == booted
