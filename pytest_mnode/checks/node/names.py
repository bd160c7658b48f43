"""Names: look-ups of all nodes' names and addresses, on every node."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import (
    LookUp,
    NodeSurvey,
    Survey,
    no_answer,
    why_unread,
)
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.criteria.preflight.tcp import LOCALHOST, MAPPED, is_address, look_up_limit_s
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.measurement import Measurement, at_most, equals
from pytest_mnode.spec.fields import Seconds, Section
from pytest_mnode.spec.inventory import Inventory
from pytest_mnode.spec.quantity import DURATION

_STALL_S = 5.0
"""A look-up that takes this long is about to run into torchrun's and resolvers' own limits."""


class Names(Section):
    """Host names and addresses of all nodes are resolved quickly and correctly, on every node."""

    within_s: Seconds = Field(1.0, alias="within")
    """One look-up, forward or reverse, takes no longer."""


@check("preflight.names")
class NamesAreFound(SurveyCheck):
    """Does this node look up the names and addresses of all nodes quickly and correctly?

    Three measurements: the slowest look-up of this node, the number of wrong answers, and the
    number of other nodes with its host name. It looks up the name of every node, its control
    address, and that address as dual-stack sockets use it (::ffff:…): torchrun stalls for ten
    seconds if the look-up of the last one hangs. It also looks up localhost, by which programs of
    one node meet, and its own addresses on all networks, however long that takes: none may have a
    name that is made of another node's, such as node2-ib0.
    """

    promise: Names
    of_paths = True

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        me, within_s = survey.node(name), self.promise.within_s
        bound = at_most(within_s).of("criteria.preflight.names.within", within_s)
        source = f"preflight.names.within {DURATION.text(round(within_s, 9))}"
        slow = Subject("slowest look-up of a name or address", "s", bound, source)
        truth = "the nodes' own addresses"
        wrong = Subject("look-ups with a wrong answer", "", equals(0), truth)
        if me.paths is None or not me.paths.look_ups:
            why = no_answer(me) if me.paths is None else f"{name}: nothing was looked up"
            yield slow.unknown(why)
            yield _wrong(survey, me, (), wrong) if _own(survey, me) else wrong.unknown(why)
        else:
            told = {me.machine.hostname, me.address, MAPPED + me.address, LOCALHOST}
            ours = (one for one in me.paths.look_ups if one.of != me.index or one.what in told)
            yield _slowest(me, tuple(ours), slow, within_s)
            yield _wrong(survey, me, me.paths.look_ups, wrong)
        yield from _shared(survey, me)

    def doubts(self, cluster: Inventory) -> Iterator[str]:  # noqa: ARG002
        if (within_s := self.promise.within_s) >= _STALL_S:
            shown = DURATION.text(within_s)
            yield f".within: {shown}: torchrun stalls for 10 s where a look-up hangs"


def _slowest(
    me: NodeSurvey, found: tuple[LookUp, ...], subject: Subject, within_s: float
) -> Measurement:
    limit_s = look_up_limit_s(within_s)
    slowest = max(found, key=lambda one: limit_s if one.took_s is None else one.took_s)
    endless = any(one.took_s is None for one in found)
    took_s = limit_s if endless or slowest.took_s is None else slowest.took_s
    late = [one for one in found if one.took_s is None or one.took_s > within_s]
    note = f"{me.name}: {slowest.what} took {'more than ' * endless}{took_s:.3g} s"
    if late:
        note += f", {len(late)} of {len(found)} were late"
    culprit = f"{me.name}: its name server, hosts file or look-up order"
    return subject.measured(took_s, culprit, note)


def _wrong(
    survey: Survey, me: NodeSurvey, found: tuple[LookUp, ...], subject: Subject
) -> Measurement:
    # No answer is right for a name that several nodes have.
    found = tuple(one for one in found if not _has_namesake(one, survey))
    known = [_can_be_judged(one, survey) for one in found]
    judged = [one for one, can in zip(found, known, strict=True) if can]
    unknown = _wrong_elsewhere(survey)
    faults = [
        (one.of, fault)
        for one in judged
        if (one.of, one.what) not in unknown and (fault := _fault(one, me, survey))
    ]
    own = _own(survey, me)
    if own or faults:
        alike = own and all(of == me.index for of, _ in faults)
        cause = "its names, as other nodes know them" if alike else "its hosts file or name server"
        note = f"{me.name}: {listed([*own, *(fault for _, fault in faults)])}"
        return subject.measured(len(own) + len(faults), f"{me.name}: {cause}", note)
    if undecided := [one.what for one, can in zip(found, known, strict=True) if not can]:
        why = f"it is not known which node has the addresses found for {listed(undecided)}"
        return subject.unknown(f"{me.name}: {why}")
    without = listed([*dict.fromkeys(survey.nodes[of].name for of, _ in unknown)])
    note = f"of {len(found)}" + (f", without {without}, judged separately" if without else "")
    return subject.measured(0, note=note)


def _own(survey: Survey, me: NodeSurvey) -> list[str]:
    """Faults of a node's names, as all others look them up."""
    return [fault for (of, _), fault in _wrong_elsewhere(survey).items() if of == me.index]


@lru_cache(maxsize=1)
def _wrong_elsewhere(survey: Survey) -> dict[tuple[int, str], str]:
    """Nodes and those of their names and addresses that all others look up wrong, with a fault.

    Then that node is to blame, whose name is not registered, and not each of the others; of two
    nodes only if it looks them up wrong too.
    """
    found: dict[tuple[int, str], dict[int, str]] = {}
    for me in survey.nodes:
        for one in me.paths.look_ups if me.paths else ():
            if one.took_s is not None and _can_be_judged(one, survey):
                fault = "" if _has_namesake(one, survey) else _fault(one, me, survey)
                if one.of != me.index or (fault and len(survey.nodes) == 2):
                    found.setdefault((one.of, one.what), {})[me.index] = fault
    wrong = {what: each for what, each in found.items() if len(each) > 1 and all(each.values())}
    # Nodes that are wrong about others too are to blame themselves.
    odd = {i for what in found.keys() - wrong for i, fault in found[what].items() if fault}
    return {what: next(iter(each.values())) for what, each in wrong.items() if each.keys() - odd}


def _shared(survey: Survey, me: NodeSurvey) -> list[Measurement]:
    """Number of other nodes with this host name; 0 for the only node listed under that name."""
    if survey.on_loopback:
        return []
    subject = Subject("other nodes with the same host name", "", equals(0), "unique host names")
    if not me.machine.hostname:
        return [subject.unknown(why_unread(me, "hostname"))]
    same = _by_hostname(survey)[_name(me.machine.hostname)]
    others = listed([node.name for node in same if node is not me])
    named = [node for node in same if _name(node.name)[0] == _name(me.machine.hostname)[0]]
    if len(named) == 1 and me in named:
        hostname = me.machine.hostname
        note = f"{hostname} is also the host name of {others}, judged separately" if others else ""
        return [subject.measured(0, note=note)]
    culprit = f"{me.name}: its host name {me.machine.hostname}"
    return [
        subject.measured(
            len(same) - 1, culprit, f"also the host name of {others}" if others else ""
        )
    ]


def _has_namesake(one: LookUp, survey: Survey) -> bool:
    """Whether the name that was looked up is the host name of several nodes."""
    return not is_address(one.what) and len(_by_hostname(survey).get(_name(one.what), ())) > 1


def _can_be_judged(one: LookUp, survey: Survey) -> bool:
    """False if the node's interfaces are unknown, so that a found address may be its own."""
    of = survey.nodes[one.of]
    if is_address(one.what) or one.what == LOCALHOST or of.machine.interfaces is not None:
        return True
    return all(address == of.address for address in one.found)


def _fault(one: LookUp, me: NodeSurvey, survey: Survey) -> str:
    """Fault of an answer; "" if the answer is right or did not come."""
    if one.took_s is None:
        return ""
    of = survey.nodes[one.of]
    if is_address(one.what):
        return _wrong_name(one, of, survey)
    if not one.found:
        return f"{one.what} has no address ({one.problem})"
    right, localhost = _addresses(of), one.what == LOCALHOST != of.machine.hostname
    if localhost:
        right = set(filter(_is_loopback, one.found))
    elif me is not of and not _is_loopback(of.address):
        right = {address for address in right if not _is_loopback(address)}
    wrong = [a for a in one.found if a.partition("%")[0] not in right]
    if wrong:
        return f"{one.what} resolves to {listed(wrong)}, but {_shown(of)} has {of.address}"
    hidden = not localhost and not _is_loopback(of.address)
    if me is of and hidden and all(map(_is_loopback, one.found)):
        return (
            f"its own name {one.what} resolves to {one.found[0]}: backends would listen only there"
        )
    return ""


def _wrong_name(one: LookUp, of: NodeSurvey, survey: Survey) -> str:
    """Fault if an address has another node's name, or one made of it such as node2-ib0; it may have
    no name or an unknown one."""
    own, names = _name(of.machine.hostname or ""), _by_hostname(survey)
    short_names = _short_hostnames(survey)
    for found in one.found:
        full = _name(found)
        short = _stem(full[0], short_names)
        # Nodes in two domains may have the same short name; then the full name decides.
        taken = full in names if short == own[0] else short in short_names
        if short != full[0] and own[0].startswith((f"{short}-", f"{short}_")):
            taken = False  # gpu-ib-2 may be made of gpu-2, where another node is gpu
        if full != own and taken:
            return f"{one.what} resolves to {found}, but it is an address of {_shown(of)}"
    return ""


def _shown(node: NodeSurvey) -> str:
    """The node, with its host name if that is another, as after two were swapped."""
    hostname = node.machine.hostname or node.name
    other = _name(hostname)[0] != _name(node.name)[0]
    return node.name + other * f" (host name {hostname})"


@lru_cache(maxsize=1)
def _by_hostname(survey: Survey) -> dict[tuple[str, ...], list[NodeSurvey]]:
    """Nodes by the parts of their host name."""
    found: dict[tuple[str, ...], list[NodeSurvey]] = {}
    for node in survey.nodes:
        if node.machine.hostname:
            found.setdefault(_name(node.machine.hostname), []).append(node)
    return found


@lru_cache(maxsize=1)
def _short_hostnames(survey: Survey) -> frozenset[str]:
    return frozenset(name[0] for name in _by_hostname(survey))


def _stem(name: str, known: Collection[str]) -> str:
    """The longest of these host names that it is made of, as gpu-1 is of gpu-1-ib0; or itself."""
    parts = re.split(r"([-_.])", name)
    starts = ("".join(parts[:end]) for end in range(len(parts), 0, -2))
    return next((start for start in starts if start in known), name)


def _name(text: str) -> tuple[str, ...]:
    """The parts of a host name, in lower case and without a final dot."""
    return tuple(text.rstrip(".").lower().split("."))


def _addresses(node: NodeSurvey) -> set[str]:
    """All addresses of a node, also those of loopback, which `_fault` judges."""
    found = {node.address}
    for interface in node.machine.interfaces or ():
        found |= {address.partition("%")[0] for address in interface.addresses}
    return found


@lru_cache(maxsize=1 << 16)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
