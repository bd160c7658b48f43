"""Turns the four facts and a promise into measurements. Pure."""

from __future__ import annotations

from pytest_mnode.criteria.transport.counted import ByteCounts
from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.criteria.transport.logged import logged
from pytest_mnode.criteria.transport.pinned import pinned
from pytest_mnode.criteria.transport.remarks import ProofFact, Remark, measured
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.models import Spec


def judge(facts: Evidence, spec: Spec, promise: TransportPromise) -> list[Measurement]:
    """One measurement per fact, and the bytes on which two of them are judged."""
    remarks = remarks_on(facts, spec, promise)
    nodes = [node.name for node in facts.nodes]
    found = [measured(fact, remarks, nodes) for fact in ProofFact]
    return [*found, *ByteCounts(facts, spec, promise).measurements()]


def remarks_on(facts: Evidence, spec: Spec, promise: TransportPromise) -> list[Remark]:
    """The remarks of each of the four facts on the fabric that `spec` promises.

    Raises ValueError for fewer than two nodes, because no traffic leaves them, and for no rank.
    """
    if len(facts.nodes) < 2:
        raise ValueError("traffic of one node leaves no node; give two nodes or more")
    if not facts.ranks:
        raise ValueError("the facts contain no rank; give the facts of every rank")
    counts = ByteCounts(facts, spec, promise)
    return [
        *pinned(facts, spec, promise.roce_version),
        *logged(facts, spec, promise.roce_version),
        *counts.counted(),
        *counts.quiet(),
    ]
