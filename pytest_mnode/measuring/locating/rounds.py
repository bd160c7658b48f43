"""Plans of which pairs send at the same time: rounds of disjoint pairs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a pair of nodes, given by index in the world, on `rails` simultaneously."""

    sender: int
    receiver: int
    rails: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Round:
    """Flows that run at the same time; no node is in two of them.

    tests: number of tests that begin in this round, as group-testing schemes count: measuring a
    group or a pair once is one test, however many rounds its two directions take. alone: whether
    the round has a single flow, which confirms or clears a suspect.
    """

    flows: tuple[Flow, ...]
    tests: int
    stage: str
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Payload rate that one rail of a flow carried.

    alone: whether nothing else was on the fabric. wrong: whether data arrived corrupted.
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

    The circle method of a round-robin tournament: one member stays, the others move by one place.
    An odd count takes count rounds, in each of which one member has no partner.
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
    """`turns` rounds of the circle, at most all; each day begins after the previous day's last."""
    first = turns * day
    return [circle[i % len(circle)] for i in range(first, first + min(turns, len(circle)))]


def ring(members: Sequence[int]) -> list[list[Pair]]:
    """Neighbours in a closed ring, as two rounds of disjoint pairs, or three for an odd count."""
    count = len(members)
    if count < 2:
        return []
    edges = [(members[i], members[(i + 1) % count]) for i in range(count if count > 2 else 1)]
    last = [edges.pop()] if count > 2 and count % 2 else []
    return [pairs for pairs in (edges[::2], edges[1::2], last) if pairs]


def group_sizes(nodes: int) -> list[int]:
    """Sizes of consecutive groups of about √nodes each."""
    count = max(1, nodes // max(2, round(math.sqrt(nodes))))
    bounds = [nodes * i // count for i in range(count + 1)]
    return [end - start for start, end in itertools.pairwise(bounds)]


def both_ways(
    pairs: Iterable[Pair], rails: tuple[int, ...], tests: int, stage: str
) -> tuple[Round, Round]:
    """A round per direction: both at once would share a direction with acknowledgements."""
    there = tuple(Flow(a, b, rails) for a, b in pairs)
    back = tuple(Flow(flow.receiver, flow.sender, rails) for flow in there)
    return Round(there, tests, stage), Round(back, 0, stage)


def at_once(
    groups: Iterable[Sequence[int]], rails: tuple[int, ...], stage: str
) -> tuple[Round, ...]:
    """Rounds of the rings of all groups at the same time, one test per group. No node is in two."""
    rings = [matchings for group in groups if (matchings := ring(group))]
    rounds: list[Round] = []
    for step in range(max(map(len, rings), default=0)):
        pairs = [pair for matchings in rings if step < len(matchings) for pair in matchings[step]]
        rounds += both_ways(pairs, rails, 0 if step else len(rings), stage)
    return tuple(rounds)


def packed(flows: Iterable[Flow]) -> list[list[Flow]]:
    """The flows in few lists, by first fit; no list has a node twice."""
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
