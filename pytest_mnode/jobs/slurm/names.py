"""Names that Slurm has for nodes, and those that the run has, which are their host names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import NodeState


@dataclass(frozen=True, slots=True)
class Names:
    """slurm: Slurm's name of each node of the run. others: of nodes that are not the run's."""

    slurm: Mapping[str, str]
    others: tuple[str, ...] = ()

    def for_slurm(self, names: Iterable[str]) -> tuple[str, ...]:
        """As Slurm has them; other nodes as they are."""
        return tuple(self.slurm.get(name, name) for name in names)

    def for_run(self, names: Iterable[str]) -> tuple[str, ...]:
        """As the run has them; of other nodes Slurm's."""
        known = {theirs: ours for ours, theirs in self.slurm.items()}
        return tuple(known.get(name, name) for name in names)


def names_of(
    nodes: Sequence[NodeState], wanted: Iterable[str], known: Mapping[str, str] | None = None
) -> Names:
    """Those of the nodes that are wanted. Raises ClusterError, one line, for one that is not there.

    known: what the launcher has asked the nodes themselves: Slurm's name by each one's own. Else a
    node is known by its name in Slurm, by what Slurm has for its host name, or by either without
    the domain, where that is one node's only.
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
