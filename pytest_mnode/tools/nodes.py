"""What running a program needs of the nodes; `cluster` has it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_mnode.nodes import CommandResult


class Nodes(Protocol):
    """See `pytest_mnode.Cluster`, whose methods these are."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    def run(
        self,
        argv: Sequence[str],
        nodes: Sequence[str] | str | None = None,
        *,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> list[CommandResult]: ...

    def start(
        self,
        argv: Sequence[str],
        node: str,
        *,
        env: Mapping[str, str] | None = None,
        output: int | Any = subprocess.PIPE,
    ) -> subprocess.Popen[str]: ...

    def address(self, node: str) -> str: ...


def missing_on(cluster: Nodes, program: str) -> tuple[str, ...]:
    """Nodes that do not find `program`: by its path, or on the PATH of the environment."""
    # The shell's own look-up, as the node sees its PATH and its files.
    asked = cluster.run(["sh", "-c", 'command -v -- "$1"', "sh", program], timeout=30)
    return tuple(result.node for result in asked if not result.ok)
