"""Addresses: whether each belongs to one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pytest_mnode import measurement
from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey, why_unread
from pytest_mnode.criteria.preflight.node_links import networks_of, no_links, sharing
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject
from pytest_mnode.measurement import Measurement, all_of, equals
from pytest_mnode.spec.inventory import Network


@check("preflight.addresses")
class AddressesAreUnique(SurveyCheck):
    """Has no other node an address of this node?

    One measurement per network: number of other nodes with an IP address of this node's interfaces
    there. Each gets packets that are meant for the other, whichever answered ARP last. Link-local
    addresses, those of bridges between containers, and those on interfaces that the spec does not
    name, such as anycast on loopback, may be the same on all nodes.

    An address by which the controller reaches one node is that node's: the other is to blame. Of
    any other address nobody knows whose it is, and both are suspect.
    """

    promise: Literal["unique"]
    """No two nodes have the same address on `fabric` or `management`."""
    stops = NEED_RANKS
    fault = "same_address:{node}+{other}"
    promised_as = "unique"

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        if len(survey.nodes) > 1:
            for key, network in networks_of(self.spec).items():
                yield _shared(survey, survey.node(name), key, network)


def _shared(survey: Survey, me: NodeSurvey, key: str, network: Network) -> Measurement:
    label = f"other nodes with an address of this node on the {key} network"
    subject = Subject(label, "", equals(0), "preflight.addresses unique")
    if me.machine.interfaces is None:
        return subject.unknown(why_unread(me, "interfaces"))
    if survey.on_loopback:
        return subject.unknown(no_links(me, network))
    culprits, notes = [], []
    for other, addresses in sharing(survey, me, network).items():
        theirs = survey.node(other).address
        ends = [one.name for one in survey.nodes if one.name in (me.name, other)]
        shown = measurement.listed(addresses, separator=", ")
        if theirs in addresses and me.address not in addresses:
            words = f"{me.name}: {theirs}, by which {other} is reached"
            culprits.append(Culprit(words, me.name))
        elif me.address in addresses and theirs not in addresses:
            notes.append(f"{other} has {me.address} too, and is judged separately")
        else:
            culprits.append(Culprit(f"{' and '.join(ends)} both have {shown}", either=[ends]))
    return subject.measured(len(culprits), all_of(culprits), "; ".join(notes))
