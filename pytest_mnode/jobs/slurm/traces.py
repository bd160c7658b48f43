"""What the programs of a submitted job left in its directory, as the controller reads it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.jobs.slurm import files

LOST = 128 + 9
"""Exit status of torchrun where its node went, or Slurm killed it, before it could say one."""

LATE_S = 35.0
"""How long what one machine wrote may not be seen on another: NFS looks anew after 30 s."""


class Late:
    """What is not to be seen yet of nodes on which, in the scheduler's word, all ended well."""

    def __init__(self) -> None:
        self._since: float | None = None

    def may_come(self, silent: Sequence[str]) -> bool:
        """Whether to look again for what these nodes have to say."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return bool(silent) and now - self._since < LATE_S


@dataclass(frozen=True, slots=True)
class Traces:
    """Of all starts of a job. Each question is about some nodes, at start number `requeue`."""

    directory: Path

    def statuses(self, nodes: Sequence[str], requeue: int) -> dict[str, files.Status | None]:
        """How torchrun ended on each; None where it has not, or could not say."""
        return {name: files.read_status(self.directory, name, requeue) for name in nodes}

    def running(self, nodes: Sequence[str], requeue: int) -> list[str]:
        """Nodes on which torchrun has not ended."""
        return [name for name, end in self.statuses(nodes, requeue).items() if end is None]

    def told(self, nodes: Sequence[str], requeue: int) -> dict[str, tuple[int, float]]:
        """Pid of torchrun, and when it was told to end by the node's clock, where it was."""
        found = {name: files.read_told(self.directory, name, requeue) for name in nodes}
        return {name: told for name, told in found.items() if told is not None}

    def preempted(self, nodes: Sequence[str], requeue: int) -> bool:
        """Whether one was told to end, or a rank said so."""
        ends = self.statuses(nodes, requeue).values()
        return any(end.preempted or end.told for end in ends if end is not None)

    def codes(self, nodes: Sequence[str], requeue: int) -> dict[str, int]:
        """Exit statuses of a start that is over."""
        ends = self.statuses(nodes, requeue).items()
        return {name: LOST if end is None else end.code for name, end in ends}

    def output(self, node: str, requeue: int, first: bool) -> str:
        """What a node printed in all starts up to this one; the first one also what Slurm said."""
        logs = [files.log_of(self.directory, node, number).name for number in range(requeue + 1)]
        logs += [files.OUTPUT] if first else []
        return "".join(files.read(self.directory, name) or "" for name in logs)
