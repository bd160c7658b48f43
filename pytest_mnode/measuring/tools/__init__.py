"""Standard tools, run on the cluster and judged: nccl-tests and perftest.

The controller runs them through the cluster's own commands, so they need no ranks and no torch.
`logs` parses their output. A program that is missing, aborts or prints no readable output gives no
value, which is inconclusive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes


def missing_on(cluster: Nodes, program: str) -> tuple[str, ...]:
    """Nodes that do not find `program`, by its path or on their PATH."""
    # The node's shell does the look-up, because it sees the PATH and the files of the node.
    results = cluster.run(["sh", "-c", 'command -v -- "$1"', "sh", program])
    return tuple(result.node for result in results if not result.ok)
