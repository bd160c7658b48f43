"""The launcher without a cluster: every node is this machine, and commands are plain processes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import Launcher, Node


class Local(Launcher):
    """N nodes that are all this machine and communicate over loopback; none can be powered off."""

    name = "local"
    shared_kernel = True

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise UsageError(f"local: {nodes} nodes: need at least 1")
        names = [f"local{index}" for index in range(nodes)]
        self.nodes = tuple(
            Node(
                name,
                index,
                "127.0.0.1",
                "127.0.0.1",
                "lo",
                # NCCL refuses ranks of one host that share an accelerator.
                nccl_host=name if nodes > 1 else None,
            )
            for index, name in enumerate(names)
        )

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        return [list(argv) for _ in nodes]

    def agent_command(self, argv: Sequence[str]) -> list[str]:
        return list(argv)
