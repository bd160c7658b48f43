"""The edges between nodes of a network that work, by connections and datagrams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import Edge
from pytest_mnode.criteria.preflight.tcp import paired


@dataclass(frozen=True, slots=True)
class Matrix:
    """Edges of one network: those tried and those that failed, with the problem of each.

    filtered: failed edges on which datagrams pass but connections do not open.
    """

    tried: frozenset[Edge]
    failed: frozenset[Edge]
    filtered: frozenset[Edge]
    problems: dict[Edge, str]

    def was_tried(self, me: NodeSurvey, other: NodeSurvey) -> bool:
        """Whether a connection between the two was tried."""
        return (me.index, other.index) in self.tried

    def is_lost(self, me: NodeSurvey, other: NodeSurvey) -> bool:
        """Whether either direction fails."""
        return any(edge in self.failed for edge in both(me, other))

    def is_open(self, me: NodeSurvey, other: NodeSurvey) -> bool:
        """Whether both directions work."""
        return self.was_tried(me, other) and not self.is_lost(me, other)


@lru_cache(maxsize=4)
def matrix(survey: Survey, network: str) -> Matrix:
    """Edges of a network; an edge fails if any of its rails does.

    A connection needs both directions. Datagrams show which direction fails: a datagram needs only
    one, and the node that receives it reports it.
    """
    tried: set[Edge] = set()
    failed: set[Edge] = set()
    filtered: set[Edge] = set()
    problems: dict[Edge, str] = {}
    by_index = {node.index: node for node in survey.nodes}
    for node in survey.nodes:
        for connection in node.paths.connections if node.paths else ():
            if connection.network != network:
                continue
            there, back = (node.index, connection.to), (connection.to, node.index)
            tried |= {there, back}
            if connection.took_s is not None:
                continue
            unheard = [
                (a, b)
                for a, b in (there, back)
                if not _heard(by_index[a], by_index[b], network, connection.rail, node)
            ]
            failed |= set(unheard or [there])
            filtered |= set() if unheard else {there}
            passing = "" if unheard else ", though datagrams pass"
            for edge in unheard or [there]:
                problems.setdefault(edge, f"{connection.rail}: {connection.problem}{passing}")
    return Matrix(frozenset(tried), frozenset(failed), frozenset(filtered), problems)


def _heard(
    sender: NodeSurvey, receiver: NodeSurvey, network: str, rail: str, namer: NodeSurvey
) -> bool:
    """Whether the receiver heard the sender. rail: the edge's interface on the node `namer`."""
    if sender.facts is None or receiver.facts is None or receiver.last is None:
        return True  # unknown, so nobody is blamed
    other = receiver if namer is sender else sender
    assert namer.facts is not None
    assert other.facts is not None
    pairs = paired(namer.facts.rails.get(network, ()), other.facts.rails.get(network, ()))
    named = {mine.interface: theirs.interface for mine, theirs in pairs}
    at = named.get(rail, rail) if receiver is other else rail
    return any(
        sender.index in heard.senders
        for heard in receiver.last.heard
        if heard.network == network and heard.rail == at
    )


def both(one: NodeSurvey, other: NodeSurvey) -> tuple[Edge, Edge]:
    """The two directions between two nodes."""
    return (one.index, other.index), (other.index, one.index)
