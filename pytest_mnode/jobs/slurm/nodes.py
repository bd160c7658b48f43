"""Nodes of a submitted job: their names in Slurm and in the run, and those that were lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import NodeState, Slurm, SlurmError

_POLL_NODES_S = 2.0


@dataclass(frozen=True, slots=True)
class Names:
    """Node names in Slurm and in the run, which uses host names.

    slurm: Slurm's name of each node of the run. others: Slurm's names of all other nodes.
    """

    slurm: Mapping[str, str]
    others: tuple[str, ...] = ()

    def for_slurm(self, names: Iterable[str]) -> tuple[str, ...]:
        """Slurm's names; a name of a node outside the run is kept."""
        return tuple(self.slurm.get(name, name) for name in names)

    def for_run(self, names: Iterable[str]) -> tuple[str, ...]:
        """The run's names; a node outside the run keeps Slurm's name."""
        known = {theirs: ours for ours, theirs in self.slurm.items()}
        return tuple(known.get(name, name) for name in names)


def names_of(
    nodes: Sequence[NodeState], wanted: Iterable[str], known: Mapping[str, str] | None = None
) -> Names:
    """Names of the wanted nodes, from all nodes that Slurm has.

    known: Slurm's name by host name, if the launcher has read it on the nodes. Else a node is found
    by its name in Slurm, by its NodeHostName, or by either without the domain if only one node has
    that. Raises ClusterError, one line, for a node that Slurm does not have.
    """
    by_name = {node.name: node.name for node in nodes}
    by_host = {node.hostname: node.name for node in nodes if node.hostname}
    by_short: dict[str, set[str]] = {}
    for node in nodes:
        for text in filter(None, (node.name, node.hostname)):
            by_short.setdefault(text.partition(".")[0], set()).add(node.name)
    found = {}
    for name in wanted:
        short = name.partition(".")[0]
        one = by_short.get(name, set())
        theirs = (
            by_name.get((known or {}).get(name, name))
            or by_host.get(name)
            or by_name.get(short)
            or by_host.get(short)
            or (next(iter(one)) if len(one) == 1 else None)
        )
        if theirs is None:
            raise ClusterError(f"Slurm has no node {name!r} (scontrol show node)")
        found[name] = theirs
    taken = set(found.values())
    return Names(found, tuple(node.name for node in nodes if node.name not in taken))


class Losses:
    """Nodes that Slurm lost under a job, over all its starts.

    pinned: the first start is bound to certain nodes; the job may move if one of them is lost.
    lost: the lost nodes of the current start.
    """

    def __init__(self, slurm: Slurm, names: Names, pinned: bool) -> None:
        self.lost: tuple[str, ...] = ()
        self._slurm = slurm
        self._names = names
        self._pinned = pinned
        self._looked_at = -_POLL_NODES_S
        self._waits_since: float | None = None

    @property
    def due(self) -> bool:
        return time.monotonic() - self._looked_at > _POLL_NODES_S

    def look(self, nodes: Sequence[str]) -> dict[str, str]:
        """Nodes of `nodes` that Slurm lost since the last check, with its reason.

        Empty if Slurm does not answer now.
        """
        self._looked_at = time.monotonic()
        found = {}
        with contextlib.suppress(ClusterError):
            for node in self._slurm.nodes(self._names.for_slurm(nodes)) if nodes else ():
                [name] = self._names.for_run([node.name])
                if node.lost and name not in self.lost:
                    found[name] = node.text
        self.lost += tuple(found)
        return found

    def started(self) -> None:
        """Record that the job runs, on nodes that are up."""
        self.lost, self._waits_since = (), None

    def requeued(self) -> None:
        """Record that the job waits for its next start."""
        self._waits_since = time.monotonic()

    def let_move(self, number: int) -> None:
        """Remove the job's node list if one of its nodes is lost.

        Slurm refuses while the last start is completing; the next call tries again.
        """
        if self._pinned and self.lost:
            with contextlib.suppress(SlurmError):
                self._slurm.run("scontrol", "update", f"JobId={number}", "ReqNodeList=")
                self._pinned = False

    def waited_long(self, limit_s: float) -> str:
        """Message about the nodes it waited for longer than `limit_s`; "" if it may still wait."""
        if self._waits_since is None or not self.lost:
            return ""
        if time.monotonic() - self._waits_since < limit_s:
            return ""
        return f"{', '.join(self.lost)} not back within {limit_s:g} s"
