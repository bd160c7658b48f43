"""Names of ranks, and of the culprit if results are wrong on some of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import listed
from pytest_mnode.rank.world import World


def rank_name(world: World, rank: int) -> Culprit:
    """Name of a rank, such as "rank 3 on node1", with its node."""
    node = world.nodes[rank // world.local_size]
    return Culprit.rank(f"rank {rank} on {node}", node, rank)


def culprit_of(world: World, ranks: Sequence[int], senders: Sequence[int] = ()) -> Culprit | None:
    """Culprit of wrong results on these ranks, as far as known; None if `ranks` is empty.

    senders: ranks whose values are wrong there, as far as known. A single sender whose values are
    wrong on several ranks is the culprit; otherwise the ranks with wrong results are.
    """
    if not ranks:
        return None
    where = "all" if len(ranks) == world.size else f"{len(ranks)} of {world.size}"
    if len(senders) == 1 and len(ranks) > 1:
        name = rank_name(world, senders[0])
        words = f"{name}: the values of this rank are wrong in the results of {where} ranks"
        return Culprit.merged(words, [name])
    if len(ranks) == world.size:
        return Culprit(
            "unknown: the results of all ranks are wrong, so any of them may send wrong values"
        )
    names = [rank_name(world, rank) for rank in ranks]
    right = f"right results on {world.size - len(ranks)} other ranks"
    return Culprit.merged(f"{listed(names, separator=', ')}: wrong results there, {right}", names)
