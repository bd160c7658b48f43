"""Judges of packet sizes: whether full-size packets pass, and whether TCP sends them."""

from __future__ import annotations

from functools import lru_cache

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Path, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Blame,
    Edge,
    Subject,
    blame,
    edge_in_words,
    listed,
    mtus_of,
    no_answer,
    own_edges,
    paths_to_blame,
)
from pytest_mnode.criteria.preflight.judges.links import wrong_mtu
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec import Spec


def path_mtu(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Two measurements per network: the largest packet with don't-fragment to and from other nodes,
    and the largest packet that TCP sends there.

    Judged on the edges that no other node is to blame for. Small packets pass on all these edges,
    so a size below the MTU is an MTU hole: connections open, and hang at the first full segment.
    TCP may send smaller packets than the path passes, because of the MTU of a route.
    """
    if len(survey.nodes) == 1:
        return []
    me = survey.node(name)
    return [
        judge(survey, me, key, mtu, wrong_mtu(me, network, mtu))
        for key, (network, mtu) in mtus_of(spec).items()
        for judge in (_path_mtu, _tcp_mtu)
    ]


def _path_mtu(
    survey: Survey, me: NodeSurvey, key: str, mtu_bytes: int, own_mtu: str | None
) -> Measurement:
    """own_mtu: the node's interface with a wrong MTU, blamed before the link; None if none."""
    subject = Subject(
        f"largest packet that passes on the {key} network",
        "B",
        at_least(mtu_bytes).of(f"{key}.mtu", mtu_bytes),
        f"{key}.mtu {mtu_bytes}, don't-fragment, both ways",
    )
    if me.facts is None or me.paths is None:
        return subject.unknown(no_answer(me))
    found, blamed = _worst_paths(survey, key, mtu_bytes)
    at_fault = me.index in blamed.nodes
    mine = {e: path.largest_bytes or 0 for e, path in own_edges(me, found, blamed).items()}
    spared = [n.name for n in survey.nodes if n is not me and n.index in blamed.nodes]
    notes = [] if at_fault else [f"without {n}, which is at fault" for n in spared]
    whole = all(size >= mtu_bytes for size in mine.values())
    unanswered = [o.name for o in survey.others(me) if _untried(me, o, key, found)]
    if mine and whole and unanswered:
        notes.append(f"connections with {listed(unanswered)} work, but datagrams are not answered")
        return subject.unknown("; ".join(notes))
    if not mine:
        notes.append("no other node answers datagrams")
        return subject.unknown("; ".join(notes))
    edge = min(mine, key=mine.__getitem__)
    if mine[edge] < mtu_bytes:
        notes.insert(0, _hole(survey, found[edge], edge, mine[edge]))
    if at_fault:
        link = f"{me.name}: its link to the {key} network, {blamed.nodes[me.index]}"
        culprit: str | None = own_mtu or link
    else:
        holes = [edge for edge, size in mine.items() if size < mtu_bytes]
        culprit = paths_to_blame(survey, holes)
    return subject.measured(mine[edge], culprit, "; ".join(notes))


def _tcp_mtu(
    survey: Survey, me: NodeSurvey, key: str, mtu_bytes: int, own_mtu: str | None
) -> Measurement:
    """own_mtu: as in `_path_mtu`."""
    subject = Subject(
        f"largest packet that TCP sends on the {key} network",
        "B",
        at_least(mtu_bytes).of(f"{key}.mtu", mtu_bytes),
        f"{key}.mtu {mtu_bytes}, on new connections, both ways",
    )
    if me.facts is None or me.paths is None:
        return subject.unknown(no_answer(me))
    found, blamed = _tcp_sizes(survey, key, mtu_bytes)
    mine = own_edges(me, found, blamed)
    if not mine:
        return subject.unknown("no connection to a healthy node reports an MTU")
    edge = min(mine, key=mine.__getitem__)
    unreadable = [
        survey.nodes[one.to].name
        for one in me.paths.connections
        if one.network == key and one.took_s is not None and one.largest_bytes is None
    ]
    if unreadable and mine[edge] >= mtu_bytes:
        return subject.unknown(
            f"{me.name}: the kernel reports no MTU for connections to {listed(unreadable)}"
        )
    small = [edge for edge, size in mine.items() if size < mtu_bytes]
    culprit: str | None = paths_to_blame(survey, small)
    if me.index in blamed.nodes:
        culprit = own_mtu or f"{me.name}: its routes on the {key} network"
    return subject.measured(mine[edge], culprit, edge_in_words(survey, edge) if small else "")


@lru_cache(maxsize=4)
def _tcp_sizes(survey: Survey, key: str, mtu_bytes: int) -> tuple[dict[Edge, int], Blame]:
    """The smallest size of all rails on each edge, and the culprits of sizes that are too small."""
    found: dict[Edge, int] = {}
    for node in survey.nodes:
        for one in node.paths.connections if node.paths else ():
            if one.network == key and one.largest_bytes is not None:
                edge = (node.index, one.to)
                found[edge] = min(one.largest_bytes, found.get(edge, one.largest_bytes))
    return found, blame(found.keys(), {edge for edge, size in found.items() if size < mtu_bytes})


def _untried(me: NodeSurvey, other: NodeSurvey, key: str, found: dict[Edge, Path]) -> bool:
    """Whether two nodes are connected, but packet sizes could not be tried both ways."""
    if (me.index, other.index) in found and (other.index, me.index) in found:
        return False
    return any(
        c.network == key and c.to == there.index and c.took_s is not None
        for here, there in ((me, other), (other, me))
        for c in (here.paths.connections if here.paths else ())
    )


@lru_cache(maxsize=4)
def _worst_paths(survey: Survey, key: str, mtu_bytes: int) -> tuple[dict[Edge, Path], Blame]:
    """The worst rail on each edge, and the culprits of sizes that are too small.

    Only rails count on which small packets pass and full-size packets were tried.
    """
    found: dict[Edge, Path] = {}
    for node in survey.nodes:
        for path in node.paths.paths if node.paths else ():
            if path.network != key or not path.answered or path.largest_bytes is None:
                continue
            edge = (node.index, path.to)
            other = found.get(edge)
            if other is None or path.largest_bytes < (other.largest_bytes or 0):
                found[edge] = path
    holes = {edge for edge, path in found.items() if (path.largest_bytes or 0) < mtu_bytes}
    return found, blame(found.keys(), holes)


def _hole(survey: Survey, path: Path, edge: Edge, size: int) -> str:
    source, target = (survey.nodes[index].name for index in edge)
    if path.refused_bytes is not None and path.refused_bytes <= size + 1:
        return f"{source} {path.rail} itself rejects packets of {path.refused_bytes} B"
    hole = f"packets larger than {size} B are lost, smaller ones arrive"
    return f"from {source} {path.rail} to {target} {hole}"
