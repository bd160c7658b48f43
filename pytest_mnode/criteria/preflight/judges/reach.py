"""Judges of reachability: from each node to the first node, and to all nodes on each network."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from statistics import median_low

from pytest_mnode.criteria.preflight.answers import Connection, NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Blame,
    Subject,
    blame,
    listed,
    networks_of,
    no_answer,
    path_between,
    promises,
    why_unread,
)
from pytest_mnode.criteria.preflight.judges.links import broken_links, no_links, own
from pytest_mnode.criteria.preflight.judges.matrix import Matrix, both, matrix
from pytest_mnode.criteria.preflight.tcp import paired
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.netdev import plain
from pytest_mnode.measurement import Measurement, all_of, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Network

_NO_ROUTE = os.strerror(errno.ENETUNREACH).lower()
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


def master(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Whether this node connects to the first node's control address, and the first one answers.

    If the first node answers nobody, its own measurement fails and the others' are inconclusive.
    """
    promise = promises(spec).reachable
    if promise is None:
        return []
    me, first = survey.node(name), survey.nodes[0]
    source = f"MASTER_ADDR of a job, within {promise.within_s:g} s"
    subject = Subject(f"connections to {first.name}, {first.address}", "", equals(1), source)
    return [_master(survey, me, subject, spec.management or spec.fabric)]


def _master(survey: Survey, me: NodeSurvey, subject: Subject, control: Network) -> Measurement:
    first = survey.nodes[0]
    if me.facts is None or me.paths is None or first.facts is None:
        return subject.unknown(no_answer(first if me.facts and me.paths else me))
    if first.facts.master_problem:
        why = f"{first.name}: {first.facts.master_problem}"
        return subject.measured(0, why, why) if me is first else subject.unknown(why)
    tried = {
        node.name: node.paths.master
        for node in survey.others(first)
        if node.paths is not None and node.paths.master is not None
    }
    lost = {other: c.problem for other, c in tried.items() if c.took_s is None}
    nobody = len(lost) > 1 and len(lost) == len(tried)
    if me is first and nobody:
        problem = next(iter(lost.values()))
        note = (
            f"{listed(list(lost))} cannot connect ({problem}){_hint(survey.others(first), first)}"
        )
        return subject.measured(0, f"{first.name} {first.address}", note)
    mine = me.paths.master
    if mine is None or (mine.took_s is None and nobody):
        silent = f"{first.name} answers no node and is judged separately"
        why = f"{mine.problem}; {silent}" if mine else "not tried"
        return subject.unknown(
            f"{me.name}: {why}",
            Culprit(f"path from {me.name} to {first.name}", either=[[me.name, first.name]]),
        )
    if mine.took_s is not None:
        return subject.measured(1, note=f"after {mine.took_s * 1e3:.1f} ms")
    healthy = sorted(tried.keys() - lost.keys())
    culprit: str = f"{me.name} ({listed(healthy)} can connect)"
    if not healthy:
        culprit = Culprit(f"{me.name} or {first.name}", either=[[me.name, first.name]])
    if faults := broken_links(survey, me, control) or _refusals(me, first, control, mine.problem):
        culprit = f"{me.name}: {faults[0]}"
    return subject.measured(0, culprit, f"{me.name}: {mine.problem}{_hint((me,), first)}")


def _hint(nodes: Iterable[NodeSurvey], first: NodeSurvey) -> str:
    """Text if the first node answers datagrams of these nodes, whose connections fail; else ""."""
    answered = any(
        path.answered
        for node in nodes
        for path in (node.paths.paths if node.paths else ())
        if path.to == first.index and path.network == "control"
    )
    return "; datagrams are answered, so connections are filtered" if answered else ""


def faulty(survey: Survey, network: Network, edges: Matrix) -> dict[int, str]:
    """Faults of the links or routes of nodes with a failed edge or no tried edge, by node index.

    A node whose edges all work is left out: one rail of several may be down.
    """
    tried = {index for edge in edges.tried for index in edge}
    failed = {index for edge in edges.failed for index in edge}
    return {
        node.index: faults[0]
        for node in survey.nodes
        if (node.index in failed or node.index not in tried)
        and (
            faults := broken_links(survey, node, network)
            or [
                text
                for one in (node.paths.connections if node.paths else ())
                if one.took_s is None
                for text in (
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


def _refusals(me: NodeSurvey, other: NodeSurvey, network: Network, problem: str) -> list[str]:
    """Routes and rules of this node that explain why it cannot connect to another one."""
    addresses = [address for one in own(other, network) for address in one.addresses]
    return [
        str(one)
        for one in me.machine.refusals or ()
        if any(one.explains(plain(address), problem) for address in addresses)
    ]


def _astray(me: NodeSurvey, other: NodeSurvey, network: Network, failed: Connection) -> list[str]:
    """Fault if this node's route for a connection that failed leads to another network.

    Several interfaces of one network may share its routes.
    """
    rails = {one.name for one in own(me, network)}
    out = failed.leaves_by
    if failed.rail not in rails or out is None or out in rails:
        return []
    ours, theirs = (
        node.facts.rails.get(failed.network, ()) if node.facts else () for node in (me, other)
    )
    there = [rail.address for one, rail in paired(ours, theirs) if one.interface == failed.rail]
    check = f" (ip route get {there[0]})" if there else ""
    return [f"its route to {other.name} leaves by {out}, not by {failed.rail}{check}"]


@lru_cache(maxsize=4)
def _culprits(survey: Survey, key: str, network: Network) -> tuple[dict[int, str], Blame]:
    """Faults of nodes whose own link or route is broken, and the culprits of the failed edges."""
    edges = matrix(survey, key)
    broken = faulty(survey, network, edges)
    return broken, blame(edges.tried, edges.failed, broken)


def peers(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per network: how many nodes this node reaches, of those not to blame.

    A node that is cut off fails its own measurement; in those of other nodes it is only a note.
    """
    promise, networks = promises(spec).reachable, networks_of(spec)
    if promise is None or len(survey.nodes) == 1:
        return []
    return [
        _peers_on(survey, survey.node(name), key, networks[key], promise.within_s)
        for key in promise.networks
        if key in networks
    ]


def _peers_on(
    survey: Survey, me: NodeSurvey, key: str, network: Network, within_s: float
) -> Measurement:
    others = survey.others(me)

    def subject(expected: int) -> Subject:
        label = f"nodes reached both ways on the {key} network"
        return Subject(label, "", equals(expected), f"every other node, within {within_s:g} s")

    if me.paths is None or me.machine.interfaces is None:
        why = no_answer(me) if me.paths is None else why_unread(me, "interfaces")
        return subject(len(others)).unknown(why)
    edges = matrix(survey, key)
    if survey.on_loopback and not edges.tried:
        return subject(len(others)).unknown(no_links(me, network))
    if lacking := _lacking(survey, me, key):
        text = f"no address on {listed(lacking)}, where most nodes have one"
        faults = broken_links(survey, me, network)  # a port without a carrier may have no address
        why = faults[0] if faults else text
        return subject(len(others)).measured(0, f"{me.name}: {why}", text)
    broken, found = _culprits(survey, key, network)
    healthy = [o for o in others if o.index not in found.nodes]
    if me.index in found.nodes:
        partners = healthy or list(others)
        reached = [o for o in partners if edges.is_open(me, o)]
        mine = {edge for edge in edges.failed if me.index in edge}
        words = _FILTERED if mine <= edges.filtered else _LOST
        why = broken.get(me.index) or words[found.nodes[me.index]].format(key)
        connected = [o.name for o in others if o not in healthy and edges.is_open(me, o)]
        if connected and why == _LOST["both ways"].format(key):
            why = f"it and {listed(connected)} have {why}"  # one part of a split network
        problems = {edges.problems[e] for o in partners for e in both(me, o) if e in edges.problems}
        note = "; ".join(sorted(problems)[:2])
        own = Culprit(f"{me.name}: {why}", me.name)
        culprit = all_of([own, *_same_addresses(survey, me, network)])
        return subject(len(partners)).measured(len(reached), culprit, note)
    partners = [o for o in healthy if edges.was_tried(me, o)]
    taken = _taken(survey, me, network)
    lost = [o for o in partners if edges.is_lost(me, o) or o.name in taken]
    notes = [f"without {o.name}, which is at fault" for o in others if o.index in found.nodes]
    notes += [
        f"{o.name} was not tried: {_why_untried(o, key)}"
        for o in healthy
        if not edges.was_tried(me, o)
    ]
    notes += [edges.problems[e] for o in lost for e in both(me, o) if e in edges.problems][:2]
    if not partners:
        return subject(len(others)).unknown("; ".join(notes))
    paths = [path_between(me, o, edges.failed) for o in lost if edges.is_lost(me, o)]
    culprits = [all_of(paths, separator=", ")]
    culprits += _same_addresses(survey, me, network) if lost else []
    return subject(len(partners)).measured(
        len(partners) - len(lost), all_of(culprits), "; ".join(notes)
    )


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
    """Nodes that share an address with this one, so that each gets the other's packets."""

    def addresses(node: NodeSurvey) -> set[str]:
        links = {one.address for one in own(node, network) if one.address}
        return links | _ip_addresses(node, network)

    found = []
    for other in survey.others(me):
        if both := sorted(addresses(me) & addresses(other)):
            one, two = sorted((me, other), key=lambda node: node.index)
            words = f"{one.name} and {two.name} both have {listed(both)}"
            found.append(Culprit(words, either=[[one.name, two.name]]))
    return found


def _taken(survey: Survey, me: NodeSurvey, network: Network) -> set[str]:
    """Nodes with an IP address of this node: a path that worked may have led to the other one.

    MAC addresses do not count: interfaces of one machine may share theirs (ipvlan) safely.
    """
    if survey.on_loopback:
        return set()
    owners = _owners(survey, network)
    return {name for one in _ip_addresses(me, network) for name in owners[one]} - {me.name}


@lru_cache(maxsize=4)
def _owners(survey: Survey, network: Network) -> dict[str, set[str]]:
    """Names of the nodes that have each IP address."""
    found: dict[str, set[str]] = {}
    for node in survey.nodes:
        for address in _ip_addresses(node, network):
            found.setdefault(address, set()).add(node.name)
    return found


def _ip_addresses(node: NodeSurvey, network: Network) -> set[str]:
    return {address for one in own(node, network) for address in one.usable_addresses}


def _why_untried(node: NodeSurvey, key: str) -> str:
    return no_answer(node) if node.facts is None else f"it has no address on the {key} network"
