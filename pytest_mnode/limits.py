"""How long a run waits for its nodes: what the user set, and all that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

_NODES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run waits for its nodes, in seconds; see the options of these names.

    start_s: for a node's program. report_s: for a node's report, once its program runs. connect_s:
    for a connection. silence_s: for a sign of life.
    """

    start_s: float = 60.0
    report_s: float = 30.0
    connect_s: float = 15.0
    silence_s: float = 6.0

    def of(self, nodes: int) -> Self:
        """The limits where so many nodes start at the same time, from the same storage and
        controller: as long again to start for every 256 of them. Reports come in turns."""
        return replace(self, start_s=self.start_s * (1 + nodes // _NODES))

    @property
    def reported_s(self) -> float:
        """For the report of a node whose program has yet to start."""
        return self.start_s + self.report_s

    @property
    def first_word_s(self) -> float:
        """For an agent's first message: to start, and two ways over the node's stream."""
        return self.start_s + 2 * self.connect_s

    @property
    def agent_silence_s(self) -> float:
        """For a sign of life of an agent or the hub, which are also busy with forks and imports."""
        return 2.5 * self.silence_s

    @property
    def imported_s(self) -> float:
        """For the import of torch and the tests, whose files are many."""
        return 5 * self.start_s

    def ranks_s(self, *, imports: bool) -> float:
        """For the ranks of a world. imports: whether they import modules themselves."""
        return (2 if imports else 1) * self.start_s

    @property
    def world_s(self) -> float:
        """For a world on nodes that have yet to import torch."""
        return self.imported_s + self.ranks_s(imports=True) + self.report_s
