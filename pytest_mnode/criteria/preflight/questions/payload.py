"""Does what nodes send by TCP arrive as it was sent?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pytest_mnode.criteria.preflight.facts import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    Subject,
    listed,
    silence,
)
from pytest_mnode.criteria.preflight.questions.blame import Blame, Edge, Way, blame
from pytest_mnode.criteria.preflight.questions.links import networks_of, no_links
from pytest_mnode.criteria.preflight.questions.reach import path_between
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Network
from pytest_mnode.spec.preflight import Payload
from pytest_mnode.spec.quantity import SIZE


def payload(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a network: wrong bytes of what this node sent and received.

    Judged on the ways that no other node is to blame for.
    """
    promise = spec.criteria.preflight
    if promise is None or promise.payload is None:
        return NotPromised("payloads that arrive as they were sent")
    if len(survey.nodes) == 1:
        return NotPromised("one node has no other to send to")
    networks = networks_of(spec)
    me, promised = survey.node(name), promise.payload
    return tuple(
        _measured(survey, me, key, networks[key], promised)
        for key in promised.networks
        if key in networks
    ) or NotPromised("no network to send on")


@dataclass(slots=True)
class _Arrived:
    """What came of payloads from one node to another, on all rails. problem: why not all did."""

    size_bytes: int = 0
    wrong_bytes: int = 0
    problem: str = ""


def _measured(
    survey: Survey, me: NodeSurvey, key: str, network: Network, promised: Payload
) -> Measurement:
    source = f"preflight.payload {SIZE.text(promised.size_bytes)} to each partner"
    subject = Subject(f"wrong bytes of payloads on the {key} network", "B", at_most(0), source)
    if me.facts is None or me.payloads is None:
        return subject.unknown(silence(me))
    ways = _ways(survey, key, promised.size_bytes)
    wrong = {edge for edge, way in ways.items() if way.wrong_bytes}
    late = {edge for edge, way in ways.items() if way.problem} - wrong
    corrupt, stuck = corrupters(ways.keys(), wrong), blame(ways.keys(), late)
    mine = {e: way for e, way in ways.items() if me.index in e and _is_judged(me, corrupt, e)}
    lost = {e: way for e, way in mine.items() if e in late and _is_judged(me, stuck, e)}
    others = [o for o in survey.others(me) if o.index in {*corrupt.nodes, *stuck.nodes}]
    notes = [f"without {o.name}, which has a case of its own" for o in others]
    if bad := {e: way for e, way in mine.items() if e in wrong}:
        partners = {(set(edge) - {me.index}).pop() for edge in bad}
        paths = [path_between(me, survey.nodes[p], wrong) for p in sorted(partners)]
        culprit = listed(paths)
        if me.index in corrupt.nodes:
            interfaces = "+".join(network.interfaces)
            culprit = (
                f"{me.name} {interfaces}: its link changes payloads, {corrupt.nodes[me.index]}"
            )
        notes.insert(0, listed([f"{_text(survey, e)}: {_wrong(way)}" for e, way in bad.items()]))
        count = sum(way.wrong_bytes for way in bad.values())
        return subject.measured(count, culprit, "; ".join(notes))
    if not mine:
        none = f"{me.name} has no partner that is well"
        return subject.unknown(no_links(me, network) if survey.on_loopback else none)
    if lost:
        why = [f"{_text(survey, edge)}: {way.problem}" for edge, way in lost.items()]
        return subject.unknown(listed(why))
    total = sum(way.size_bytes for edge, way in mine.items() if edge not in late)
    return subject.measured(0, note="; ".join([f"of {total} B", *notes]))


def corrupters(tried: Collection[Edge], wrong: Collection[Edge]) -> Blame:
    """Nodes that change payloads, with two healthy partners as the contrast; paths for the rest.

    Where no node spoils most of its ways, as a wire does that changes a byte now and then, it is
    the one node that all wrong ways have in common. A partner is healthy if some way of it to or
    from a third node is right.
    """
    found = blame(tried, wrong).nodes
    common = set.intersection(*map(set, wrong)) if wrong else set()
    if not found and len(common) == 1:
        [node] = common
        ends = {edge.index(node) for edge in wrong}
        way: Way = "both ways" if len(ends) == 2 else "receiving" if ends == {1} else "sending"
        found = {node: way}
    nodes = {node: way for node, way in found.items() if _contrast(node, tried, wrong) > 1}
    spared = Blame(nodes, frozenset())
    return Blame(nodes, frozenset(edge for edge in wrong if spared.spares(edge)))


def _contrast(node: int, tried: Collection[Edge], wrong: Collection[Edge]) -> int:
    """How many healthy partners of a node have a wrong way to or from it."""
    healthy = {n for edge in tried if edge not in wrong and node not in edge for n in edge}
    return len({n for edge in wrong if node in edge for n in edge} & healthy - {node})


def _is_judged(me: NodeSurvey, blamed: Blame, edge: Edge) -> bool:
    return me.index in blamed.nodes or blamed.spares(edge)


def _ways(survey: Survey, key: str, size_bytes: int) -> dict[Edge, _Arrived]:
    """Every way on which a payload was to be sent."""
    ways: dict[Edge, _Arrived] = {}
    by_index = {node.index: node for node in survey.nodes}
    for node in survey.nodes:
        for sent in node.payloads.sent if node.payloads else ():
            if sent.network != key:
                continue
            way = ways.setdefault((node.index, sent.to), _Arrived())
            last = by_index[sent.to].last
            found = [r for r in last.received if r.source == sent.source] if last else []
            size = sum(r.size_bytes for r in found)
            way.size_bytes += size
            way.wrong_bytes += sum(r.wrong_bytes for r in found)
            if size != size_bytes:
                why = sent.problem or ("" if last else silence(by_index[sent.to]))
                way.problem = f"{size} of {size_bytes} B arrived" + f" ({why})" * bool(why)
    return ways


def _text(survey: Survey, edge: Edge) -> str:
    source, target = (survey.nodes[index].name for index in edge)
    return f"{source} to {target}"


def _wrong(way: _Arrived) -> str:
    return f"{way.wrong_bytes} of {way.size_bytes} B"
