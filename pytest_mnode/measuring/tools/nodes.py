"""Which nodes have a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes


def missing_on(cluster: Nodes, program: str) -> tuple[str, ...]:
    """Nodes that do not find `program`: by its path, or on the PATH of the environment."""
    # The shell's own look-up, as the node sees its PATH and its files.
    asked = cluster.run(["sh", "-c", 'command -v -- "$1"', "sh", program], timeout=30)
    return tuple(result.node for result in asked if not result.ok)
