"""Helpers of all judges: measurements without a value, outliers among nodes, and blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeVar

from pytest_mnode import measurement
from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Bound, Measurement, all_of
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Fabric, Management, Network
from pytest_mnode.spec.preflight import PreflightCriterion

V = TypeVar("V")
N = TypeVar("N", bound=Network)
Edge = tuple[int, int]
"""Indices of a sending and a receiving node."""
Direction = Literal["both ways", "sending", "receiving"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A measurement of a node without its value."""

    name: str
    unit: str
    bound: Bound
    source: str

    def unknown(self, why: str, culprit: Culprit | None = None) -> Measurement:
        """Inconclusive measurement of a value that could not be read, with the reason."""
        return Measurement.unknown(
            self.name, why, unit=self.unit, expected=self.bound, source=self.source, culprit=culprit
        )

    def measured(self, value: float, culprit: str | None = None, note: str = "") -> Measurement:
        """Measurement with its value. culprit: to blame if the bound is broken; a plain text is a
        fault of the node that is judged."""
        named = None if culprit is None else Culprit.of(culprit)
        return Measurement(self.name, value, self.unit, self.bound, self.source, named, note)


def of_node(name: str, one: Measurement) -> Measurement:
    """A judge's measurement of a node: a culprit in plain words is this node's."""
    culprit = one.culprit
    if culprit is None or culprit.nodes or any(culprit.either):
        return one
    return replace(one, culprit=Culprit(culprit, name))


def promises(spec: Spec) -> PreflightCriterion:
    """The spec's promises of preflight; an empty criterion if the spec has no preflight."""
    return spec.criteria.preflight or PreflightCriterion.model_validate({})


def networks_of(spec: Spec) -> dict[str, Network]:
    """The networks of a spec by their key."""
    found: dict[str, Network] = {"fabric": spec.fabric}
    return found | ({"management": spec.management} if spec.management else {})


def mtus_of(spec: Spec) -> dict[str, tuple[Network, int]]:
    """Networks whose MTU is promised, with that MTU in bytes, by key."""
    promise = promises(spec).mtu
    found: dict[str, tuple[Network, int]] = {}
    for key in promise.networks if promise else ():
        network = networks_of(spec).get(key)
        if isinstance(network, Fabric | Management) and network.mtu_bytes is not None:
            found[key] = (network, network.mtu_bytes)
    return found


def no_answer(node: NodeSurvey) -> str:
    """A node's name, and why its facts are missing."""
    return f"{node.name}: {node.problem or 'its survey gave no answer'}"


def why_unread(node: NodeSurvey, part: str) -> str:
    """A node's name, and why a part of its machine is missing."""
    if node.facts is None:
        return no_answer(node)
    return f"{node.name}: {node.facts.machine.unread.get(part, f'no {part}')}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Up to `most` distinct words joined by commas, and the number of further ones."""
    return measurement.listed(words, most, ", ")


@dataclass(frozen=True, slots=True)
class Blame:
    """Culprits. nodes: failing direction, by index. paths: failed edges that no node explains."""

    nodes: Mapping[int, Direction]
    paths: frozenset[Edge] = frozenset()

    def spares(self, edge: Edge) -> bool:
        """Whether no node at fault affects this edge, so that it must work."""
        source, target = edge
        return self.nodes.get(source) not in ("both ways", "sending") and self.nodes.get(
            target
        ) not in ("both ways", "receiving")


def blame(tried: Collection[Edge], failed: Collection[Edge], known: Collection[int] = ()) -> Blame:
    """The fewest culprits that explain the failed edges.

    known: nodes at fault for a reason seen on the node itself, such as a link without a carrier.
    A node is at fault in a direction if it has at least two edges in that direction to or from
    healthy nodes, and more than half of them fail. Failed edges that remain are paths at fault;
    with two nodes, the path is always at fault.
    """
    nodes: dict[int, Direction] = dict.fromkeys(known, "both ways")
    while True:
        spared = Blame(nodes)
        left = {edge for edge in failed if spared.spares(edge)}
        worst = _worst({edge for edge in tried if spared.spares(edge)}, left, nodes)
        if worst is None:
            return Blame(nodes, frozenset(left))
        node, direction = worst
        nodes[node] = direction


def _worst(
    tried: Collection[Edge], failed: Collection[Edge], known: Mapping[int, Direction]
) -> tuple[int, Direction] | None:
    """The node at fault with most failing edges, and its direction; None if there is none."""
    best: tuple[int, int, Direction] | None = None
    for node in sorted({n for edge in failed for n in edge} - set(known)):
        out = [e for e in tried if e[0] == node]
        back = [e for e in tried if e[1] == node]
        out_bad = sum(e in failed for e in out)
        back_bad = sum(e in failed for e in back)
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


def is_judged(me: NodeSurvey, blamed: Blame, edge: Edge) -> bool:
    """Whether an edge of this node counts: every edge if the node is at fault, else the edges that
    no other node affects."""
    return me.index in blamed.nodes or blamed.spares(edge)


def own_edges(me: NodeSurvey, found: Mapping[Edge, V], blamed: Blame) -> dict[Edge, V]:
    """Values of `found` on the edges to and from a node that count for it."""
    return {
        edge: found[edge]
        for edge in sorted(found)
        if me.index in edge and is_judged(me, blamed, edge)
    }


def rarest_first(
    survey: Survey, node: NodeSurvey, network: N, faults_of: Callable[[NodeSurvey, N], list[str]]
) -> list[str]:
    """A node's faults on a network, those of fewest nodes first.

    Spare ports, such as the second ones of cards, have no cable on any node.
    """
    return sorted(faults_of(node, network), key=_counts(survey, network, faults_of).__getitem__)


@lru_cache(maxsize=8)
def _counts(
    survey: Survey, network: N, faults_of: Callable[[NodeSurvey, N], list[str]]
) -> Counter[str]:
    return Counter(text for node in survey.nodes for text in faults_of(node, network))


def path_between(me: NodeSurvey, other: NodeSurvey, failed: Collection[Edge]) -> Culprit:
    """The path between two nodes, with the direction if only one fails."""
    out, back = (me.index, other.index) in failed, (other.index, me.index) in failed
    one, two = sorted((me, other), key=lambda node: node.index)
    if out and back:
        words = f"path between {one.name} and {two.name}"
    else:
        source, target = (me, other) if out else (other, me)
        words = f"path from {source.name} to {target.name} (one way)"
    return Culprit(words, either=[[one.name, two.name]])


def paths_to_blame(survey: Survey, failed: Collection[Edge]) -> Culprit | None:
    """The paths between nodes on which these edges fail; None if none does."""
    pairs = dict.fromkeys((min(edge), max(edge)) for edge in sorted(failed))
    paths = (path_between(survey.nodes[a], survey.nodes[b], failed) for a, b in pairs)
    return all_of(paths, separator=", ")


def edge_in_words(survey: Survey, edge: Edge) -> str:
    """Text of an edge, such as "node0 to node1"."""
    source, target = (survey.nodes[index].name for index in edge)
    return f"{source} to {target}"
