"""gloo through the same judge: the interfaces of its connections, and bytes of the links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.transport.evidence import (
    Connection,
    Evidence,
    NodeTraffic,
    RankTransport,
)
from pytest_mnode.criteria.transport.remarks import Case, ProofFact
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.fabric import TransportPromise
from tests.criteria.transport.compose import Judged, interface, judged_by, on_rank, on_ranks

SPEC = profile_spec("rack")
PROMISE = TransportPromise.model_validate({"size": "4 MiB", "calls": 4})
NODES = ("node0", "node1", "node2")


def _facts(over: str = "fab0", each: int = 2) -> Evidence:
    """Three nodes; every rank is connected to all others and to the store over one interface."""
    size = len(NODES) * each
    net = {"fab0": 78, "mgmt0": 77, "bond0": 78}

    def address(rank: int, name: str) -> str:
        return f"10.{net[name]}.0.{rank // each + 1}"

    def connections(rank: int) -> tuple[Connection, ...]:
        found: list[Connection] = [((address(rank, "mgmt0"), 9000 + rank), ("10.77.0.1", 29500))]
        for other in range(size):
            if other != rank:
                ports = (4000 + 100 * min(rank, other) + max(rank, other), 5000 + rank + other)
                mine, theirs = ports if rank < other else ports[::-1]
                found.append(((address(rank, over), mine), (address(other, over), theirs)))
        return tuple(found)

    ring = int(2 * (size - 1) / size * 16 * 2**20 * 1.01)

    def node(index: int, name: str) -> NodeTraffic:
        counts = {"lo": ring * (each - 1), "mgmt0": 4000, "fab0": 4000, over: ring}
        nics = tuple(
            interface(n, addresses=(f"10.{net[n]}.0.{index + 1}",) if n in net else ())
            for n in counts
        )
        machine = Machine(interfaces=nics, rdma=())
        return NodeTraffic(name=name, machine=machine, sent_bytes=counts, received_bytes=counts)

    return Evidence(
        backend="gloo",
        size_bytes=PROMISE.size_bytes,
        calls=PROMISE.calls,
        nodes=tuple(node(i, name) for i, name in enumerate(NODES)),
        ranks=tuple(
            RankTransport(
                rank=r,
                node=NODES[r // each],
                environment={"GLOO_SOCKET_IFNAME": over},
                connections=connections(r),
            )
            for r in range(size)
        ),
    )


def _judged(facts: Evidence) -> Judged:
    return judged_by(facts, SPEC, PROMISE)


def _with_environment(facts: Evidence, environment: dict[str, str]) -> Evidence:
    return on_ranks(facts, None, lambda rank: replace(rank, environment=environment))


@pytest.mark.parametrize("each", [1, 2, 3])
def test_the_fabric(each: int) -> None:
    proof = _judged(_facts(each=each))
    assert proof.verdict is Verdict.PASS, proof.remarks


def test_a_vlan_and_its_bond_that_match_one_pattern_are_counted_once() -> None:
    facts = _facts("bond0")

    def with_vlan(node: NodeTraffic) -> NodeTraffic:
        vlan = interface("bond0.100")
        sent = {**node.sent_bytes, "bond0.100": node.sent_bytes["bond0"]}
        machine = replace(node.machine, interfaces=(*(node.machine.interfaces or ()), vlan))
        return replace(node, machine=machine, sent_bytes=sent, received_bytes=sent)

    fabric = SPEC.fabric.model_copy(update={"interfaces": ("bond*",)})
    spec = SPEC.model_copy(update={"fabric": fabric})
    made_of_one = replace(facts, nodes=tuple(map(with_vlan, facts.nodes)))
    before, after = (judged_by(one, spec, PROMISE).answers for one in (facts, made_of_one))
    assert after == before
    assert after["counted"] == "pass"


def test_the_management_network() -> None:
    proof = _judged(_facts("mgmt0"))
    assert proof.answers == dict.fromkeys(ProofFact, "fail")
    assert proof.cases == {Case.WRONG_INTERFACE, Case.NOT_ON_FABRIC, Case.NOT_QUIET}
    assert proof.culprit.startswith(
        "all nodes: GLOO_SOCKET_IFNAME=mgmt0 is not the fabric (fab0); "
        "all nodes: connections to other nodes are bound to mgmt0, not to the fabric (fab0); "
    )


def test_a_correct_variable_with_wrong_connections_fails() -> None:
    proof = _judged(_with_environment(_facts("mgmt0"), {"GLOO_SOCKET_IFNAME": "fab0"}))
    assert proof.answers["pinned"] == "pass"
    assert proof.answers["logged"] == "fail"


@pytest.mark.parametrize("environment", [{}, {"GLOO_SOCKET_IFNAME": ""}])
def test_a_missing_variable_is_noted_and_other_facts_decide(environment: dict[str, str]) -> None:
    proof = _judged(_with_environment(_facts(), environment))
    assert proof.verdict is Verdict.PASS
    assert "GLOO_SOCKET_IFNAME is not set" in proof.text(Verdict.PASS)


def test_variables_that_gloo_does_not_read_may_differ() -> None:
    environment = {"GLOO_SOCKET_IFNAME": "fab0", "NCCL_ALGO": "RING"}
    assert _judged(on_rank(_facts(), 3, environment=environment)).verdict is Verdict.PASS


def test_unreadable_connections_are_missing() -> None:
    proof = _judged(on_rank(_facts(), 3, connections=None))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.culprit == "rank 3 on node1: no connections are known"


def test_a_neighbour_without_a_connection_is_missing() -> None:
    facts = _facts()
    store_only = facts.ranks[2].connections
    assert store_only is not None
    proof = _judged(on_rank(facts, 2, connections=store_only[:1]))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert (
        "rank 2 on node1: no connection to its neighbour, rank 1 on node0, was found"
        in proof.culprit
    )


def test_an_address_of_no_interface_is_missing() -> None:
    facts = _facts()
    nics = (interface("lo"), interface("mgmt0"), interface("fab0"))
    bare = replace(facts.nodes[0], machine=Machine(interfaces=nics, rdma=()))
    proof = _judged(replace(facts, nodes=(bare, *facts.nodes[1:])))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert "bound to 10.78.0.1, whose interface is not known" in proof.culprit


def test_loopback_may_carry_only_traffic_within_a_node() -> None:
    facts = _facts(each=2)
    sent = facts.nodes[1].sent_bytes
    busy = replace(facts.nodes[1], sent_bytes={**sent, "lo": 2 * sent["lo"]})
    proof = _judged(replace(facts, nodes=(facts.nodes[0], busy, facts.nodes[2])))
    assert proof.cases == {Case.NOT_QUIET}
    assert proof.culprit.startswith("node1: lo sent ")
