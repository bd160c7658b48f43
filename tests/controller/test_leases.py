"""Leases: all nodes or none, first come first served, and never a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.controller.hub import Requests
from pytest_mnode.controller.leases import Asked, Leases, NodesRequest, NodeState
from pytest_mnode.errors import NodeLostError
from pytest_mnode.launchers.node import Node, count
from pytest_mnode.protocol.messages import Lease


class Desk(Leases):
    """Leases with the requests that wait for them, and the answers."""

    def __init__(self, count: int = 4) -> None:
        nodes = [Node(f"node{i}", i, "127.0.0.1") for i in range(count)]
        super().__init__({node.name: NodeState(node, 0, True, 1000) for node in nodes})
        self.answers: list[tuple[Asked, Any]] = []
        self.requests = Requests(lambda asked, answer: self.answers.append((asked, answer)))

    def forget(self, client: str, seq: int | None = None) -> list[int]:
        self.requests.withdraw(client, seq)
        return self.of(client, seq)


def ask(
    desk: Desk,
    client: str,
    nodes: int | None,
    exclusive: bool = False,
    *,
    seq: int = 1,
    on: tuple[str, ...] = (),
) -> None:
    asked = Asked(client, seq)
    request = NodesRequest(asked, nodes, exclusive, f"test of {client}", on)
    desk.requests.begin(asked, desk.lease(request))


def granted(desk: Desk) -> dict[str, tuple[str, ...]]:
    """The nodes that clients got since the last call."""
    desk.requests.go_on()
    answers, desk.answers = desk.answers, []
    return {asked.client: a.nodes for asked, a in answers if isinstance(a, Lease)}


def test_two_requests_get_disjoint_nodes_and_a_third_waits() -> None:
    desk = Desk()
    for client in "abc":
        ask(desk, client, 2)
    assert granted(desk) == {"a": ("node0", "node1"), "b": ("node2", "node3")}
    desk.give_back(1)
    assert granted(desk) == {"c": ("node0", "node1")}


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    desk = Desk()
    ask(desk, "a", 2)
    ask(desk, "large", None)
    ask(desk, "small", 1)
    assert list(granted(desk)) == ["a"]
    desk.give_back(1)
    assert list(granted(desk)) == ["large"]


def test_an_exclusive_lease_is_alone() -> None:
    desk = Desk()
    ask(desk, "a", 1)
    ask(desk, "measures", 1, exclusive=True)
    assert list(granted(desk)) == ["a"]
    desk.give_back(1)
    ask(desk, "b", 1)
    assert list(granted(desk)) == ["measures"]
    desk.give_back(2)
    assert list(granted(desk)) == ["b"]


def test_a_lost_node_is_named() -> None:
    desk = Desk()
    desk.nodes["node2"].mark_lost("powered off")
    ask(desk, "a", 4)
    [(_, answer)] = desk.answers
    assert isinstance(answer, NodeLostError)
    assert answer.node == "node2"
    text = "test of a needs 4 nodes, but the run has 4, of which node2 is lost: powered off"
    assert str(answer) == text


def test_requests_of_a_lost_client_are_removed() -> None:
    desk = Desk()
    ask(desk, "a", 4)
    granted(desk)
    ask(desk, "gone", 1)
    assert desk.forget("a") == [1]
    assert desk.forget("gone") == []
    desk.give_back(1)
    assert granted(desk) == {}


def test_a_withdrawn_request_does_not_delay_others() -> None:
    desk = Desk()
    ask(desk, "a", 2)
    granted(desk)
    ask(desk, "large", None, seq=7)
    ask(desk, "small", 1, seq=7)
    assert granted(desk) == {}
    assert desk.forget("large", 6) == []
    assert granted(desk) == {}, "request 7 was withdrawn instead of request 6"
    assert desk.forget("large", 7) == []
    assert granted(desk) == {"small": ("node2",)}


def test_a_lease_granted_too_late_is_returned() -> None:
    desk = Desk()
    ask(desk, "a", 1, seq=1)
    ask(desk, "b", 1, seq=1)
    ask(desk, "a", 1, seq=2)
    assert granted(desk) == {"a": ("node2",), "b": ("node1",)}  # the last answer to each
    [late] = desk.forget("a", 2)
    assert desk.out[late].nodes == ("node2",)
    desk.give_back(late)
    ask(desk, "c", 2, seq=1)
    assert granted(desk) == {"c": ("node2", "node3")}


@given(
    requests=st.lists(st.tuples(st.integers(1, 4) | st.none(), st.booleans()), max_size=30),
    order=st.randoms(),
)
def test_every_request_is_served_in_any_order(
    requests: Sequence[tuple[int | None, bool]], order: Random
) -> None:
    desk = Desk()
    waiting = {f"c{i}": request for i, request in enumerate(requests)}
    for client, (nodes, exclusive) in waiting.items():
        ask(desk, client, nodes, exclusive)
    served: list[str] = []
    while len(served) < len(waiting):
        served += granted(desk)
        held = [name for lease in desk.out.values() for name in lease.nodes]
        assert len(held) == len(set(held)), "a node was leased twice"
        assert desk.out, "no lease is held, but a waiting request is not served"
        alone = [lease for lease in desk.out.values() if lease.exclusive]
        assert not alone or len(desk.out) == 1
        desk.give_back(order.choice(sorted(desk.out)))
    assert served == list(waiting), "not first come first served"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "node", "0 nodes"), (1, "rank", "1 rank"), (2, "rank", "2 ranks")],
)
def test_a_count_and_its_noun(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


def test_a_node_that_boots_again_holds_up_only_those_that_need_it() -> None:
    desk = Desk()
    desk.nodes["node1"].mark_lost("powered off")
    desk.nodes["node1"].mark_booting()
    ask(desk, "all", None)
    ask(desk, "named", 1, on=("node1",))
    ask(desk, "three", 3)
    ask(desk, "one", 1)
    assert granted(desk) == {"three": ("node0", "node2", "node3")}
    desk.nodes["node1"].mark_booted(1001)
    assert granted(desk) == {}  # in turn: all nodes first
    desk.give_back(1)
    assert list(granted(desk)) == ["all"]


def test_nodes_that_boot_first_are_waited_for() -> None:
    desk = Desk()
    desk.nodes["node3"].booted = False
    ask(desk, "one", 1)
    assert granted(desk) == {}
