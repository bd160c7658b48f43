"""The launcher without a cluster: every node is this machine, its commands are plain processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import Node


class Local:
    """N nodes that are all this machine, talking over loopback; nothing can be switched off."""

    name = "local"
    shared_kernel = True
    python = sys.executable
    shared_dir: Path | None = None

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise UsageError(f"local: {nodes} nodes: need at least 1")
        self.nodes: Sequence[Node] = tuple(
            Node(f"local{index}", index, "127.0.0.1", "127.0.0.1", "lo") for index in range(nodes)
        )

    def start(self) -> None:
        """Nothing to bring up."""

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """`argv` itself, once a node."""
        return [list(argv) for _ in nodes]

    def agent_command(self, argv: Sequence[str]) -> list[str]:
        """`argv` itself."""
        return list(argv)

    def doorway(self, node: Node) -> int | None:  # noqa: ARG002
        """None: a process is on the node by being on this machine."""
        return None

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """Never calls `on_lost`: this machine is lost only together with the controller."""

    def close(self) -> None:
        """Nothing to take down."""
