"""How large gangs are, on which nodes, in which order: from the promise and the nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.engine import Capacity
from pytest_mnode.gang.terms import KEY
from pytest_mnode.spec.gang import GangCriterion

_MOST_FILLERS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """arena: the nodes that all jobs are confined to; too few for two gangs. size: of a gang."""

    arena: tuple[str, ...]
    size: int
    seed: int

    @property
    def fillers(self) -> tuple[int, ...]:
        """Nodes of each of the jobs that leave one node too few for a gang.

        The first have one node, of which one ends; a large cluster is filled by few jobs all the
        same.
        """
        nodes = len(self.arena) - (self.size - 1)
        if nodes <= _MOST_FILLERS:
            return (1,) * nodes
        return (*(1,) * (_MOST_FILLERS - 1), nodes - (_MOST_FILLERS - 1))

    def order(self, title: str, names: Sequence[str]) -> list[str]:
        """Names in the order of a round: another one for each title, the same for the same seed."""
        shuffled = list(names)
        Random(f"{self.seed} {title}").shuffle(shuffled)
        return shuffled


def plan(promise: GangCriterion, there: Capacity) -> Plan:
    """Raises UsageError where there are too few free nodes for a gang, or too many for one only."""
    wanted = promise.among or there.nodes
    if unknown := [node for node in wanted if node not in there.nodes]:
        raise UsageError(
            f"{KEY}.among: {', '.join(unknown)}: no such node; the scheduler has "
            f"{', '.join(there.nodes)}"
        )
    free = tuple(node for node in wanted if node in there.free)
    if promise.among and len(free) < len(wanted):
        taken = ", ".join(node for node in wanted if node not in free)
        raise UsageError(f"{KEY}.among: {taken} not free; give nodes that nobody uses")
    size = promise.nodes or max(2, len(free) // 2 + 1)
    if len(free) < size:
        raise UsageError(
            f"{len(free)} of {len(wanted)} nodes are free, and a gang has {size}; the experiment "
            "needs nodes that nobody holds, also not the allocation that this run is in: run it "
            "from a login node"
        )
    # Room for one gang and, where there is any, for plain jobs beside it.
    return Plan(free[: 2 * size - 1], size, promise.seed)
