"""Paths between nodes: which nodes, and which paths besides, explain those that are bad. Pure.

A check says for each path that was tried whether it is bad. `Edges` has the rest: which node is at
fault and in which direction, which paths count for a node, and the culprits of one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.rules import Subject
from pytest_mnode.measurement import Measurement, all_of

V = TypeVar("V")
Edge = tuple[int, int]
"""Indices of a sending and a receiving node."""
Direction = Literal["both ways", "sending", "receiving"]


@dataclass(frozen=True, slots=True)
class Blame:
    """Culprits. nodes: failing direction, by index. paths: bad edges that no node explains."""

    nodes: Mapping[int, Direction]
    paths: frozenset[Edge] = frozenset()

    @classmethod
    def of(cls, nodes: Mapping[int, Direction], bad: Iterable[Edge]) -> Blame:
        """These nodes, and of the bad edges those that they leave unexplained."""
        spared = cls(nodes)
        return cls(nodes, frozenset(edge for edge in bad if spared.spares(edge)))

    def spares(self, edge: Edge) -> bool:
        """Whether no node at fault affects this edge, so that it must work."""
        source, target = edge
        return self.nodes.get(source) not in ("both ways", "sending") and self.nodes.get(
            target
        ) not in ("both ways", "receiving")


def blame(tried: Collection[Edge], bad: Collection[Edge], known: Collection[int] = ()) -> Blame:
    """The fewest culprits that explain the bad edges.

    known: nodes at fault for a reason seen on the node itself, such as a link without a carrier.
    A node is at fault in a direction if it has at least two edges in that direction to or from
    healthy nodes, and more than half of them are bad. Bad edges that remain are paths at fault;
    with two nodes, the path is always at fault.
    """
    nodes: dict[int, Direction] = dict.fromkeys(known, "both ways")
    while True:
        spared = Blame(nodes)
        left = {edge for edge in bad if spared.spares(edge)}
        worst = _worst({edge for edge in tried if spared.spares(edge)}, left, nodes)
        if worst is None:
            return Blame(nodes, frozenset(left))
        node, direction = worst
        nodes[node] = direction


def _worst(
    tried: Collection[Edge], bad: Collection[Edge], known: Mapping[int, Direction]
) -> tuple[int, Direction] | None:
    """The node at fault with most bad edges, and its direction; None if there is none."""
    best: tuple[int, int, Direction] | None = None
    for node in sorted({n for edge in bad for n in edge} - set(known)):
        out = [e for e in tried if e[0] == node]
        back = [e for e in tried if e[1] == node]
        out_bad = sum(e in bad for e in out)
        back_bad = sum(e in bad for e in back)
        sends_badly = len(out) > 1 and out_bad * 2 > len(out)
        receives_badly = len(back) > 1 and back_bad * 2 > len(back)
        if not sends_badly and not receives_badly:
            continue
        direction: Direction = "both ways"
        if not receives_badly:
            direction = "sending"
        elif not sends_badly:
            direction = "receiving"
        score = out_bad * sends_badly + back_bad * receives_badly
        if best is None or score > best[0]:
            best = (score, node, direction)
    return (best[1], best[2]) if best else None


def blame_now_and_then(tried: Collection[Edge], bad: Collection[Edge]) -> Blame:
    """As `blame`, of a fault that spares edges by chance; each node confirmed by two partners.

    If no node spoils most of its edges, as with a link that changes a byte now and then, the
    culprit is the one node that all bad edges have in common. A partner is healthy if at least one
    of its edges to or from a third node is right.
    """
    found = blame(tried, bad).nodes
    common = set.intersection(*map(set, bad)) if bad else set()
    if not found and len(common) == 1:
        [node] = common
        ends = {edge.index(node) for edge in bad}
        one_way: Direction = "receiving" if ends == {1} else "sending"
        found = {node: "both ways" if len(ends) == 2 else one_way}
    return Blame.of({n: way for n, way in found.items() if _confirming(n, tried, bad) > 1}, bad)


def _confirming(node: int, tried: Collection[Edge], bad: Collection[Edge]) -> int:
    """Number of a node's healthy partners that have a bad edge to or from it."""
    healthy = {n for edge in tried if edge not in bad and node not in edge for n in edge}
    return len({n for edge in bad if node in edge for n in edge} & healthy - {node})


def blame_star(tried: Collection[Edge], bad: Collection[Edge]) -> Blame:
    """As `blame`, of edges that all lead to one node: it is at fault if nobody reaches it, else
    each that does not reach it. With two nodes, the path is at fault."""
    if len(tried) < 2 or not bad:
        return Blame({}, frozenset(bad))
    if len(bad) == len(tried):
        return Blame({target: "receiving" for _, target in bad})
    return Blame({source: "sending" for source, _ in bad})


@dataclass(frozen=True, slots=True)
class OwnEdges(Generic[V]):
    """The edges of a node that count for it: all if it is at fault, else those that no other node
    at fault affects.

    values: by edge, in order. bad: those of them that are bad. way: the direction in which the node
    is at fault; None if it is not. paths: to blame for `bad` if the node is not. without: other
    nodes at fault, which are judged separately.
    """

    node: str
    values: Mapping[Edge, V]
    bad: frozenset[Edge]
    way: Direction | None
    paths: Culprit | None
    without: tuple[str, ...]

    def culprit(self, at_fault: Culprit) -> Culprit | None:
        """`at_fault` if the node is; else the paths."""
        return self.paths if self.way is None else at_fault


@dataclass(frozen=True, slots=True, eq=False)
class Edges(Generic[V]):
    """What was found on the edges between nodes, and the culprits of the bad ones.

    names: of the nodes, by index. values: of each edge that was tried.
    """

    names: Sequence[str]
    values: Mapping[Edge, V]
    bad: frozenset[Edge]
    blamed: Blame

    @classmethod
    def judged(
        cls,
        names: Sequence[str],
        values: Mapping[Edge, V],
        is_bad: Callable[[V], bool],
        explain: Callable[[Collection[Edge], Collection[Edge]], Blame] = blame,
    ) -> Edges[V]:
        """explain: `blame`, or a rule like it, of the edges tried and the bad ones."""
        bad = frozenset(edge for edge, value in values.items() if is_bad(value))
        return cls(names, values, bad, explain(values.keys(), bad))

    def of(self, node: str) -> OwnEdges[V]:
        """The edges that count for a node."""
        mine, blamed = self.names.index(node), self.blamed
        edges = sorted({e for n in range(len(self.names)) for e in ((mine, n), (n, mine))})
        values = {
            edge: self.values[edge]
            for edge in edges
            if edge in self.values and (mine in blamed.nodes or blamed.spares(edge))
        }
        bad = self.bad & values.keys()
        return OwnEdges(
            node,
            values,
            bad,
            blamed.nodes.get(mine),
            self.paths(bad),
            tuple(self.names[n] for n in sorted(blamed.nodes) if n != mine),
        )

    def whole(self, subject: Subject, at_fault: Callable[[str], str], note: str) -> Measurement:
        """Number of bad edges of all, with all culprits. at_fault: words for a node."""
        names = [self.names[index] for index in sorted(self.blamed.nodes)]
        nodes = [Culprit(at_fault(name), name) for name in names]
        culprit = all_of([*nodes, self.paths(self.blamed.paths)], separator=", ")
        return subject.measured(len(self.bad), culprit, note)

    def between(self, one: int, other: int) -> list[V]:
        """What was found between two nodes, either way."""
        return [self.values[e] for e in ((one, other), (other, one)) if e in self.values]

    def paths(self, bad: Collection[Edge]) -> Culprit | None:
        """The paths between nodes on which these edges are bad; None if none is."""
        pairs = dict.fromkeys((min(edge), max(edge)) for edge in sorted(bad))
        return all_of((self.path(*pair, bad) for pair in pairs), separator=", ")

    def path(self, one: int, other: int, bad: Collection[Edge]) -> Culprit:
        """The path between two nodes, with the direction if only one is bad."""
        ways = [edge for edge in ((one, other), (other, one)) if edge in bad]
        named = [(self.names[source], self.names[target]) for source, target in ways]
        if len(ways) == 2:
            return Culprit.path(f"path between {' and '.join(named[0])}", *named)
        return Culprit.path(f"path from {' to '.join(named[0])} (one way)", *named)

    def text(self, edge: Edge) -> str:
        """An edge in words, such as "node0 to node1"."""
        source, target = edge
        return f"{self.names[source]} to {self.names[target]}"
