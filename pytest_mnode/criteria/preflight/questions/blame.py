"""From ways that fail to who is to blame: a node and a direction, or the path between two nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Edge = tuple[int, int]
"""From one node to another, by index."""
Way = Literal["both ways", "sending", "receiving"]


@dataclass(frozen=True, slots=True)
class Blame:
    """nodes: those at fault, with the direction that fails. paths: ways that fail all the same."""

    nodes: Mapping[int, Way]
    paths: frozenset[Edge]

    def spares(self, edge: Edge) -> bool:
        """Whether a way is one that no node at fault spoils: it has to work."""
        source, target = edge
        return self.nodes.get(source) not in ("both ways", "sending") and self.nodes.get(
            target
        ) not in ("both ways", "receiving")


def blame(tried: Collection[Edge], failed: Collection[Edge], known: Collection[int] = ()) -> Blame:
    """Fewest culprits that explain what failed.

    known: nodes at fault for a reason seen on themselves, such as a link without a carrier. A node
    is at fault in a direction when, of at least two ways in that direction to or from nodes that
    are well, more than half fail. What is left are paths: with two nodes it is always the path.
    """
    nodes: dict[int, Way] = dict.fromkeys(known, "both ways")
    left = {edge for edge in failed if Blame(nodes, frozenset()).spares(edge)}
    while True:
        spared = Blame(nodes, frozenset())
        well = {edge for edge in tried if spared.spares(edge)}
        worst = _worst(well, left, nodes)
        if worst is None:
            return Blame(nodes, frozenset(left))
        node, way = worst
        nodes[node] = way
        left = {edge for edge in left if Blame(nodes, frozenset()).spares(edge)}


def _worst(
    tried: Collection[Edge], failed: Collection[Edge], known: Mapping[int, Way]
) -> tuple[int, Way] | None:
    """The node with most failing ways of those that are at fault at all, and in which direction."""
    best: tuple[int, int, Way] | None = None
    for node in sorted({n for edge in failed for n in edge} - set(known)):
        out = [e for e in tried if e[0] == node]
        back = [e for e in tried if e[1] == node]
        out_bad = sum(e in failed for e in out)
        back_bad = sum(e in failed for e in back)
        sends_badly = len(out) > 1 and out_bad * 2 > len(out)
        receives_badly = len(back) > 1 and back_bad * 2 > len(back)
        if not sends_badly and not receives_badly:
            continue
        way: Way = "both ways"
        if not receives_badly:
            way = "sending"
        elif not sends_badly:
            way = "receiving"
        score = out_bad * sends_badly + back_bad * receives_badly
        if best is None or score > best[0]:
            best = (score, node, way)
    return (best[1], best[2]) if best else None
