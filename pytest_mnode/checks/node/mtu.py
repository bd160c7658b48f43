"""Packet sizes: the MTU of interfaces, full-size packets, and the packets that TCP sends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import (
    Connection,
    NodeSurvey,
    Path,
    Survey,
    no_answer,
    why_unread,
)
from pytest_mnode.criteria.preflight.node_links import fits, named_in, own, undescribed
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.edges import Edge, Edges
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.machine.netdev import Interface, physical_below
from pytest_mnode.measurement import Measurement, at_least, equals
from pytest_mnode.spec.fields import Section
from pytest_mnode.spec.inventory import Fabric, Inventory, Management, Network, NetworkName


class MtuPromise(Section):
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
    alone = True

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


def _wrong_mtu(node: NodeSurvey, network: Network, mtu_bytes: int) -> Culprit | None:
    """Interfaces with another MTU than `mtu_bytes`, in words the one that differs most."""
    wrong = [one for one in _in_use(node, network) if one.mtu_bytes not in (None, mtu_bytes)]
    worst = max(wrong, key=lambda one: abs((one.mtu_bytes or 0) - mtu_bytes), default=None)
    if worst is None:
        return None
    words = f"{node.name} {worst.name} (MTU {worst.mtu_bytes})"
    return Culprit.device(words, node.name, *(one.name for one in wrong))


@check("preflight.mtu")
class FullSizePacketsPass(SurveyCheck):
    """Do packets of full size pass between this node and every other?

    Two measurements per network: the largest packet with don't-fragment to and from other nodes,
    and the largest packet that TCP sends there. Small packets pass on all paths that are judged, so
    a size below the MTU is an MTU hole: connections open, and hang at the first full segment. TCP
    may send smaller packets than the path passes, because of the MTU of a route, or of the segment
    size that the other end asks for (advmss).
    """

    promise: MtuPromise
    of_paths = True
    stops = NEED_RANKS

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        me = survey.node(name)
        if len(survey.nodes) == 1:
            return
        for key, network, mtu_bytes in _mtus_of(self.promise, self.spec):
            bound = at_least(mtu_bytes).of(f"{key}.mtu", mtu_bytes)
            wrong = _wrong_mtu(me, network, mtu_bytes)  # blamed before the link
            for which, label, how in (
                ("paths", "passes", "don't-fragment"),
                ("connections", "TCP sends", "on new connections"),
            ):
                name = f"largest packet that {label} on the {key} network"
                subject = Subject(name, "B", bound, f"{key}.mtu {mtu_bytes}, {how}, both ways")
                yield _largest(survey, me, subject, key, which, wrong)


def _largest(  # noqa: PLR0917
    survey: Survey, me: NodeSurvey, subject: Subject, key: str, which: str, wrong: Culprit | None
) -> Measurement:
    """The least of a node's `paths` or `connections`. wrong: its interfaces with a wrong MTU."""
    if me.facts is None or me.paths is None:
        return subject.unknown(no_answer(me))
    edges = _sizes(survey, key, subject.bound.limit, which)
    mine, notes = edges.of(me.name), []
    if which == "paths":
        silent = _silent(survey, key, edges)
        if me in silent:
            why = "others exchange datagrams, and none with it (filtered?)"
            return subject.unknown(f"{me.name}: {why}", Culprit(f"{me.name}: {why}", me.name))
        notes = [f"without {name}, which is at fault" for name in mine.without if not mine.way]
        notes += [f"without {one.name}, which answers no datagrams" for one in silent]
        nothing = "no other node answers datagrams"
        at_fault = f"its link to the {key} network, {mine.way}"
        others = (o for o in survey.others(me) if o not in silent)
        mute = [o.name for o in others if _untried(me, o, key, edges)]
        why = f"connections with {listed(mute)} work, but datagrams are not answered"
    else:
        nothing = "no connection to a healthy node reports an MTU"
        at_fault = f"its routes on the {key} network"
        opened = (c for c in me.paths.connections if c.network == key and c.took_s is not None)
        mute = [survey.nodes[one.to].name for one in opened if one.largest_bytes is None]
        why = f"{me.name}: the kernel reports no MTU for connections to {listed(mute)}"
    if not mine.values:
        return subject.unknown("; ".join([*notes, nothing]))
    if mute and not mine.bad:
        return subject.unknown("; ".join([*notes, why]))
    worst = min(mine.values, key=lambda edge: _size(mine.values[edge]))
    if mine.bad:
        notes.insert(0, _hole(edges, worst))
    culprit = mine.culprit(wrong or Culprit(f"{me.name}: {at_fault}", me.name))
    return subject.measured(_size(mine.values[worst]), culprit, "; ".join(notes))


@lru_cache(maxsize=8)
def _sizes(survey: Survey, key: str, mtu_bytes: float, which: str) -> Edges[Path | Connection]:
    """The worst rail on each edge, of those whose packet size is known; bad if it is too small."""
    found: dict[Edge, Path | Connection] = {}
    for node in survey.nodes:
        for one in getattr(node.paths, which, ()):
            if one.network == key and one.largest_bytes is not None:
                edge = (node.index, one.to)
                found[edge] = min(found.get(edge, one), one, key=_size)
    return Edges.judged(survey.names, found, lambda one: _size(one) < mtu_bytes)


def _size(one: Path | Connection) -> int:
    return one.largest_bytes or 0


def _silent(survey: Survey, key: str, edges: Edges[Path | Connection]) -> list[NodeSurvey]:
    """Nodes that exchange datagrams with none that they are connected with, as others do."""
    silent, others = list[NodeSurvey](), 0
    for me in survey.nodes:
        there = survey.others(me)
        if any(len(edges.between(me.index, other.index)) == 2 for other in there):
            others += 1
        elif any(_untried(me, other, key, edges) for other in there):
            silent.append(me)
    return silent if others > 1 else []


def _untried(me: NodeSurvey, other: NodeSurvey, key: str, edges: Edges[Path | Connection]) -> bool:
    """Whether two nodes are connected, but packet sizes could not be tried both ways."""
    return len(edges.between(me.index, other.index)) < 2 and any(
        c.network == key and c.to == there.index and c.took_s is not None
        for here, there in ((me, other), (other, me))
        for c in (here.paths.connections if here.paths else ())
    )


def _hole(edges: Edges[Path | Connection], edge: Edge) -> str:
    one, size = edges.values[edge], _size(edges.values[edge])
    source, target = (edges.names[index] for index in edge)
    if isinstance(one, Connection):
        return edges.text(edge)
    if one.refused_bytes is not None and one.refused_bytes <= size + 1:
        return f"{source} {one.rail} itself rejects packets of {one.refused_bytes} B"
    hole = f"packets larger than {size} B are lost, smaller ones arrive"
    return f"from {source} {one.rail} to {target} {hole}"
