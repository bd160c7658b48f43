"""Which nodes send to which at the same time: rounds of disjoint pairs. Pure, knows no rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of one pair: nodes by their index in the world, rails all at the same time."""

    sender: int
    receiver: int
    rails: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Round:
    """Flows that run at the same time; no node is in two of them.

    tests: how many measurements begin with it, as schemes that bisect groups count them: a group
    (or a pair) measured once is one test, however many rounds both its directions take.
    alone: one flow only, which confirms or clears a suspect.
    """

    flows: tuple[Flow, ...]
    tests: int
    stage: str
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What one rail of a flow carried, Mbit/s of payload.

    alone: from a round that was run to confirm. wrong: whether it did not arrive as it was sent.
    """

    sender: int
    receiver: int
    rail: int
    mbits_s: float
    alone: bool
    wrong: bool = False


@lru_cache(maxsize=8)
def circle(count: int) -> tuple[tuple[Pair, ...], ...]:
    """Every pair of 0 … count-1 once, in count-1 rounds of count/2 disjoint pairs.

    The circle method of a round-robin tournament: one stays, the others move on by a place. An odd
    count takes count rounds, in each of which one has nobody.
    """
    places = count + count % 2
    last = places - 1
    rounds = []
    for turn in range(last):
        pairs = [(last, turn)] + [
            ((turn + step) % last, (turn - step) % last) for step in range(1, places // 2)
        ]
        rounds.append(tuple((a, b) for a, b in pairs if count not in (a, b)))
    return tuple(rounds)


def of_day(circle: Sequence[Sequence[Pair]], day: int, turns: int) -> list[Sequence[Pair]]:
    """So many of its rounds, at most all: the next ones on every day."""
    first = turns * day
    return [circle[i % len(circle)] for i in range(first, first + min(turns, len(circle)))]


def ring(members: Sequence[int]) -> list[list[Pair]]:
    """Neighbours in a closed ring, as two rounds of disjoint pairs; three for an odd number."""
    count = len(members)
    if count < 2:
        return []
    edges = [(members[i], members[(i + 1) % count]) for i in range(count if count > 2 else 1)]
    last = [edges.pop()] if count > 2 and count % 2 else []
    return [pairs for pairs in (edges[::2], edges[1::2], last) if pairs]


def group_sizes(nodes: int) -> list[int]:
    """About √n each, in as many groups as that makes."""
    count = max(1, nodes // max(2, round(math.sqrt(nodes))))
    bounds = [nodes * i // count for i in range(count + 1)]
    return [end - start for start, end in itertools.pairwise(bounds)]


def both_ways(
    pairs: Iterable[Pair], rails: tuple[int, ...], tests: int, stage: str
) -> tuple[Round, Round]:
    """One round a direction: both at once would share the way of acknowledgements."""
    there = tuple(Flow(a, b, rails) for a, b in pairs)
    back = tuple(Flow(flow.receiver, flow.sender, rails) for flow in there)
    return Round(there, tests, stage), Round(back, 0, stage)


def at_once(
    groups: Iterable[Sequence[int]], rails: tuple[int, ...], stage: str
) -> tuple[Round, ...]:
    """The rings of all groups, which share no node, at the same time: a test a group."""
    rings = [matchings for group in groups if (matchings := ring(group))]
    rounds: list[Round] = []
    for step in range(max(map(len, rings), default=0)):
        pairs = [pair for matchings in rings if step < len(matchings) for pair in matchings[step]]
        rounds += both_ways(pairs, rails, 0 if step else len(rings), stage)
    return tuple(rounds)


def packed(flows: Iterable[Flow]) -> list[list[Flow]]:
    """The flows in as few lists as is easily found, no node twice in any."""
    lists: list[list[Flow]] = []
    busy: list[set[int]] = []
    for flow in flows:
        ends = {flow.sender, flow.receiver}
        place = next((i for i, taken in enumerate(busy) if not taken & ends), len(lists))
        if place == len(lists):
            lists.append([])
            busy.append(set())
        lists[place].append(flow)
        busy[place] |= ends
    return lists
