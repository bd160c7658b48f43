"""Have interfaces the MTU of their network, and do packets of full size get through?"""

from __future__ import annotations

from pytest_mnode.criteria.preflight.facts import NodeSurvey, Path, Survey
from pytest_mnode.criteria.preflight.questions.answer import Answer, NotPromised, listed, unknown
from pytest_mnode.criteria.preflight.questions.blame import Blame, Edge, blame
from pytest_mnode.criteria.preflight.questions.links import networks_of, own, why_unread
from pytest_mnode.criteria.preflight.questions.reach import path_between
from pytest_mnode.measurement import Measurement, at_least, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Fabric, Management, Network


def _promised(spec: Spec) -> dict[str, tuple[Network, int]]:
    """Networks whose MTU is promised, with its bytes."""
    promise = spec.criteria.preflight
    if promise is None or promise.mtu is None:
        return {}
    found: dict[str, tuple[Network, int]] = {}
    for key in promise.mtu.networks:
        network = networks_of(spec).get(key)
        if isinstance(network, Fabric | Management) and network.mtu_bytes is not None:
            found[key] = (network, network.mtu_bytes)
    return found


def interface_mtu(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a network: the MTU of its interfaces, the one furthest off where they differ.

    Larger than promised is as wrong as smaller: what the node sends then, the switch swallows.
    """
    promised = _promised(spec)
    if not promised:
        return NotPromised("the MTU of interfaces")
    me = survey.node(name)
    found: list[Measurement] = []
    for key, (network, mtu_bytes) in promised.items():
        label, bound, source = f"{key} interface MTU", equals(mtu_bytes), f"{key}.mtu {mtu_bytes}"
        there = {one.name: one.mtu_bytes for one in own(me, network)}
        known = {n: size for n, size in there.items() if size is not None}
        if not known:
            why = why_unread(me, "interfaces") if not there else f"{name}: no MTU can be read"
            if me.facts is not None and me.facts.interfaces is not None and not there:
                why = f"{name}: no interface {'+'.join(network.interfaces)}"
            found += unknown(label, "B", bound, source, why)
            continue
        worst = max(known, key=lambda n: abs(known[n] - mtu_bytes))
        if known[worst] == mtu_bytes and len(known) < len(there):
            mute = listed([n for n in there if n not in known])
            found += unknown(label, "B", bound, source, f"{name}: the MTU of {mute} cannot be read")
            continue
        found.append(Measurement(label, known[worst], "B", bound, source, f"{name} {worst}"))
    return tuple(found)


def path_mtu(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a network: the largest packet, don't-fragment, to and from other nodes.

    Judged on the ways that no other node is to blame for. Small packets pass on all of them, so
    that a smaller one is a hole: connections open, and hang with the first full segment.
    """
    promised = _promised(spec)
    if not promised:
        return NotPromised("full-size packets between nodes")
    if len(survey.nodes) == 1:
        return NotPromised("one node has no other to send to")
    me = survey.node(name)
    return tuple(_measured(survey, me, key, mtu_bytes) for key, (_, mtu_bytes) in promised.items())


def _measured(survey: Survey, me: NodeSurvey, key: str, mtu_bytes: int) -> Measurement:
    label = f"largest packet that passes on the {key} network"
    bound, source = at_least(mtu_bytes), f"{key}.mtu {mtu_bytes}, don't-fragment, both ways"
    if me.facts is None or me.paths is None:
        return unknown(label, "B", bound, source, why_unread(me, "paths"))[0]
    found = _paths(survey, key)
    largest = {edge: path.largest_bytes or 0 for edge, path in found.items()}
    holes = {edge for edge, size in largest.items() if size < mtu_bytes}
    blamed = blame(largest.keys(), holes)
    at_fault = me.index in blamed.nodes
    mine = {
        edge: size
        for edge, size in largest.items()
        if me.index in edge and (at_fault or blamed.spares(edge))
    }
    spared = [n.name for n in survey.nodes if n is not me and n.index in blamed.nodes]
    notes = [] if at_fault else [f"without {n}, which is to blame itself" for n in spared]
    whole = all(size >= mtu_bytes for size in mine.values())
    mute = [o.name for o in survey.others(me) if _untold(me, o, key, found)]
    if mine and whole and mute:
        notes.append(f"with {listed(mute)} connections open, and datagrams are not answered")
        return unknown(label, "B", bound, source, "; ".join(notes))[0]
    if not mine:
        notes.append("no other node answers datagrams")
        return unknown(label, "B", bound, source, "; ".join(notes))[0]
    edge = min(mine, key=mine.__getitem__)
    if mine[edge] < mtu_bytes:
        notes.insert(0, _hole(survey, found[edge], edge, mine[edge]))
    culprit = _culprit(survey, me, key, blamed, [e for e in mine if e in holes])
    return Measurement(label, mine[edge], "B", bound, source, culprit, "; ".join(notes))


def _untold(me: NodeSurvey, other: NodeSurvey, key: str, found: dict[Edge, Path]) -> bool:
    """Whether two nodes are connected, and no packet's size could be tried between them."""
    if (me.index, other.index) in found and (other.index, me.index) in found:
        return False
    return any(
        c.network == key and c.to == there.index and c.took_s is not None
        for here, there in ((me, other), (other, me))
        for c in (here.paths.connections if here.paths else ())
    )


def _paths(survey: Survey, key: str) -> dict[Edge, Path]:
    """The worst rail of each way on which small packets pass and full ones were tried."""
    found: dict[Edge, Path] = {}
    for node in survey.nodes:
        for path in node.paths.paths if node.paths else ():
            if path.network != key or not path.answered or path.largest_bytes is None:
                continue
            edge = (node.index, path.to)
            other = found.get(edge)
            if other is None or path.largest_bytes < (other.largest_bytes or 0):
                found[edge] = path
    return found


def _hole(survey: Survey, path: Path, edge: Edge, size: int) -> str:
    source, target = (survey.nodes[index].name for index in edge)
    if path.refused_bytes is not None and path.refused_bytes <= size + 1:
        return f"{source} {path.rail} itself takes no packet of {path.refused_bytes} B"
    return f"from {source} to {target} packets beyond {size} B vanish, smaller ones arrive"


def _culprit(
    survey: Survey, me: NodeSurvey, key: str, blamed: Blame, holes: list[Edge]
) -> str | None:
    if me.index in blamed.nodes:
        return f"{me.name}: its link to the {key} network, {blamed.nodes[me.index]}"
    pairs = dict.fromkeys((min(hole), max(hole)) for hole in sorted(holes))
    named = [path_between(survey.nodes[a], survey.nodes[b], holes) for a, b in pairs]
    return listed(named) or None
