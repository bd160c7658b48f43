"""Four facts and a promise, to one proof. Pure."""

from __future__ import annotations

from pytest_mnode.criteria.transport.counted import counted, quiet
from pytest_mnode.criteria.transport.facts import Facts
from pytest_mnode.criteria.transport.logged import logged
from pytest_mnode.criteria.transport.moved import expected
from pytest_mnode.criteria.transport.pinned import pinned
from pytest_mnode.criteria.transport.proof import Proof
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.models import Spec


def judge(facts: Facts, spec: Spec, promise: TransportPromise) -> Proof:
    """What each of the four facts says of the fabric that `spec` promises.

    Raises ValueError for fewer than two nodes, for nothing then leaves a node, and for no rank.
    """
    if len(facts.nodes) < 2:
        raise ValueError("traffic of one node leaves no node; give two nodes or more")
    if not facts.ranks:
        raise ValueError("no rank told anything; give the facts of every rank")
    range_ = expected(facts, spec.fabric, promise)
    return Proof(
        tuple(node.name for node in facts.nodes),
        (
            pinned(facts, spec, promise.roce_version),
            logged(facts, spec, promise.roce_version),
            counted(facts, spec, promise, range_),
            quiet(facts, spec, promise, range_),
        ),
    )
