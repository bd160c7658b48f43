"""Results of the transport proof on two guests, running or recorded."""

from __future__ import annotations

import re

from pytest_mnode.criteria.transport.counted import judge
from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.criteria.transport.remarks import ProofFact
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import Spec
from pytest_mnode.spec.fabric import TransportPromise
from tests.machines import pages

PROMISE = TransportPromise.model_validate({"size": "2 MiB", "calls": 2})
LOGGED = "transport, logged: ranks or nodes that use another network"
COUNTED = "transport, counted: nodes whose fabric did not carry the expected bytes"
LEAST = "transport, bytes on the fabric of the node that sent least"


def faults(evidence: Evidence) -> dict[str, str | None]:
    """Measurements that break the promise, with their culprits."""
    found = judge(evidence, Spec.model_validate(pages.one_rail()), PROMISE)
    assert len(found) == len(ProofFact) + 2 + len(evidence.nodes)
    return {one.name: one.culprit for one in found if one.verdict not in (Verdict.PASS, None)}


def faults_on_tcp(evidence: Evidence) -> None:
    """Both nodes are blamed by UCX logs and by NIC counters; the NIC itself is the right one."""
    instead = "UCX's tcp (fab0) instead of roce: UCX_TLS=tcp, UCX_NET_DEVICES=fab0"
    found = faults(evidence)
    assert set(found) == {LOGGED, COUNTED, LEAST}
    assert found[LOGGED] == f"all nodes: channels run over {instead}"
    for name in ("node0", "node1"):
        sent = r"the fabric \(rxe0\) sent 0 MB, expected at least 4.11 MB; fab0 sent 4.\d+ MB"
        assert re.search(f"(all nodes|{name}): {sent}", found[COUNTED] or ""), found
