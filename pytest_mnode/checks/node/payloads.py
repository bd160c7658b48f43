"""Payloads: whether bytes that nodes send by TCP arrive unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey, no_answer
from pytest_mnode.criteria.preflight.node_links import named_in, no_links, undescribed
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.edges import Edge, Edges, blame_now_and_then
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.measurement import Measurement, at_most, equals
from pytest_mnode.spec.fields import Bytes, Seconds, Section
from pytest_mnode.spec.inventory import Inventory, Network, NetworkName
from pytest_mnode.spec.quantity import SIZE

if TYPE_CHECKING:
    from pytest_mnode.criteria.preflight.answers import PayloadOrder
    from pytest_mnode.spec import Spec

_FEW_BYTES = 2 << 20


class Payload(Section):
    """Data that a node sends by TCP arrive unchanged: no wire changes a byte past checksums."""

    size_bytes: Bytes = Field(4 << 20, alias="size")
    """Bytes for each partner: all other nodes if there are up to 5 nodes, else three."""
    within_s: Seconds = Field(5.0, alias="within")
    """Limit for all payloads to arrive; those that have not arrived are inconclusive."""
    networks: tuple[NetworkName, ...] = Field(("fabric",), min_length=1)
    """Networks to test."""


@check("preflight.payload")
class PayloadsArriveUnchanged(SurveyCheck):
    """Does what this node sends to others and receives from them arrive as it was sent?

    One measurement per network: wrong bytes of the payloads that this node sent or received, on the
    paths that no other node is to blame for.
    """

    promise: Payload
    of_paths = True
    stops = NEED_RANKS

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        if len(survey.nodes) > 1:
            for key, network in named_in(self.promise.networks, self.spec).items():
                yield _arrived(survey, survey.node(name), key, network, self.promise.size_bytes)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        yield from undescribed(self.promise.networks, cluster)
        if (size := self.promise.size_bytes) < _FEW_BYTES:
            shown = SIZE.text(size)
            yield f".size: {shown}: a wire that changes a byte in 256 KiB may pass"


@dataclass(slots=True)
class _Payload:
    """Payloads from one node to another, on all rails. problem: why not all arrived."""

    size_bytes: int = 0
    wrong_bytes: int = 0
    problem: str = ""


def _arrived(
    survey: Survey, me: NodeSurvey, key: str, network: Network, size_bytes: int
) -> Measurement:
    source = f"preflight.payload {SIZE.text(size_bytes)} to each partner"
    subject = Subject(f"wrong bytes of payloads on the {key} network", "B", at_most(0), source)
    if me.facts is None or me.payloads is None:
        return subject.unknown(no_answer(me))
    changed, lost = _payloads(survey, key, size_bytes)
    mine, missing = changed.of(me.name), lost.of(me.name)
    spared = {*mine.without, *missing.without}
    notes = [f"without {n}, which is judged separately" for n in survey.names if n in spared]
    if mine.bad:
        bad = {edge: one for edge, one in mine.values.items() if edge in mine.bad}
        counts = [
            f"{changed.text(edge)}: {one.wrong_bytes} of {one.size_bytes} B"
            for edge, one in bad.items()
        ]
        link = f"{me.name} {'+'.join(network.interfaces)}"
        words = f"{link}: its link changes payloads, {mine.way}"
        culprit = mine.culprit(Culprit(words, me.name))
        count = sum(one.wrong_bytes for one in bad.values())
        return subject.measured(count, culprit, "; ".join([listed(counts), *notes]))
    if not mine.values:
        why = f"{me.name} has no healthy partner"
        return subject.unknown(no_links(me, network) if survey.on_loopback else why)
    if absent := sorted(missing.bad & mine.values.keys()):
        why = listed([f"{lost.text(edge)}: {lost.values[edge].problem}" for edge in absent])
        return subject.unknown(why, lost.paths(absent))
    total = sum(one.size_bytes for one in mine.values.values() if not one.problem)
    return subject.measured(0, note="; ".join([f"of {total} B", *notes]))


def is_corrupter_unclear(survey: Survey, order: PayloadOrder) -> bool:
    """Whether payloads were changed on paths that no node at fault explains."""
    return any(_payloads(survey, key, order.size_bytes)[0].blamed.paths for key in order.networks)


def paths_that_change(survey: Survey, spec: Spec, sent: Payload) -> Measurement:
    """Number of paths of the fabric that changed the payloads `sent`, with the culprits.

    Inconclusive if no payload was changed and not all arrived.
    """
    changed, lost = _payloads(survey, "fabric", sent.size_bytes)
    late = [f"{lost.text(e)}: {one.problem}" for e, one in lost.values.items() if one.problem]
    late += [no_answer(node) for node in survey.nodes if node.last is None]
    source = f"payloads arrive unchanged, {SIZE.text(sent.size_bytes)} on each path by TCP"
    interfaces = "+".join(spec.fabric.interfaces)
    subject = Subject("paths that corrupt the data sent", "", equals(0), source)
    note = listed([f"of {len(changed.values)} paths", *late])
    unsure = not changed.bad and (late or not changed.values)
    found = (lost if unsure else changed).whole(subject, lambda n: f"{n} {interfaces}", note)
    return subject.unknown(note, found.culprit) if unsure else found


@lru_cache(maxsize=4)
def _payloads(survey: Survey, key: str, size_bytes: int) -> tuple[Edges[_Payload], Edges[_Payload]]:
    """The payloads of a network: bad if changed, and bad if lost."""
    found: dict[Edge, _Payload] = {}
    for node in survey.nodes:
        for sent in node.payloads.sent if node.payloads else ():
            if sent.network != key:
                continue
            one, other = found.setdefault((node.index, sent.to), _Payload()), survey.nodes[sent.to]
            received = other.last.received if other.last else ()
            parts = [part for part in received if part.source == sent.source]
            size = sum(part.size_bytes for part in parts)
            one.size_bytes += size
            one.wrong_bytes += sum(part.wrong_bytes for part in parts)
            if size != size_bytes:
                why = sent.problem or ("" if other.last else no_answer(other))
                one.problem = f"{size} of {size_bytes} B arrived" + f" ({why})" * bool(why)
    changed = Edges.judged(
        survey.names, found, lambda one: bool(one.wrong_bytes), blame_now_and_then
    )
    lost = Edges.judged(survey.names, found, lambda one: bool(one.problem))
    return changed, lost
