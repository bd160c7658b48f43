"""Names of ranks, and of the culprit if results are wrong on some of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.measurement import listed
from pytest_mnode.rank.world import World


def rank_name(world: World, rank: int) -> str:
    """Name of a rank, such as "rank 3 on node1"."""
    return f"rank {rank} on {world.nodes[rank // world.local_size]}"


def culprit_of(world: World, ranks: Sequence[int], senders: Sequence[int] = ()) -> str | None:
    """Culprit of wrong results on these ranks, as far as known; None if `ranks` is empty.

    senders: ranks whose values are wrong there, as far as known. A single sender whose values are
    wrong on several ranks is the culprit; otherwise the ranks with wrong results are.
    """
    if not ranks:
        return None
    where = "all" if len(ranks) == world.size else f"{len(ranks)} of {world.size}"
    if len(senders) == 1 and len(ranks) > 1:
        name = rank_name(world, senders[0])
        return f"{name}: the values of this rank are wrong in the results of {where} ranks"
    if len(ranks) == world.size:
        return "unknown: the results of all ranks are wrong, so any of them may send wrong values"
    names = listed((rank_name(world, rank) for rank in ranks), separator=", ")
    return f"{names}: wrong results there, right results on {world.size - len(ranks)} other ranks"
