"""gloo through the same judge: what its connections are bound to, and what the links carried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.transport import (
    Answer,
    Case,
    Fact,
    Facts,
    Nic,
    NodeFacts,
    Proof,
    RankFacts,
    Socket,
    judge,
)
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import default_spec_path, load_spec
from pytest_mnode.spec.fabric import TransportPromise

SPEC = load_spec(default_spec_path())
PROMISE = TransportPromise.model_validate({"size": "4 MiB", "calls": 4})
NODES = ("node0", "node1", "node2")


def _facts(over: str = "fab0", each: int = 2) -> Facts:
    """Three nodes, every rank connected with every other over one interface, and to the store."""
    size = len(NODES) * each
    net = {"fab0": 78, "mgmt0": 77}

    def address(rank: int, name: str) -> str:
        return f"10.{net[name]}.0.{rank // each + 1}"

    def sockets(rank: int) -> tuple[Socket, ...]:
        found = [Socket(local=(address(rank, "mgmt0"), 9000 + rank), remote=("10.77.0.1", 29500))]
        for other in range(size):
            if other != rank:
                ports = (4000 + 100 * min(rank, other) + max(rank, other), 5000 + rank + other)
                mine, theirs = ports if rank < other else ports[::-1]
                found.append(
                    Socket(local=(address(rank, over), mine), remote=(address(other, over), theirs))
                )
        return tuple(found)

    ring = int(2 * (size - 1) / size * 16 * 2**20 * 1.01)

    def node(index: int, name: str) -> NodeFacts:
        counts = {"lo": ring * (each - 1), "mgmt0": 4000, "fab0": 4000, over: ring}
        return NodeFacts(
            name=name,
            nics=tuple(
                Nic(name=n, sent_bytes=c, received_bytes=c, up=True) for n, c in counts.items()
            ),
            ports=(),
            addresses={f"10.{part}.0.{index + 1}": link for link, part in net.items()},
        )

    return Facts(
        backend="gloo",
        size_bytes=PROMISE.size_bytes,
        calls=PROMISE.calls,
        nodes=tuple(node(i, name) for i, name in enumerate(NODES)),
        ranks=tuple(
            RankFacts(
                rank=r,
                node=NODES[r // each],
                environment={"GLOO_SOCKET_IFNAME": over},
                sockets=sockets(r),
            )
            for r in range(size)
        ),
    )


def _judged(facts: Facts) -> Proof:
    return judge(facts, SPEC, PROMISE)


def _rank(facts: Facts, number: int, **changes: object) -> Facts:
    ranks = list(facts.ranks)
    ranks[number] = replace(ranks[number], **changes)  # type: ignore[arg-type]
    return replace(facts, ranks=tuple(ranks))


@pytest.mark.parametrize("each", [1, 2, 3])
def test_the_fabric(each: int) -> None:
    proof = _judged(_facts(each=each))
    assert proof.verdict is Verdict.PASS, proof.lines()


def test_the_management_network() -> None:
    proof = _judged(_facts("mgmt0"))
    assert {str(f.answer) for f in proof.facts} == {"disagrees"}
    assert proof.cases == {Case.WRONG_INTERFACE, Case.NOT_ON_FABRIC, Case.NOT_QUIET}
    assert str(proof.culprit).startswith(
        "all nodes: GLOO_SOCKET_IFNAME=mgmt0 is not the fabric (fab0); "
        "all nodes: connections to other nodes are bound to mgmt0, not to the fabric (fab0); "
    )


def test_the_variable_says_right_and_connections_say_otherwise() -> None:
    facts = _facts("mgmt0")
    for number in range(len(facts.ranks)):
        facts = _rank(facts, number, environment={"GLOO_SOCKET_IFNAME": "fab0"})
    proof = _judged(facts)
    assert proof.of(Fact.PINNED).answer is Answer.AGREES
    assert proof.of(Fact.LOGGED).answer is Answer.DISAGREES


def test_no_variable_is_noted_and_the_others_decide() -> None:
    facts = _facts()
    for number in range(len(facts.ranks)):
        facts = _rank(facts, number, environment={})
    proof = _judged(facts)
    assert proof.verdict is Verdict.PASS
    assert "GLOO_SOCKET_IFNAME is not set" in proof.lines()[0]


def test_connections_that_cannot_be_read_are_missing() -> None:
    proof = _judged(_rank(_facts(), 3, sockets=None))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.culprit == "rank 3 on node1: no connections are known"


def test_a_neighbour_without_a_connection_is_missing() -> None:
    facts = _facts()
    store_only = facts.ranks[2].sockets
    assert store_only is not None
    proof = _judged(_rank(facts, 2, sockets=store_only[:1]))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert "rank 2 on node1: no connection to its neighbour, rank 1 on node0, was found" in str(
        proof.culprit
    )


def test_an_address_of_no_interface_is_missing() -> None:
    facts = _facts()
    nodes = (replace(facts.nodes[0], addresses={}), *facts.nodes[1:])
    proof = _judged(replace(facts, nodes=nodes))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert "bound to 10.78.0.1, an address of no known interface" in str(proof.culprit)


def test_loopback_may_carry_what_ranks_of_a_node_say_and_no_more() -> None:
    facts = _facts(each=2)
    nics = facts.nodes[1].nics or ()
    busy = tuple(
        replace(n, sent_bytes=(n.sent_bytes or 0) * 2) if n.name == "lo" else n for n in nics
    )
    nodes = (facts.nodes[0], replace(facts.nodes[1], nics=busy), facts.nodes[2])
    proof = _judged(replace(facts, nodes=nodes))
    assert proof.cases == {Case.NOT_QUIET}
    assert str(proof.culprit).startswith("node1: lo sent ")
