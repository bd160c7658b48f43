"""Are names and addresses of all nodes looked up quickly and rightly?"""

from __future__ import annotations

import ipaddress

from pytest_mnode.criteria.preflight.connecting import is_address, look_up_limit_s
from pytest_mnode.criteria.preflight.facts import LookUp, NodeSurvey, Survey
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    listed,
    silence,
    unknown,
)
from pytest_mnode.measurement import Measurement, at_most, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.quantity import DURATION


def names(survey: Survey, spec: Spec, name: str) -> Answer:
    """Two measurements: the slowest look-up of this node, and how many of its answers are wrong.

    Looked up are the name of every node, its control address, and that address as dual-stack
    sockets ask for it (::ffff:…): torchrun stalls for ten seconds where that one hangs.
    """
    promise = spec.criteria.preflight
    if promise is None or promise.names is None:
        return NotPromised("look-ups of names")
    me = survey.node(name)
    within_s = promise.names.within_s
    slow, wrong = "slowest look-up of a name or address", "look-ups with a wrong answer"
    bound = at_most(within_s)
    source = f"preflight.names.within {DURATION.text(round(within_s, 9))}"
    truth = "the addresses that the nodes have"
    if me.paths is None or not me.paths.look_ups:
        why = silence(me) if me.paths is None else f"{name}: nothing was looked up"
        return (
            *unknown(slow, "s", bound, source, why),
            *unknown(wrong, "", equals(0), truth, why),
        )
    look_ups = me.paths.look_ups
    limit_s = look_up_limit_s(within_s)
    slowest = max(look_ups, key=lambda one: limit_s if one.took_s is None else one.took_s)
    endless = [one for one in look_ups if one.took_s is None]
    took_s = limit_s if endless else slowest.took_s
    what = f"{slowest.what} took {'more than ' if endless else ''}{took_s:.3g} s"
    late = [one for one in look_ups if one.took_s is None or one.took_s > within_s]
    judged = [one for one in look_ups if _can_be_judged(one, survey)]
    faults = [fault for one in judged if (fault := _fault(one, me, survey))]
    open_ = [one.what for one in look_ups if one not in judged]
    return (
        Measurement(
            slow,
            took_s,
            "s",
            bound,
            source,
            f"{name}: its name server, hosts file or order of look-up",
            f"{name}: {what}{f', {len(late)} of {len(look_ups)} were late' if late else ''}",
        ),
        Measurement(
            wrong,
            None if open_ and not faults else len(faults),
            "",
            equals(0),
            truth,
            f"{name}: its hosts file or name server",
            f"{name}: {listed(faults)}"
            if faults
            else f"{name}: not known whose addresses those of {listed(open_)} are"
            if open_
            else f"of {len(look_ups)}",
        ),
    )


def _can_be_judged(one: LookUp, survey: Survey) -> bool:
    """Not where a name has an address that the node may have, and its interfaces are not known."""
    of = survey.nodes[one.of]
    if is_address(one.what) or (of.facts is not None and of.facts.interfaces is not None):
        return True
    return all(address == of.address for address in one.found)


def _fault(one: LookUp, me: NodeSurvey, survey: Survey) -> str:
    """What is wrong with an answer; "" for nothing, and for one that did not come."""
    if one.took_s is None:
        return ""
    of = survey.nodes[one.of]
    assert of.facts is not None
    if is_address(one.what):
        return _wrong_name(one, of, survey)
    if not one.found:
        return f"{one.what} has no address ({one.problem})"
    right = _addresses(of)
    wrong = [a for a in one.found if a.partition("%")[0] not in right]
    if wrong:
        return f"{one.what} is {listed(wrong)}, where {of.name} has {of.address}"
    if me is of and not _is_loopback(of.address) and all(map(_is_loopback, one.found)):
        return f"its own name {one.what} is {one.found[0]}: backends would listen there alone"
    return ""


def _wrong_name(one: LookUp, of: NodeSurvey, survey: Survey) -> str:
    """An address may have no name, or one we do not know; but not that of another node."""
    assert of.facts is not None
    for found in one.found:
        full, own = _name(found), _name(of.facts.hostname)
        for other in survey.others(of):
            theirs = _name(other.facts.hostname) if other.facts is not None else own
            # In two domains there may be nodes of the same short name: then the whole decides.
            is_theirs = full == theirs if full[0] == own[0] else full[0] == theirs[0]
            if own not in (theirs, full) and is_theirs:
                return f"{one.what} is {found}, where {of.name} has it"
    return ""


def _name(told: str) -> list[str]:
    """The parts of a host name, however it is written."""
    return told.rstrip(".").lower().split(".")


def _addresses(node: NodeSurvey) -> set[str]:
    """All of a node's addresses; loopback for names it gives itself is judged apart."""
    facts = node.facts
    assert facts is not None
    found = {node.address}
    for interface in facts.interfaces or ():
        found |= {address.partition("%")[0] for address in interface.addresses}
    return found


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
