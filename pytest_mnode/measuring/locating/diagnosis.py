"""Diagnosis of slow nodes, directions, rails and paths, confirmed or not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.measuring.locating.rates import STANDS_OUT, Rates
from pytest_mnode.measuring.locating.rounds import Flow

CONFIRMED_BY = 2
"""Number of healthy partners with which a suspect must be slow, alone on the fabric."""
REPEATS = 2
"""Readings taken of a flow alone on the fabric; the best counts, because one may be disturbed."""


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node that sends, or receives, below the expected rate with every partner.

    rails: its slow rails. mbits_s: rate with the best partner in the slow direction, or in the
    faster direction if both are slow. partners: healthy partners; if `confirmed`, each was tried
    with nothing else on the fabric.
    """

    node: int
    rails: tuple[int, ...]
    sends_slowly: bool
    receives_slowly: bool
    mbits_s: float
    partners: tuple[int, ...]
    confirmed: bool

    @property
    def directions(self) -> tuple[bool, ...]:
        """Slow directions, as the `sends` arguments of `Rates`: True for sending."""
        return (True,) * self.sends_slowly + (False,) * self.receives_slowly


@dataclass(frozen=True, slots=True)
class SlowPath:
    """A path whose two ends are both faster with other nodes.

    both_ways: whether the opposite direction is slow too. mbits_s: rate of the faster direction.
    """

    sender: int
    receiver: int
    rails: tuple[int, ...]
    both_ways: bool
    mbits_s: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The culprits that follow from the measured rates.

    too_slow_rails: rails whose fastest links miss the bound; all rails mean the whole fabric.
    reference_mbits_s: by rail, rate of healthy links. unsteady_mbits_s: lowest and highest
    reading of a link, if links do not keep a rate; then there is a fault without a culprit.
    groups: see `groups_apart`.
    """

    nodes: tuple[SlowNode, ...]
    paths: tuple[SlowPath, ...]
    too_slow_rails: tuple[int, ...]
    reference_mbits_s: tuple[float, ...]
    unsteady_mbits_s: tuple[float, float] | None = None
    groups: tuple[tuple[int, ...], ...] = ()

    def usual_mbits_s(self, rails: Sequence[int]) -> float:
        """Rate of healthy links of these rails; 0 if nothing was measured."""
        known = [rate for rail in rails if (rate := self.reference_mbits_s[rail]) > 0]
        return float(np.median(known)) if known else 0.0

    def of_some_rails(self, count: int) -> bool:
        """Whether a fault is on some of the `count` rails, and not on all of them."""
        nodes, paths = (one.rails for one in self.nodes), (one.rails for one in self.paths)
        return any(0 < len(rails) < count for rails in (*nodes, *paths, self.too_slow_rails))

    @property
    def nobody(self) -> bool:
        """Whether no fault was found, not even an unconfirmed one."""
        return not (self.nodes or self.paths or self.too_slow_rails or self.unsteady_mbits_s)


def diagnose(rates: Rates) -> Diagnosis:
    """The diagnosis of these rates. With two nodes, only the path between them can be named.

    If links do not keep a rate, no node or path is named.
    """
    reference = tuple(rates.reference.tolist())
    if rates.nodes == 2:
        found = Diagnosis((), _between_two(rates), (), reference)
    else:
        found = Diagnosis(
            slow_nodes(rates),
            _paths(rates, rates.slow_links),
            rates.too_slow_rails,
            reference,
            groups=groups_apart(rates),
        )
    if not found.nobody and (unsteady := rates.unsteady):
        return Diagnosis((), (), (), reference, unsteady_mbits_s=unsteady)
    return found


def suspected(rates: Rates) -> list[Flow]:
    """Links diagnosed as slow now; of a slow node, its best link in each slow direction."""
    found, flows = diagnose(rates), []
    for node in found.nodes:
        slowest = slowest_rail(rates.best[list(node.rails)])
        for sends in node.directions:
            other = int(np.argmax(slowest[node.node] if sends else slowest[:, node.node]))
            ends = (node.node, other) if sends else (other, node.node)
            flows.append(Flow(*ends, node.rails))
    for path in found.paths:
        ways = [(path.sender, path.receiver), (path.receiver, path.sender)]
        flows += [Flow(*way, path.rails) for way in ways[: 1 + path.both_ways]]
    return flows


def slowest_rail(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rate of the slowest rail, by sender and receiver; 0 if none was measured."""
    slowest: NDArray[np.float64] = np.nan_to_num(np.fmin.reduce(rates, axis=0))
    return slowest


def slow_nodes(rates: Rates) -> tuple[SlowNode, ...]:
    """Nodes that are slow with all partners; rails slow in the same directions share an entry."""
    return tuple(found for node in rates.slow_nodes for found in _of_node(rates, node))


def _of_node(rates: Rates, node: int) -> list[SlowNode]:
    slow_tx, slow_rx = rates.slow_tx, rates.slow_rx
    together: dict[tuple[bool, bool, bool, bool], list[int]] = {}
    for rail in rates.each_rail:
        sends, receives = bool(slow_tx[rail, node]), bool(slow_rx[rail, node])
        if sends or receives:
            directions = [True] * sends + [False] * receives
            confirmed = all(
                len(rates.partners(node, [rail], sends=way, times_alone=REPEATS)) >= CONFIRMED_BY
                for way in directions
            )
            nic = rail < rates.nics
            together.setdefault((sends, receives, confirmed, nic), []).append(rail)
    found = []
    for (sends, receives, confirmed, _), rails in together.items():
        scores = [rates.tx[rails, node]] * sends + [rates.rx[rails, node]] * receives
        partners: dict[int, None] = {}
        for way in [True] * sends + [False] * receives:
            for rail in rails:
                least = REPEATS if confirmed else 0
                met = rates.partners(node, [rail], sends=way, times_alone=least)
                partners |= dict.fromkeys(met)
        best = float(np.max(scores))
        found.append(
            SlowNode(node, tuple(rails), sends, receives, best, tuple(partners), confirmed)
        )
    return found


def is_confirmed(rates: Rates, rail: int, sender: int, receiver: int) -> bool:
    """Whether a link was slow alone repeatedly, and each end fast alone with another partner.

    With two nodes, no end has another partner, so only the repetition counts.
    """
    if rates.nodes == 2:
        return bool(rates.times_alone[rail, sender, receiver] >= CONFIRMED_BY * REPEATS)
    alone, enough = rates.best_alone[rail], contrast_mbits_s(rates, rail, sender, receiver)
    return bool(
        rates.times_alone[rail, sender, receiver] >= CONFIRMED_BY * REPEATS
        and (alone[sender, :] >= enough).any()
        and (alone[:, receiver] >= enough).any()
    )


def contrast_mbits_s(rates: Rates, rail: int, sender: int, receiver: int) -> float:
    """Rate that both ends of a slow link must reach with others to show that the link is slow."""
    stands_out = rates.threshold[rail] / rates.reference[rail]
    return float(rates.best[rail, sender, receiver] / max(STANDS_OUT, stands_out))


def groups_apart(rates: Rates) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes that are fast among themselves, if all slow paths are between two of them.

    The cause is then what joins the groups, such as the uplink of a switch, and not each path.
    Empty if there are no such groups of two nodes or more, or fewer slow pairs than nodes: single
    slow paths can cut a ring into groups too.
    """
    pairs = {frozenset(ends) for _, *ends in rates.slow_links}
    if len(pairs) < 4:  # those of two groups of two nodes
        return ()
    slow = (rates.best < rates.threshold[:, None, None]).any(axis=0)
    fast = rates.measured & ~(slow | slow.T)
    left = set(range(rates.nodes)) - set(rates.slow_nodes)
    group_of: dict[int, int] = {}
    groups: list[list[int]] = []
    while left:
        found, new = set[int](), {min(left)}
        while new:
            found |= new
            new = {int(i) for i in np.flatnonzero(fast[list(new)].any(axis=0))} & left - found
        left -= found
        group_of |= dict.fromkeys(found, len(groups))
        groups.append(sorted(found))
    between = all(len({group_of.get(node) for node in pair} - {None}) > 1 for pair in pairs)
    if len(groups) < 2 or min(map(len, groups)) < 2 or len(pairs) < len(group_of) or not between:
        return ()
    return tuple(map(tuple, groups))


def _paths(rates: Rates, links: Sequence[tuple[int, int, int]]) -> tuple[SlowPath, ...]:
    """Slow paths; both directions, and rails slow in the same directions, share an entry."""
    confirmed = {link: is_confirmed(rates, *link) for link in links}
    if any(confirmed.values()) and groups_apart(rates):
        confirmed = dict.fromkeys(links, True)  # one path stands for all of them
    together: dict[tuple[int, int, bool, bool], list[int]] = {}
    for rail, sender, receiver in links:
        sure = confirmed[rail, sender, receiver]
        both = confirmed.get((rail, receiver, sender)) is sure
        if not both or sender < receiver:
            together.setdefault((sender, receiver, both, sure), []).append(rail)
    found = []
    for (sender, receiver, both, sure), rails in together.items():
        there, back = rates.best[rails, sender, receiver], rates.best[rails, receiver, sender]
        best = float(np.max(np.fmax(there, back) if both else there))
        found.append(SlowPath(sender, receiver, tuple(rails), both, best, sure))
    return tuple(found)


def _between_two(rates: Rates) -> tuple[SlowPath, ...]:
    links = np.argwhere(rates.best < rates.bounds_mbits_s[:, None, None])
    return _paths(rates, [(int(rail), int(a), int(b)) for rail, a, b in links])
