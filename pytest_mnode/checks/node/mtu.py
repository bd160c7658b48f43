"""Packet sizes: the MTU of interfaces, full-size packets, and the packets that TCP sends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Path, Survey
from pytest_mnode.criteria.preflight.judges.common import listed, no_answer, why_unread
from pytest_mnode.criteria.preflight.node_links import fits, named_in, own, undescribed
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.edges import Edge, Edges
from pytest_mnode.evidence.rules import Subject
from pytest_mnode.machine.netdev import Interface, physical_below
from pytest_mnode.measurement import Measurement, at_least, equals
from pytest_mnode.spec.fields import Page
from pytest_mnode.spec.inventory import Fabric, Inventory, Management, Network, NetworkName


class MtuPromise(Page):
    """Interfaces have the mtu of their network, and full-size packets pass between all nodes."""

    networks: tuple[NetworkName, ...] = Field(("fabric",), min_length=1)
    """Networks to test; each needs its mtu."""


def _mtus_of(promise: MtuPromise, cluster: Inventory) -> Iterator[tuple[str, Network, int]]:
    """Networks whose MTU is promised: key, network, MTU in bytes."""
    for key, network in named_in(promise.networks, cluster).items():
        if isinstance(network, Fabric | Management) and network.mtu_bytes is not None:
            yield key, network, network.mtu_bytes


@check("preflight.mtu")
class InterfacesHaveTheirMtu(SurveyCheck):
    """Do this node's interfaces have the MTU of their network?

    One measurement per network: the MTU of its interfaces that differs most from the promise. A
    larger one is wrong too: the switch drops the packets that the node then sends.
    """

    promise: MtuPromise

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        me = survey.node(name)
        for key, network, mtu_bytes in _mtus_of(self.promise, self.spec):
            bound = equals(mtu_bytes).of(f"{key}.mtu", mtu_bytes)
            subject = Subject(f"{key} interface MTU", "B", bound, f"{key}.mtu {mtu_bytes}")
            there = {one.name: one.mtu_bytes for one in _in_use(me, network)}
            known = [size for size in there.values() if size is not None]
            unreadable = [interface for interface, size in there.items() if size is None]
            worst = max(known, key=lambda size: abs(size - mtu_bytes), default=None)
            if me.machine.interfaces is None:
                yield subject.unknown(why_unread(me, "interfaces"))
            elif not there:
                yield subject.unknown(f"{name}: no interface {'+'.join(network.interfaces)}")
            elif worst is None or (worst == mtu_bytes and unreadable):
                why = f"the MTU of {listed(unreadable)} cannot be read"
                yield subject.unknown(f"{name}: {why}")
            else:
                yield subject.measured(worst, _wrong_mtu(me, network, mtu_bytes))

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        yield from undescribed(self.promise.networks, cluster)
        management = cluster.management
        if "management" in self.promise.networks and management and management.mtu_bytes is None:
            yield ".networks: management, and management.mtu is not given"


def _in_use(node: NodeSurvey, network: Network) -> list[Interface]:
    """A node's interfaces on a network, all of them if none of these carries packets.

    Left out are spare ones that are down, and those that only carry the packets of a VLAN.
    """
    unfit = {port.device for port in node.machine.ports if not fits(port, network)}
    there = [
        one
        for one in own(node, network)
        if network.has_interface(one.name)
        or unfit.isdisjoint(node.machine.rdma_devices_of(one.name))
    ]
    known = node.machine.by_name
    below = {n for one in there if one.usable_address for n in physical_below(one, known)}
    carrying = (
        one
        for one in there
        if one.up is not False and (one.usable_address or one.name not in below)
    )
    return list(carrying) or there


def _wrong_mtu(node: NodeSurvey, network: Network, mtu_bytes: int) -> str:
    """The interface whose MTU differs most from `mtu_bytes`, with its MTU; "" if none differs."""
    wrong = [one for one in _in_use(node, network) if one.mtu_bytes not in (None, mtu_bytes)]
    worst = max(wrong, key=lambda one: abs((one.mtu_bytes or 0) - mtu_bytes), default=None)
    return f"{node.name} {worst.name} (MTU {worst.mtu_bytes})" if worst else ""


@check("preflight.mtu")
class FullSizePacketsPass(SurveyCheck):
    """Do packets of full size pass between this node and every other?

    Two measurements per network: the largest packet with don't-fragment to and from other nodes,
    and the largest packet that TCP sends there. Small packets pass on all paths that are judged, so
    a size below the MTU is an MTU hole: connections open, and hang at the first full segment. TCP
    may send smaller packets than the path passes, because of the MTU of a route.
    """

    promise: MtuPromise
    stops = NEED_RANKS

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        me = survey.node(name)
        if len(survey.nodes) == 1:
            return
        for key, network, mtu_bytes in _mtus_of(self.promise, self.spec):
            bound = at_least(mtu_bytes).of(f"{key}.mtu", mtu_bytes)
            own_mtu = _wrong_mtu(me, network, mtu_bytes)  # blamed before the link
            for label, how, judge in (
                ("passes", "don't-fragment", _packets),
                ("TCP sends", "on new connections", _segments),
            ):
                subject = Subject(
                    f"largest packet that {label} on the {key} network",
                    "B",
                    bound,
                    f"{key}.mtu {mtu_bytes}, {how}, both ways",
                )
                if me.facts is None or me.paths is None:
                    yield subject.unknown(no_answer(me))
                else:
                    yield judge(survey, me, subject, key, own_mtu)


def _packets(
    survey: Survey, me: NodeSurvey, subject: Subject, key: str, own_mtu: str
) -> Measurement:
    paths = _worst_paths(survey, key, subject.bound.limit)
    mine = paths.of(me.name)
    notes = [f"without {n}, which is at fault" for n in mine.without if not mine.way]
    unanswered = [o.name for o in survey.others(me) if _untried(me, o, key, paths)]
    if not mine.values:
        return subject.unknown("; ".join([*notes, "no other node answers datagrams"]))
    if unanswered and not mine.bad:
        notes.append(f"connections with {listed(unanswered)} work, but datagrams are not answered")
        return subject.unknown("; ".join(notes))
    worst = min(mine.values, key=lambda edge: mine.values[edge].largest_bytes or 0)
    size = mine.values[worst].largest_bytes or 0
    if mine.bad:
        source, target = (paths.names[index] for index in worst)
        notes.insert(0, _hole(source, target, mine.values[worst], size))
    link = f"{me.name}: its link to the {key} network, {mine.way}"
    return subject.measured(size, mine.culprit(own_mtu or link), "; ".join(notes))


def _segments(
    survey: Survey, me: NodeSurvey, subject: Subject, key: str, own_mtu: str
) -> Measurement:
    paths = _smallest_segments(survey, key, subject.bound.limit)
    mine = paths.of(me.name)
    unreadable = [
        survey.nodes[one.to].name
        for one in (me.paths.connections if me.paths else ())
        if one.network == key and one.took_s is not None and one.largest_bytes is None
    ]
    if not mine.values:
        return subject.unknown("no connection to a healthy node reports an MTU")
    if unreadable and not mine.bad:
        why = f"the kernel reports no MTU for connections to {listed(unreadable)}"
        return subject.unknown(f"{me.name}: {why}")
    worst = min(mine.values, key=mine.values.__getitem__)
    culprit = mine.culprit(own_mtu or f"{me.name}: its routes on the {key} network")
    return subject.measured(mine.values[worst], culprit, paths.text(worst) if mine.bad else "")


@lru_cache(maxsize=4)
def _worst_paths(survey: Survey, key: str, mtu_bytes: float) -> Edges[Path]:
    """The worst rail on each edge; bad if its packets are too small.

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
    return Edges.judged(survey.names, found, lambda path: (path.largest_bytes or 0) < mtu_bytes)


@lru_cache(maxsize=4)
def _smallest_segments(survey: Survey, key: str, mtu_bytes: float) -> Edges[int]:
    """The smallest size of all rails on each edge; bad if it is too small."""
    found: dict[Edge, int] = {}
    for node in survey.nodes:
        for one in node.paths.connections if node.paths else ():
            if one.network == key and one.largest_bytes is not None:
                edge = (node.index, one.to)
                found[edge] = min(one.largest_bytes, found.get(edge, one.largest_bytes))
    return Edges.judged(survey.names, found, lambda size: size < mtu_bytes)


def _untried(me: NodeSurvey, other: NodeSurvey, key: str, paths: Edges[Path]) -> bool:
    """Whether two nodes are connected, but packet sizes could not be tried both ways."""
    if {(me.index, other.index), (other.index, me.index)} <= paths.values.keys():
        return False
    return any(
        c.network == key and c.to == there.index and c.took_s is not None
        for here, there in ((me, other), (other, me))
        for c in (here.paths.connections if here.paths else ())
    )


def _hole(source: str, target: str, path: Path, size: int) -> str:
    if path.refused_bytes is not None and path.refused_bytes <= size + 1:
        return f"{source} {path.rail} itself rejects packets of {path.refused_bytes} B"
    hole = f"packets larger than {size} B are lost, smaller ones arrive"
    return f"from {source} {path.rail} to {target} {hole}"
