"""The worlds of four clients, each with a lease of one node, and what they make the hub send."""

from __future__ import annotations

from typing import Any

from pytest_mnode.controller.hub import Requests
from pytest_mnode.controller.leases import Asked, Leases, NodesRequest, NodeState
from pytest_mnode.controller.worlds import Opening, PoolFacts, Worlds
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Node
from pytest_mnode.protocol.messages import Answer


class Desk:
    """Worlds of one node each on four nodes, one lease and client per node."""

    def __init__(self, idle_worlds: int = 4) -> None:
        names = [f"n{i}" for i in range(4)]
        self.sent: list[tuple[str, Any]] = []
        self.requests = Requests(
            lambda asked, value: self.sent.append((asked.client, Answer(asked.seq, value)))
        )
        leases = Leases({name: NodeState(Node(name, 0, "127.0.0.1"), 0, True, 1) for name in names})
        for name in names:
            asked = Asked(f"client/{name}", 1)
            self.requests.begin(asked, leases.lease(NodesRequest(asked, 1, False, name)))
        self.sent.clear()
        self.to_agents: list[Any] = []
        self.clock_s = 0.0
        self.worlds = Worlds(
            PoolFacts("gloo", 0, idle_worlds),
            Local(4),
            leases,
            lambda peer, message: self.sent.append((peer, message)),
            lambda _, message: self.to_agents.append(message),
            now=lambda: self.clock_s,
        )

    def ask(self, number: int, seq: int, procs: int = 1, file: str = "") -> str:
        """The name of the launched world; "" if none is."""
        before = set(self.worlds.worlds)
        asked = Asked(f"client/n{number}", seq)
        opening = Opening(asked, number + 1, procs, False, file=file)
        self.requests.begin(asked, self.worlds.open(opening))
        return next(iter(set(self.worlds.worlds) - before), "")

    def has_started(self, world: str) -> None:
        """The only rank of a world has started."""
        self.worlds.hello(world, 0)
        self.requests.go_on()

    def forget(self, number: int, seq: int) -> list[Any]:
        """Messages to agents when a request is withdrawn."""
        count = len(self.to_agents)
        self.worlds.forget(f"client/n{number}", seq)
        self.requests.withdraw(f"client/n{number}", seq)
        return self.to_agents[count:]
