"""A proof as measurements: what a certificate shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mnode.criteria.transport.counted import (
    allowed_elsewhere,
    busiest_elsewhere,
    sent_on_fabric,
)
from pytest_mnode.criteria.transport.facts import Facts
from pytest_mnode.criteria.transport.moved import expected
from pytest_mnode.criteria.transport.proof import Answer, Fact, Proof
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.models import Spec

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

QUESTIONS = {
    Fact.PINNED: "settings of ranks that send traffic elsewhere",
    Fact.LOGGED: "ranks or nodes that say they run on something else",
    Fact.COUNTED: "nodes whose fabric did not carry what it had to",
    Fact.QUIET: "other NICs that were not quiet",
}


def record(
    facts: Facts, spec: Spec, promise: TransportPromise, proof: Proof, measure: Measure
) -> None:
    """One measurement a fact: how much it objects to, None where it is missing; and the bytes."""
    for verdict in proof.facts:
        against = verdict.of(Answer.DISAGREES)
        lacking = verdict.text(Answer.MISSING, proof.nodes)
        notes = verdict.text(Answer.AGREES, proof.nodes)
        worst = verdict.text(Answer.DISAGREES, proof.nodes) or lacking
        measure(
            f"transport, {verdict.fact}: {QUESTIONS[verdict.fact]}",
            len(against) if against else (None if lacking else 0),
            equals=0,
            source="all four facts must agree with the fabric that the spec promises",
            culprit=worst or None,
            note="; ".join(filter(None, [f"missing: {lacking}" if lacking else "", notes])),
        )
    range_ = expected(facts, spec.fabric, promise)
    sent = {node.name: sent_on_fabric(node, spec) for node in facts.nodes}
    known = {name: count for name, count in sent.items() if count is not None}
    least = min(known, key=lambda name: known[name], default=None)
    most = max(known, key=lambda name: known[name], default=None)
    complete = len(known) == len(sent)
    for name, node, at_least, at_most in (
        ("least", least, range_.least_bytes / 1e6, None),
        ("most", most, None, range_.most_bytes / 1e6),
    ):
        measure(
            f"transport, bytes on the fabric of the node that sent {name}",
            known[node] / 1e6 if node is not None and complete else None,
            "MB",
            at_least=at_least,
            at_most=at_most,
            source=range_.source,
            note=node or "",
        )
    for nodes_facts in facts.nodes:
        nic = busiest_elsewhere(nodes_facts, spec)
        if nic is None:
            continue
        limit = allowed_elsewhere(nic.name, facts, promise, range_)
        measure(
            f"transport, bytes past the fabric on {nodes_facts.name}",
            None if nic.sent_bytes is None else nic.sent_bytes / 1e6,
            "MB",
            note=f"{nic.name}, at most {limit / 1e6:.3g} MB",
        )
