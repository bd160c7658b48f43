"""The interfaces that the spec names: existence, state and speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey, why_unread
from pytest_mnode.criteria.preflight.node_links import (
    broken_links,
    fits,
    links_of,
    networks_of,
    no_links,
    own,
    ports,
    promised_count,
    up,
)
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.machine.netdev import Kind, rate_mbits_s
from pytest_mnode.measurement import Measurement, at_least, equals
from pytest_mnode.spec.fields import Section
from pytest_mnode.spec.inventory import Fabric, Inventory, Network
from pytest_mnode.spec.quantity import RATE


class Interfaces(Section):
    """The interfaces of `fabric` and `management` exist and are up: there is no bound to set."""


class Speed(Section):
    """The interfaces of `fabric` and `management` run at their line_rate."""

    at_least_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 1.0
    """Fraction of line_rate, by the kernel's value or the queue that shapes an emulated link."""


@check("preflight.interfaces")
class InterfacesAreUp(SurveyCheck):
    """Do the interfaces that the spec names exist on this node, and are they up?

    One measurement per network: number of its interfaces that are up; and one of loopback, through
    which ranks of one node meet, and on which alone many programs listen: a connection must open.
    """

    promise: Interfaces
    alone = True
    stops = NEED_RANKS  # no process group forms over a link that is down

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        me = survey.node(name)
        for key, network in networks_of(self.spec).items():
            yield _number_up(survey, me, key, network)
        for one in me.machine.interfaces or ():
            if one.kind is Kind.LOOPBACK:
                source = "every Linux node has loopback"
                subject = Subject(f"{one.name} is up", "", equals(1), source)
                if one.up is None:
                    yield subject.unknown(f"{name}: the state of {one.name} cannot be read")
                else:
                    problem = me.facts.loopback_problem if me.facts else ""
                    why = f": no TCP connection opens: {problem}" if one.up else " is down"
                    yield subject.measured(one.up and not problem, f"{name} {one.name}{why}")


def _number_up(survey: Survey, me: NodeSurvey, key: str, network: Network) -> Measurement:
    count = promised_count(network)
    source = "fabric.nics_per_node" if key == "fabric" else f"{key}.interfaces"
    subject = Subject(f"{key} interfaces that are up", "", at_least(count), source)
    if me.machine.interfaces is None:
        return subject.unknown(why_unread(me, "interfaces"))
    of_rdma = isinstance(network, Fabric) and network.protocol is not None
    if of_rdma and me.machine.rdma is None and not own(me, network):
        return subject.unknown(why_unread(me, "rdma"))  # its patterns may be those of devices
    faults, there = broken_links(survey, me, network), up(me, network)
    if isinstance(network, Fabric) and not network.is_shown and not own(me, network):
        why = f"links of {network.kind} end in the accelerators, and no interface shows them"
        return subject.unknown(f"{me.name}: {why}")
    # A single node shares its loopback with no other node, so its links are its own.
    if survey.on_loopback and len(survey.nodes) > 1 and not there:
        return subject.unknown(no_links(me, network))
    links, bare = links_of(me, network)
    unreadable = [one.name for one in links if one.up is None]
    unreadable += [port.name for port in bare if port.state is None]
    if len(there) < count <= len(there) + len(unreadable):
        return subject.unknown(f"{me.name}: the state of {listed(unreadable)} cannot be read")
    culprit = f"{me.name} {listed(faults)}" if faults else f"{me.name}: too few interfaces"
    note = f"{me.name}: {listed([*faults, *(f'{n} is up' for n in there)])}"
    return subject.measured(len(there), culprit, note)


@check("preflight.speed")
class InterfacesRunAtTheirSpeed(SurveyCheck):
    """Do this node's interfaces run at the line rate promised?

    One measurement per network: the rate of its slowest interface that is up.
    """

    promise: Speed
    alone = True

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        me, fraction = survey.node(name), self.promise.at_least_fraction
        for key, network in networks_of(self.spec).items():
            bound = at_least(network.line_rate_mbits_s * fraction)
            bound = bound.of(f"{key}.line_rate", network.line_rate_bits_s)
            subject = Subject(
                f"{key} speed of the slowest interface",
                "Mbit/s",
                bound.of("criteria.preflight.speed.at_least_fraction", fraction),
                f"{key}.line_rate {RATE.text(network.line_rate_bits_s)} × {fraction:g}",
            )
            yield _slowest(me, network, subject)

    def doubts(self, cluster: Inventory) -> Iterator[str]:  # noqa: ARG002
        if (fraction := self.promise.at_least_fraction) <= 0.5:
            yield (
                f".at_least_fraction: {fraction:g}: a link that came up at half its speed passes"
            )


def _slowest(me: NodeSurvey, network: Network, subject: Subject) -> Measurement:
    if me.machine.interfaces is None:
        return subject.unknown(why_unread(me, "interfaces"))
    rates = _rates_mbits_s(me, network)
    known = {interface: rate for interface, rate in rates.items() if rate is not None}
    if not known or len(known) < len(rates):
        unreadable = listed([interface for interface in rates if interface not in known])
        why = f"the speed of {unreadable} is not known" if unreadable else "no interface is up"
        return subject.unknown(f"{me.name}: {why}")
    slowest = min(known, key=known.__getitem__)
    words = f"{me.name} {slowest} ({known[slowest]:g} Mbit/s)"
    return subject.measured(known[slowest], Culprit.device(words, me.name, slowest))


def _rates_mbits_s(node: NodeSurvey, network: Network) -> dict[str, float | None]:
    """Rates of interfaces and ports that are up; a virtual interface has only its queue's rate."""
    (links, _), there = links_of(node, network), own(node, network)
    known = node.machine.by_name
    rates = {one.name: rate_mbits_s(one, known) for one in links if one.up}
    sockets = not isinstance(network, Fabric) or network.protocol is None
    for port in ports(node, network):
        # TCP has the rate of the interface, whatever the rate of RDMA.
        if port.state != "ACTIVE" or not fits(port, network):
            continue
        if sockets and not network.has_interface(port.device):
            continue
        of_port = [i for i in there if port.device in node.machine.rdma_devices_of(i.name)]
        # The bond itself is judged, and its ports may show the rate of one of its NICs.
        if any(one.kind is Kind.BOND and rates.get(one.name) for one in of_port):
            continue
        rates[port.name] = node.machine.port_rate_mbits_s(port)
        # The port carries the traffic; its interface may report no speed.
        for one in of_port:
            if rates.get(one.name) is None:
                rates.pop(one.name, None)
    return rates
