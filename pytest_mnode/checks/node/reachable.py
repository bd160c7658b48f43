"""Reachability: from each node to the first node, and to all nodes on each network."""

from __future__ import annotations

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import median_low
from typing import Annotated

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import (
    Connection,
    NodeSurvey,
    Survey,
    no_answer,
    why_unread,
)
from pytest_mnode.criteria.preflight.node_links import (
    broken_links,
    detours,
    named_in,
    no_links,
    own,
    sharing,
    undescribed,
)
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.criteria.preflight.tcp import paired
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.edges import Edge, Edges, blame, blame_star
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.machine.netdev import plain
from pytest_mnode.measurement import Measurement, all_of, equals
from pytest_mnode.spec.fields import Seconds, Section
from pytest_mnode.spec.inventory import Inventory, Network, NetworkName

LOSSY_PATHS = "paths that lose datagrams"
_LOST_BY_CHANCE = 7
"""Datagrams of a path that may be lost, of a thousand: a path that loses 0.07 %, as much as healthy
racks did (docs/spec.md), loses more once in a million, one that loses 2 % in all but 1 of 1,000."""
_NO_ROUTE = os.strerror(errno.ENETUNREACH).lower()
_NO_PORT = tuple(os.strerror(one).lower() for one in (errno.EADDRNOTAVAIL, errno.EADDRINUSE))
"""What a node reports that has no address or no port left to connect from."""
_LOST = {
    "both ways": "no connection to or from others on the {} network",
    "sending": "it receives but cannot send on the {} network",
    "receiving": "it sends but cannot receive on the {} network",
}
_FILTERED = {
    "both ways": "connections to and from it are filtered on the {} network, datagrams pass",
    "sending": "connections from it are filtered on the {} network, datagrams pass",
    "receiving": "connections to it are filtered on the {} network, datagrams pass",
}
_LOSING = dict.fromkeys(_LOST, "it loses packets on the {} network")


class Reachable(Section):
    """Every node opens TCP connections to the first node, and to every other on each network."""

    within_s: Seconds = Field(2.0, alias="within")
    """A connection is open within this time."""
    master_port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    """MASTER_PORT of jobs, such as 29500; left out: a free port of the first node."""
    networks: tuple[NetworkName, ...] = Field(("fabric",), min_length=1)
    """Networks on which a node reaches every other."""


@check("preflight.reachable")
class FirstNodeIsReached(SurveyCheck):
    """Does this node reach the first one, where ranks meet (MASTER_ADDR)?

    By a connection to its control address. If the first node answers nobody, its own measurement
    fails, and those of the others are inconclusive.
    """

    promise: Reachable
    of_paths = True
    stops = NEED_RANKS

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        first, within_s = survey.nodes[0], self.promise.within_s
        subject = Subject(
            f"connections to {first.name}, {first.address}",
            "",
            equals(1),
            f"MASTER_ADDR of a job, within {within_s:g} s",
        )
        control = "management" if self.spec.management else "fabric"
        for key, network in named_in((control,), self.spec).items():
            yield _first_reached(survey, survey.node(name), subject, key, network)


def _first_reached(
    survey: Survey, me: NodeSurvey, subject: Subject, key: str, control: Network
) -> Measurement:
    first = survey.nodes[0]
    if me.facts is None or me.paths is None or first.facts is None:
        return subject.unknown(no_answer(first if me.facts and me.paths else me))
    if first.facts.master_problem:
        why = f"{first.name}: {first.facts.master_problem}"
        return subject.measured(0, why, why) if me is first else subject.unknown(why)
    star = Edges.judged(
        survey.names,
        {
            (node.index, 0): node.paths.master
            for node in survey.others(first)
            if node.paths is not None and node.paths.master is not None
        },
        lambda one: one.took_s is None,
        blame_star,
    )
    lost = [survey.nodes[source].name for source, _ in sorted(star.bad)]
    if me is first and star.of(me.name).way:
        problem = star.values[min(star.bad)].problem
        hint = _hint(survey.others(first), first)
        note = f"{listed(lost)} cannot connect ({problem}){hint}"
        return subject.measured(0, f"{first.name} {first.address}", note)
    mine = me.paths.master
    if mine is None or (mine.took_s is None and star.of(first.name).way):
        silent = f"{first.name} answers no node and is judged separately"
        why = f"{mine.problem}; {silent}" if mine else "not tried"
        return subject.unknown(f"{me.name}: {why}", star.path(me.index, 0, [(me.index, 0)]))
    if mine.took_s is not None:
        return subject.measured(1, note=f"after {mine.took_s * 1e3:.1f} ms")
    can = listed([survey.nodes[source].name for source, _ in sorted(star.values.keys() - star.bad)])
    faults = broken_links(survey, me, control) or [
        *_portless(mine.problem),
        *_refusals(me, first, control, mine.problem),
    ]
    culprit = Culprit(f"{me.name} ({can} can connect)", me.name)
    at_fault = _tried(survey, key, control)[1].blamed.nodes
    if faults:
        culprit = Culprit(f"{me.name}: {faults[0]}", me.name)
    elif not can:
        culprit = Culprit(f"{me.name} or {first.name}", either=[[me.name, first.name]])
    elif 0 in at_fault and me.index not in at_fault:  # who meets a limit of the first is chance
        culprit = Culprit(f"{first.name}: it refuses some connections", first.name)
    hint = "" if faults else _hint((me,), first)
    return subject.measured(0, culprit, f"{me.name}: {mine.problem}{hint}")


def _hint(nodes: Iterable[NodeSurvey], first: NodeSurvey) -> str:
    """Text if the first node answers datagrams of these nodes, whose connections fail; else ""."""
    answered = any(
        path.answered
        for node in nodes
        for path in (node.paths.paths if node.paths else ())
        if path.to == first.index and path.network == "control"
    )
    return "; datagrams are answered, so connections are filtered" if answered else ""


@check("preflight.reachable")
class EveryNodeIsReached(SurveyCheck):
    """Does this node reach every other on each network, both ways?

    One measurement per network: how many nodes it reaches, of those not to blame. A node that is
    cut off fails its own measurement; in those of other nodes it is only a note.
    """

    promise: Reachable
    of_paths = True
    stops = NEED_RANKS

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        if len(survey.nodes) > 1:
            for key, network in named_in(self.promise.networks, self.spec).items():
                within = f"every other node, within {self.promise.within_s:g} s"
                yield _peers_reached(survey, survey.node(name), key, network, within)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        return undescribed(self.promise.networks, cluster)


@dataclass(frozen=True, slots=True)
class _Tried:
    """Whether packets pass on an edge. problem: why not; "" if they do. is_filtered: whether
    datagrams pass, and connections do not open. loses: whether some datagrams are lost then."""

    problem: str = ""
    is_filtered: bool = False
    loses: bool = False


def _peers_reached(
    survey: Survey, me: NodeSurvey, key: str, network: Network, within: str
) -> Measurement:
    others = survey.others(me)

    def of(nodes: int) -> Subject:
        return Subject(f"nodes reached both ways on the {key} network", "", equals(nodes), within)

    if me.paths is None or me.machine.interfaces is None:
        why = no_answer(me) if me.paths is None else why_unread(me, "interfaces")
        return of(len(others)).unknown(why)
    broken, edges = _tried(survey, key, network)
    if survey.on_loopback and not edges.values:
        return of(len(others)).unknown(no_links(me, network))
    if lacking := _lacking(survey, me, key):
        text = f"no address on {listed(lacking)}, where most nodes have one"
        faults = broken_links(survey, me, network)  # a port without a carrier may have no address
        return of(len(others)).measured(0, f"{me.name}: {faults[0] if faults else text}", text)
    mine, tried = edges.of(me.name), {o.name: edges.between(me.index, o.index) for o in others}
    bad = {name: [one for one in both if one.problem] for name, both in tried.items()}
    healthy = [o.name for o in others if o.index not in edges.blamed.nodes]
    if mine.way:
        partners = healthy or [o.name for o in others]
        lost = [name for name in partners if bad[name] or not tried[name]]
        every = [one for of_pair in bad.values() for one in of_pair]
        words = _FILTERED if all(one.is_filtered for one in every) else _LOST
        words = _LOSING if every and all(one.loses for one in every) else words
        why = broken.get(me.index) or words[mine.way].format(key)
        connected = [name for name in mine.without if tried[name] and not bad[name]]
        own_fault = Culprit(f"{me.name}: {why}", me.name)
        if connected and why == _LOST["both ways"].format(key):  # one part of a split network
            own_fault = Culprit(f"{me.name}: it and {listed(connected)} have {why}", me.name)
            part, rest = [me.name, *connected], [name for name in healthy if tried[name]]
            if len(part) >= len(rest):  # no part has most nodes: it may be cut off, or the others
                either = f"{own_fault}, and either part of the nodes may be at fault"
                own_fault = Culprit(either, either=[[*part, *rest]])
        taken_by = _same_addresses(survey, me, network)
        if taken_by and me.index not in broken:  # it may be the one whose address was taken
            own_fault = own_fault.suspected
        culprit = all_of([own_fault, *taken_by])
        notes = sorted({one.problem for name in partners for one in bad[name]})[:2]
        return of(len(partners)).measured(len(partners) - len(lost), culprit, "; ".join(notes))
    partners = [name for name in healthy if tried[name]]
    taken = sharing(survey, me, network)
    astray = detours(survey, me, network, key)
    lost = [name for name in partners if bad[name] or name in {*taken, *astray}]
    notes = [f"without {name}, which is at fault" for name in mine.without]
    notes += [
        f"{name} was not tried: {_why_untried(survey.node(name), key)}"
        for name in healthy
        if not tried[name]
    ]
    notes += [one.problem for name in lost for one in bad[name]][:2]
    if not partners:
        return of(len(others)).unknown("; ".join(notes))
    cut = {e for e in edges.bad if me.index in e and edges.blamed.nodes.keys().isdisjoint(e)}
    culprits = [edges.paths(cut)]
    culprits += [
        Culprit(f"{me.name}: its route to {name} leads through {by} (ip route)", me.name)
        for name, by in astray.items()
    ]
    if lost:  # it reads all nodes, for each node
        culprits += _same_addresses(survey, me, network)
    reached = len(partners) - len(lost)
    return of(len(partners)).measured(reached, all_of(culprits), "; ".join(notes))


@lru_cache(maxsize=4)
def _tried(survey: Survey, key: str, network: Network) -> tuple[dict[int, str], Edges[_Tried]]:
    """Faults of nodes whose own link or route is broken, and the edges of a network.

    An edge is bad if any of its rails is. A connection needs both directions. Datagrams show which
    direction fails: a datagram needs only one, and the node that receives it reports it.
    """
    found: dict[Edge, _Tried] = {}
    sent, arrived = _datagrams(survey, key)
    losing = {edge for (edge, rail), count in sent.items() if count > arrived[edge, rail]}
    for node in survey.nodes:
        for one in node.paths.connections if node.paths else ():
            if one.network != key:
                continue
            other = survey.nodes[one.to]
            there, back = (node.index, one.to), (one.to, node.index)
            found.setdefault(there, _Tried())
            found.setdefault(back, _Tried())
            if one.took_s is not None:
                continue
            ends = {there: (node, other), back: (other, node)}
            unheard = [e for e, (a, b) in ends.items() if not _heard(a, b, key, one.rail, node)]
            loses = not unheard and not losing.isdisjoint(ends)
            passing = "" if unheard else f", though {'some ' * loses}datagrams pass"
            for edge in unheard or [there]:
                before = found[edge]
                problem = before.problem or f"{one.rail}: {one.problem}{passing}"
                is_filtered = before.is_filtered or not unheard
                found[edge] = _Tried(problem, is_filtered, before.loses or loses)
    bad = {edge for edge, one in found.items() if one.problem}
    broken = _faulty(survey, network, found.keys(), bad)
    explain = partial(blame, known=broken)
    return broken, Edges.judged(survey.names, found, lambda one: bool(one.problem), explain)


def paths_that_lose(survey: Survey, spec: Inventory) -> Measurement:
    """Number of paths of the fabric that lose datagrams, with the culprits.

    Inconclusive if none is found to and not all could be counted.
    """
    sent, heard = _datagrams(survey, "fabric")
    unread = [no_answer(node) for node in survey.nodes if node.last is None]
    enough = max(sent.values(), default=0) / 2  # on other paths only a few were sent
    lost = dict[Edge, tuple[int, int]]()  # lost and sent on the worst rail: all lose more by chance
    for at, count in sent.items():
        if count > enough:
            lost[at[0]] = max(lost.get(at[0], (0, count)), (count - heard[at], count))
    edges = Edges.judged(survey.names, lost, lambda one: one[0] > _LOST_BY_CHANCE)
    source = "a healthy path loses next to none of a few datagrams at a time"
    subject = Subject(LOSSY_PATHS, "", equals(0), source)
    counted = [f"{edges.text(e)}: {lost[e][0]} of {lost[e][1]}" for e in sorted(edges.bad)]
    note = listed([f"of {len(lost)} paths", *counted, *unread])
    if not edges.bad and (unread or not lost):
        return subject.unknown(note)
    return edges.whole(subject, lambda name: _losing(edges, name, spec), note)


def _datagrams(
    survey: Survey, network: str
) -> tuple[Counter[tuple[Edge, str]], Counter[tuple[Edge, str]]]:
    """Datagrams that were sent, and that arrived, by edge and the receiver's interface."""
    sent, heard = Counter[tuple[Edge, str]](), Counter[tuple[Edge, str]]()
    for node in survey.nodes:
        for path in node.paths.paths if node.paths else ():
            other = survey.nodes[path.to]
            if path.network == network and path.answered and other.last:
                there = _rail_there(node, other, network, path.rail)
                sent[(node.index, path.to), there] += path.sent
        for one in node.last.heard if node.last else ():
            if one.network == network:
                counts = zip(one.senders, one.counts, strict=False)  # of a kept run without any
                heard.update({((a, node.index), one.rail): n for a, n in counts})
    return sent, heard


def _losing(edges: Edges[tuple[int, int]], name: str, spec: Inventory) -> str:
    way = edges.of(name).way
    return f"{name} {'+'.join(spec.fabric.interfaces)}: it loses packets, {way}"


def _heard(
    sender: NodeSurvey, receiver: NodeSurvey, network: str, rail: str, namer: NodeSurvey
) -> bool:
    """Whether the receiver heard the sender. rail: the edge's interface on the node `namer`."""
    if sender.facts is None or receiver.facts is None or receiver.last is None:
        return True  # unknown, so nobody is blamed
    at = rail if namer is receiver else _rail_there(namer, receiver, network, rail)
    return any(
        sender.index in heard.senders
        for heard in receiver.last.heard
        if heard.network == network and heard.rail == at
    )


def _rail_there(here: NodeSurvey, there: NodeSurvey, network: str, rail: str) -> str:
    """The other node's interface that is tried from this one's `rail`."""
    rails = [one.facts.rails.get(network, ()) if one.facts else () for one in (here, there)]
    return {mine.interface: theirs.interface for mine, theirs in paired(*rails)}.get(rail, rail)


def _faulty(
    survey: Survey, network: Network, tried: Iterable[Edge], bad: Iterable[Edge]
) -> dict[int, str]:
    """Faults of the links or routes of nodes with a bad edge or no tried edge, by node index.

    A node whose edges all work is left out: one rail of several may be down.
    """
    without = set(range(len(survey.nodes))) - {index for edge in tried for index in edge}
    asked = without | {index for edge in bad for index in edge}
    return {
        node.index: faults[0]
        for node in survey.nodes
        if node.index in asked
        and (
            faults := broken_links(survey, node, network)
            or [
                text
                for one in (node.paths.connections if node.paths else ())
                if one.took_s is None
                for text in (
                    *_portless(one.problem),
                    *_refusals(node, survey.nodes[one.to], network, one.problem),
                    *_astray(node, survey.nodes[one.to], network, one),
                )
            ]
            or _unrouted(node, network)
        )
    }


def _unrouted(node: NodeSurvey, network: Network) -> list[str]:
    """Fault if a node has no route to most others, for example because of its netmask or subnet."""
    rails = {one.name for one in own(node, network)}
    tried = [one for one in (node.paths.connections if node.paths else ()) if one.rail in rails]
    lost = [one for one in tried if one.took_s is None and one.problem.startswith(_NO_ROUTE)]
    if len(tried) < 2 or 2 * len(lost) <= len(tried):
        return []
    over = listed(sorted({one.rail for one in lost}))
    return [f"no route to most nodes over {over}: check its address, netmask and routes"]


def _portless(problem: str) -> list[str]:
    """Fault of a node that cannot open a connection at all."""
    check = "check its addresses and net.ipv4.ip_local_port_range"
    return [f"{problem}: {check}"] if problem.startswith(_NO_PORT) else []


def _refusals(me: NodeSurvey, other: NodeSurvey, network: Network, problem: str) -> list[str]:
    """Routes and rules of this node that explain why it cannot connect to another one."""
    addresses = [address for one in own(other, network) for address in one.addresses]
    return [
        str(one)
        for one in me.machine.refusals or ()
        if any(one.explains(plain(address), problem) for address in addresses)
    ]


def _astray(me: NodeSurvey, other: NodeSurvey, network: Network, failed: Connection) -> list[str]:
    """Fault if this node sends packets of a connection that failed to another network or MAC.

    Several interfaces of one network may share its routes.
    """
    rails, of_other = ({i.name: i.address for i in own(node, network)} for node in (me, other))
    out, mac, macs = failed.leaves_by, failed.mac, {*of_other.values()}
    if failed.rail not in rails:
        return []
    if mac and failed.mac_is_pinned and macs and macs.isdisjoint((mac, None)):
        return [f"its permanent neighbour entry of {other.name} is {mac} (ip neigh)"]
    if out is None or out in rails:
        return []
    ours, theirs = (
        node.facts.rails.get(failed.network, ()) if node.facts else () for node in (me, other)
    )
    there = [rail.address for one, rail in paired(ours, theirs) if one.interface == failed.rail]
    check = f" (ip route get {there[0]})" if there else ""
    return [f"its route to {other.name} leaves by {out}, not by {failed.rail}{check}"]


def _lacking(survey: Survey, me: NodeSurvey, key: str) -> list[str]:
    """Interfaces that most nodes have and this one lacks; [] if it has the median number."""
    names = {
        node.index: {rail.interface for rail in node.facts.rails.get(key, ())}
        for node in survey.nodes
        if node.facts is not None
    }
    if len(names[me.index]) >= median_low(map(len, names.values())):
        return []
    nodes_with = Counter(interface for own in names.values() for interface in own)
    usual = {interface for interface, count in nodes_with.items() if 2 * count > len(names)}
    return sorted(usual - names[me.index])


def _same_addresses(survey: Survey, me: NodeSurvey, network: Network) -> list[Culprit]:
    """Nodes that share an address with this one, so that each gets the other's packets.

    A MAC address counts only where paths fail: interfaces of one machine may share theirs (ipvlan).
    """

    def macs(node: NodeSurvey) -> set[str]:
        return {one.address for one in own(node, network) if one.address}

    found, shared = [], sharing(survey, me, network)
    for other in survey.others(me):
        if both := {*shared.get(other.name, ()), *(macs(me) & macs(other))}:
            ends = [node.name for node in sorted((me, other), key=lambda node: node.index)]
            words = f"{' and '.join(ends)} both have {listed(sorted(both))}"
            found.append(Culprit(words, either=[ends]))
        elif usurped := _answered(survey)[me.index] & macs(other):
            words = f"{other.name} answers ARP for {me.name}, with {listed(sorted(usurped))}"
            found.append(Culprit(words, either=[[me.name, other.name]]))
    return found


@lru_cache(maxsize=4)
def _answered(survey: Survey) -> defaultdict[int, set[str]]:
    """MACs by which nodes were answered for the addresses of each other that they cannot reach."""
    found = defaultdict[int, set[str]](set)
    for node in survey.nodes:
        for one in node.paths.connections if node.paths else ():
            if one.mac and not one.mac_is_pinned:
                found[one.to].add(one.mac)
    return found


def _why_untried(node: NodeSurvey, key: str) -> str:
    return no_answer(node) if node.facts is None else f"it has no address on the {key} network"
