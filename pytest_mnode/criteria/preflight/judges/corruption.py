"""Judges of payloads: whether bytes that nodes send by TCP arrive unchanged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Blame,
    Direction,
    Edge,
    Subject,
    blame,
    edge_in_words,
    is_judged,
    listed,
    networks_of,
    no_answer,
    own_edges,
    path_between,
    paths_to_blame,
    promises,
)
from pytest_mnode.criteria.preflight.judges.links import no_links
from pytest_mnode.criteria.preflight.orders import PayloadOrder
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, all_of, at_most, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Network
from pytest_mnode.spec.preflight import Payload
from pytest_mnode.spec.quantity import SIZE


def payload(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per network: wrong bytes of the payloads that this node sent or received.

    Judged on the edges that no other node is to blame for.
    """
    promise, networks = promises(spec).payload, networks_of(spec)
    if promise is None or len(survey.nodes) == 1:
        return []
    me = survey.node(name)
    return [
        _payload(survey, me, key, networks[key], promise)
        for key in promise.networks
        if key in networks
    ]


@dataclass(slots=True)
class _Arrived:
    """Payloads from one node to another, on all rails. problem: why not all arrived."""

    size_bytes: int = 0
    wrong_bytes: int = 0
    problem: str = ""


def _payload(
    survey: Survey, me: NodeSurvey, key: str, network: Network, promise: Payload
) -> Measurement:
    source = f"preflight.payload {SIZE.text(promise.size_bytes)} to each partner"
    subject = Subject(f"wrong bytes of payloads on the {key} network", "B", at_most(0), source)
    if me.facts is None or me.payloads is None:
        return subject.unknown(no_answer(me))
    arrived, corrupt, lossy = _arrived(survey, key, promise.size_bytes)
    mine = own_edges(me, arrived, corrupt)
    wrong = {edge for edge, one in mine.items() if one.wrong_bytes}
    late = {edge: one for edge, one in mine.items() if one.problem and not one.wrong_bytes}
    lost = {edge: one for edge, one in late.items() if is_judged(me, lossy, edge)}
    others = [o for o in survey.others(me) if o.index in {*corrupt.nodes, *lossy.nodes}]
    notes = [f"without {o.name}, which is judged separately" for o in others]
    if bad := {e: one for e, one in mine.items() if e in wrong}:
        partners = {(set(edge) - {me.index}).pop() for edge in bad}
        paths = (path_between(me, survey.nodes[p], wrong) for p in sorted(partners))
        culprit: str | None = all_of(paths, separator=", ")
        if me.index in corrupt.nodes:
            link = f"{me.name} {'+'.join(network.interfaces)}"
            culprit = f"{link}: its link changes payloads, {corrupt.nodes[me.index]}"
        counts = [f"{o.wrong_bytes} of {o.size_bytes} B" for o in bad.values()]
        words = [f"{edge_in_words(survey, e)}: {text}" for e, text in zip(bad, counts, strict=True)]
        count = sum(one.wrong_bytes for one in bad.values())
        return subject.measured(count, culprit, "; ".join([listed(words), *notes]))
    if not mine:
        why = f"{me.name} has no healthy partner"
        return subject.unknown(no_links(me, network) if survey.on_loopback else why)
    if lost:
        why = listed([f"{edge_in_words(survey, e)}: {one.problem}" for e, one in lost.items()])
        return subject.unknown(why, paths_to_blame(survey, lost))
    total = sum(one.size_bytes for edge, one in mine.items() if edge not in late)
    return subject.measured(0, note="; ".join([f"of {total} B", *notes]))


def is_corrupter_unclear(survey: Survey, order: PayloadOrder) -> bool:
    """Whether payloads were changed on paths that no node at fault explains."""
    arrived = (_arrived(survey, key, order.size_bytes) for key in order.networks)
    return any(corrupt.paths for _, corrupt, _ in arrived)


def payload_paths(survey: Survey, spec: Spec, sent: Payload) -> Measurement:
    """Number of paths of the fabric that changed the payloads `sent`, with the culprits.

    Inconclusive if no payload was changed and not all arrived.
    """
    arrived, corrupt, lossy = _arrived(survey, "fabric", sent.size_bytes)
    wrong = {edge for edge, one in arrived.items() if one.wrong_bytes}
    lost = [
        f"{edge_in_words(survey, edge)}: {one.problem}"
        for edge, one in arrived.items()
        if one.problem
    ]
    lost += [no_answer(node) for node in survey.nodes if node.last is None]
    blamed = corrupt if wrong else lossy
    interfaces = "+".join(spec.fabric.interfaces)
    names = [survey.nodes[index].name for index in sorted(blamed.nodes)]
    culprits = [Culprit(f"{name} {interfaces}", name) for name in names]
    return Measurement(
        "paths that corrupt the data sent",
        len(wrong) if wrong or (arrived and not lost) else None,
        "",
        equals(0),
        f"payloads arrive unchanged, {SIZE.text(sent.size_bytes)} on each path by TCP",
        all_of([*culprits, paths_to_blame(survey, blamed.paths)], separator=", "),
        listed([f"of {len(arrived)} paths", *lost]),
    )


def corrupters(tried: Collection[Edge], wrong: Collection[Edge]) -> Blame:
    """Nodes that change payloads, confirmed by two healthy partners; paths for other wrong edges.

    If no node spoils most of its edges, as with a link that changes a byte now and then, the
    culprit is the one node that all wrong edges have in common. A partner is healthy if at least
    one of its edges to or from a third node is right.
    """
    found = blame(tried, wrong).nodes
    common = set.intersection(*map(set, wrong)) if wrong else set()
    if not found and len(common) == 1:
        [node] = common
        ends = {edge.index(node) for edge in wrong}
        one_way: Direction = "receiving" if ends == {1} else "sending"
        found = {node: "both ways" if len(ends) == 2 else one_way}
    nodes = {node: way for node, way in found.items() if _contrast(node, tried, wrong) > 1}
    spared = Blame(nodes)
    return Blame(nodes, frozenset(edge for edge in wrong if spared.spares(edge)))


def _contrast(node: int, tried: Collection[Edge], wrong: Collection[Edge]) -> int:
    """Number of a node's healthy partners that have a wrong edge to or from it."""
    healthy = {n for edge in tried if edge not in wrong and node not in edge for n in edge}
    return len({n for edge in wrong if node in edge for n in edge} & healthy - {node})


@lru_cache(maxsize=4)
def _arrived(
    survey: Survey, key: str, size_bytes: int
) -> tuple[dict[Edge, _Arrived], Blame, Blame]:
    """Payloads by edge; culprits of changed payloads; culprits of lost payloads."""
    found: dict[Edge, _Arrived] = {}
    by_index = {node.index: node for node in survey.nodes}
    for node in survey.nodes:
        for sent in node.payloads.sent if node.payloads else ():
            if sent.network != key:
                continue
            one = found.setdefault((node.index, sent.to), _Arrived())
            last = by_index[sent.to].last
            parts = [r for r in last.received if r.source == sent.source] if last else []
            size = sum(r.size_bytes for r in parts)
            one.size_bytes += size
            one.wrong_bytes += sum(r.wrong_bytes for r in parts)
            if size != size_bytes:
                why = sent.problem or ("" if last else no_answer(by_index[sent.to]))
                one.problem = f"{size} of {size_bytes} B arrived" + f" ({why})" * bool(why)
    wrong = {edge for edge, one in found.items() if one.wrong_bytes}
    late = {edge for edge, one in found.items() if one.problem} - wrong
    return found, corrupters(found.keys(), wrong), blame(found.keys(), late)
