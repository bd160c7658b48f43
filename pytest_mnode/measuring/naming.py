"""Names of ranks, and of the culprit if results are wrong on some of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import all_of, listed
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import Collective


def rank_name(world: World, rank: int) -> Culprit:
    """Name of a rank, such as "rank 3 on node1", with its node."""
    return named_rank(world.nodes[rank // world.local_size], rank)


def named_rank(node: str, rank: int) -> Culprit:
    """Name of a rank on a node."""
    return Culprit.rank(f"rank {rank} on {node}", node, rank)


def culprit_of(world: World, ranks: Sequence[int], senders: Sequence[int] = ()) -> Culprit | None:
    """Culprit of wrong results on these ranks, as far as known; None if `ranks` is empty.

    senders: ranks whose values are wrong there, as far as known. A single sender whose values are
    wrong on several ranks is the culprit, or the node of several senders whose values are wrong on
    all other nodes; of two nodes, either is. Otherwise the ranks with wrong results are.
    """
    if not ranks:
        return None
    where = "all" if len(ranks) == world.size else f"{len(ranks)} of {world.size}"
    of_rank = [world.nodes[rank // world.local_size] for rank in range(world.size)]
    sources = {of_rank[sender] for sender in senders}
    beyond = [rank for rank in range(world.size) if of_rank[rank] not in sources]
    if len(sources) == 1 and sorted(ranks) == beyond:
        [source] = (Culprit(node, node) for node in sources)
        words = f"{source}: its values are wrong in the results of all other nodes"
        if len(world.nodes) == 2:
            either = [source, *(rank_name(world, rank) for rank in ranks)]
            return Culprit.one_of(f"{words}, or these receive them wrong", either)
        if len(senders) > 1:
            return Culprit(words, source)
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


def culprit_of_messages(world: World, wrong: Sequence[tuple[int, int]]) -> Culprit | None:
    """The rank common to all wrong messages, (sender, receiver), else those messages; None if none
    is wrong. Of one message nobody knows which end spoiled it."""
    if not wrong:
        return None
    common = set(wrong[0]).intersection(*wrong)
    if len(wrong) > 1 and len(common) == 1:
        return rank_name(world, common.pop())
    ends = ((rank_name(world, sender), rank_name(world, receiver)) for sender, receiver in wrong)
    return all_of((Culprit.one_of(f"{a} → {b}", [a, b]) for a, b in ends), separator=", ")


def culprit_of_collective(
    world: World, collective: str, ranks: Sequence[int], senders: Sequence[int]
) -> Culprit | None:
    """As `culprit_of`, of a collective: in some, no other rank receives the same values."""
    messages = list[tuple[int, int]]()
    if collective == Collective.SEND_RECV:  # each from the rank so many steps before it
        for step in range(1, world.size):
            messages = [((rank - step) % world.size, rank) for rank in ranks]
            if {sender for sender, _ in messages} == set(senders):
                break
            messages = []
    elif collective == Collective.ALL_TO_ALL and len(ranks) == len(senders) == 1:
        messages = [(senders[0], ranks[0])] if senders[0] != ranks[0] else []
    return culprit_of_messages(world, messages) or culprit_of(world, ranks, senders)
