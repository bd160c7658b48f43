"""Judges of connections to the first node and to all others: which node or path is to blame."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.checks.node.interfaces import InterfacesAreUp
from pytest_mnode.checks.node.reachable import (
    EveryNodeIsReached,
    FirstNodeIsReached,
    paths_that_lose,
)
from pytest_mnode.criteria.preflight.answers import Connection, Heard, NodeSurvey, Survey
from pytest_mnode.criteria.preflight.answers import Path as ProbedPath
from pytest_mnode.machine.netlink import Refusal, neighbour_mac, route
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    ANY,
    IB,
    RAILS,
    asked,
    culprits,
    cut,
    everywhere,
    healthy,
    interface,
    on_loopback,
    promising,
    silent,
    verdicts,
    with_facts,
    with_interface,
    with_node,
    with_path_facts,
    with_paths,
)


def _connections(node: NodeSurvey) -> tuple[Connection, ...]:
    return node.paths.connections if node.paths else ()


def _failing(survey: Survey, index: int, **changes: Any) -> Survey:
    """The survey with other fields of the connections of a node that failed."""
    return with_path_facts(
        survey, index, connections=lambda c: c if c.took_s else replace(c, **changes)
    )


def test_a_configured_route_that_refuses_a_peer_is_named(spec: Spec) -> None:
    undo = "ip route del blackhole 10.2.0.4/32"
    route = Refusal("blackhole", "route", "10.2.0.4/32", undo)
    beneath = Refusal("unreachable", "route", "10.0.0.0/8", "ip route del unreachable 10.0.0.0/8")
    lost = with_facts(cut(healthy(), [(1, 3)]), 1, refusals=(beneath, route))
    assert culprits(EveryNodeIsReached, lost, spec).keys() == {"gpu1", "gpu3"}
    lost = _failing(lost, 1, problem=os.strerror(errno.EINVAL).lower())
    named = f"gpu1: blackhole route to 10.2.0.4/32 ({undo})"
    assert culprits(EveryNodeIsReached, lost, spec) == {"gpu1": named}


def test_a_route_over_another_network_is_named(spec: Spec) -> None:
    lost = _failing(cut(healthy(), [(1, 3)]), 1, leaves_by="eth0")
    [(node, culprit)] = culprits(EveryNodeIsReached, lost, spec).items()
    assert node == "gpu1"
    assert culprit.startswith("gpu1: its route to gpu3 leaves by eth0, not by fab0 (ip route get ")


@pytest.mark.parametrize(
    ("gateway", "through"), [("10.2.0.3", "gpu2"), ("10.2.0.4", ""), ("10.2.0.254", "")]
)
def test_a_route_through_a_third_node_is_named(spec: Spec, gateway: str, through: str) -> None:
    """A router, or another address of the node itself, is as right as no gateway."""
    survey = with_path_facts(
        healthy(),
        1,
        connections=lambda c: replace(c, gateway=gateway) if (c.to, c.rail) == (3, "fab0") else c,
    )
    named = {"gpu1": f"gpu1: its route to gpu3 leads through {through} (ip route)"}
    assert culprits(EveryNodeIsReached, survey, spec) == (named if through else {})


def _counted(survey: Survey, lossy: Mapping[tuple[int, int], int] | None = None) -> Survey:
    """The survey after a thousand datagrams on each rail of a path, of which some were lost: as
    many on fab0, and on fab1 as many as by chance at most."""

    def heard(index: int, one: Heard) -> Heard:
        lost = [(lossy or {}).get((i, index), 0) for i in one.senders]
        by_chance = 1000 if one.rail == "fab0" else 7
        return replace(one, counts=tuple(1000 - min(count, by_chance) for count in lost))

    survey = with_paths(survey, lambda _, path: replace(path, sent=1000))
    for node in survey.nodes:
        if node.last is not None:
            arrived = tuple(heard(node.index, one) for one in node.last.heard)
            survey = with_node(survey, node.index, last=replace(node.last, heard=arrived))
    return survey


@pytest.mark.parametrize(
    ("lossy", "sure", "count"),
    [
        ({}, set(), 0),
        ({(0, 1): 7, (2, 3): 3}, set(), 0),  # by chance
        ({(i, 1): 20 for i in (0, 2, 3)}, {"gpu1"}, 3),
        # Into one and out of another: nobody between them is at fault.
        (
            {**{(i, 1): 20 for i in (0, 2, 3)}, **{(3, i): 20 for i in (0, 1, 2)}},
            {"gpu1", "gpu3"},
            5,
        ),
        ({(0, 2): 40}, set(), 1),
    ],
)
def test_lost_datagrams_name_the_nodes_and_directions_that_lose_them(
    spec: Spec, lossy: dict[tuple[int, int], int], sure: set[str], count: int
) -> None:
    found = paths_that_lose(_counted(healthy(), lossy), spec)
    assert found.value == count
    assert (found.culprit.nodes if found.culprit else set()) == sure
    if count == 1:
        assert found.culprit is not None
        assert found.culprit.either == frozenset({frozenset({"gpu0", "gpu2"})})


def test_paths_of_which_not_all_could_be_counted_are_inconclusive(spec: Spec) -> None:
    assert str(paths_that_lose(_counted(silent(healthy(), 1)), spec).verdict) == "inconclusive"


@pytest.mark.parametrize(
    ("own", "is_named"),
    [("02:00:00:00:00:04", True), ("02:00:00:00:00:09", False), (None, False)],
)
def test_a_neighbour_entry_with_the_mac_of_another_is_named(
    spec: Spec, own: str | None, is_named: bool
) -> None:
    """A node whose MAC cannot be read may have that of the entry."""
    mac = "02:00:00:00:00:09"
    lost = _failing(cut(healthy(), [(1, 3)]), 1, mac=mac, mac_is_pinned=True)
    for one in lost.nodes[3].machine.interfaces or ():
        lost = with_interface(lost, 3, one.name, address=own)
    named = f"gpu1: its permanent neighbour entry of gpu3 is {mac} (ip neigh)"
    found = culprits(EveryNodeIsReached, lost, spec)
    assert (found == {"gpu1": named}) is is_named
    assert is_named or set(found.values()) == {ONE_WAY}


def test_a_node_that_answers_for_another_is_named(spec: Spec) -> None:
    """It drops their packets, so that the other looks like a node that is off."""
    mac = "02:00:00:00:00:09"
    lost = cut(healthy(), [(n, 2) for n in OTHERS])
    for index in OTHERS:
        lost = _failing(lost, index, mac=mac)
    dead = "gpu2: it sends but cannot receive on the fabric network"
    assert culprits(EveryNodeIsReached, lost, spec) == {"gpu2": dead}
    lost = with_interface(lost, 3, "fab0", address=mac)
    named = f"{dead}; gpu3 answers ARP for gpu2, with {mac}"
    assert culprits(EveryNodeIsReached, lost, spec) == {"gpu2": named}


def test_the_interface_of_a_route_is_the_kernels() -> None:
    assert route("127.0.0.1", "127.0.0.1") == ("lo", None)
    assert route("127.0.0.1", "203.0.113.9") == (None, None), "no address of this machine"
    assert neighbour_mac("203.0.113.9") == (None, False)


OTHERS = (0, 1, 3)
ONE_WAY = "path from gpu1 to gpu3 (one way)"


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        (
            [e for n in OTHERS for e in ((n, 2), (2, n))],
            {"gpu2": "gpu2: no connection to or from others on the fabric network"},
        ),
        (
            [(n, 2) for n in OTHERS],
            {"gpu2": "gpu2: it sends but cannot receive on the fabric network"},
        ),
        (
            [(2, n) for n in OTHERS],
            {"gpu2": "gpu2: it receives but cannot send on the fabric network"},
        ),
        ([(1, 3)], {"gpu1": ONE_WAY, "gpu3": ONE_WAY}),
        ([(1, 3), (3, 1)], dict.fromkeys(("gpu1", "gpu3"), "path between gpu1 and gpu3")),
        (
            [e for a in (0, 1) for b in (2, 3) for e in ((a, b), (b, a))],
            {
                f"gpu{a}": f"gpu{a}: it and gpu{1 - a} have no connection to or from others "
                "on the fabric network, and either part of the nodes may be at fault"
                for a in (0, 1)
            },
        ),
    ],
)
def test_directions_nodes_and_paths_are_distinguished(
    spec: Spec, edges: list[tuple[int, int]], found: dict[str, str]
) -> None:
    for rails in (RAILS, RAILS[:1], RAILS[1:]):
        assert culprits(EveryNodeIsReached, cut(healthy(), edges, rails=rails), spec) == found, (
            rails
        )


@pytest.mark.parametrize(
    "parts",
    [
        ((0, 1), (2, 3)),
        ((0, 1), (2, 3), (4,)),  # a node that none reaches tells nothing of the two parts
        ((0, 1), (4, 5), (2, 3)),
    ],
)
def test_of_a_network_in_parts_of_one_size_none_is_sure_to_be_at_fault(
    spec: Spec, parts: tuple[tuple[int, ...], ...]
) -> None:
    part = {node: one for one in parts for node in one}
    lost = cut(healthy(len(part)), [(a, b) for a in part for b in part if part[a] != part[b]])
    for name in ("gpu0", "gpu1"):
        culprit = asked(EveryNodeIsReached, lost, spec)[name][0].culprit
        assert culprit is not None
        last = max(one for one in parts if len(one) > 1)
        expected = {f"gpu{node}" for node in (0, 1, *last)}
        assert (culprit.nodes, culprit.either) == (
            frozenset[str](),
            frozenset({frozenset(expected)}),
        )


def test_other_nodes_are_judged_without_the_one_at_fault(spec: Spec) -> None:
    lost = cut(healthy(), [e for n in OTHERS for e in ((n, 2), (2, n))])
    [fabric, _] = asked(EveryNodeIsReached, lost, spec)["gpu0"]
    assert (fabric.value, fabric.note) == (2, "without gpu2, which is at fault")
    two = cut(healthy(2), [(0, 1), (1, 0)])
    assert set(culprits(EveryNodeIsReached, two, spec).values()) == {"path between gpu0 and gpu1"}


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        ({"address": "02:00:00:00:00:01"}, "02:00:00:00:00:01"),
        ({"addresses": ("10.2.0.9",)}, "10.2.0.9"),
    ],
)
def test_an_address_used_by_two_nodes_is_named(
    spec: Spec, changes: dict[str, Any], both: str
) -> None:
    """A MAC address only if paths fail: interfaces of one machine may share it (ipvlan) safely."""
    survey = healthy()
    for index in (1, 3):
        survey = with_interface(survey, index, "fab1", **changes)
    cause = f"gpu1 and gpu3 both have {both}"
    named = dict.fromkeys(("gpu1", "gpu3"), cause) if "addresses" in changes else {}
    assert culprits(EveryNodeIsReached, survey, spec) == named
    assert culprits(EveryNodeIsReached, cut(survey, [(1, 3), (3, 1)]), spec) == dict.fromkeys(
        ("gpu1", "gpu3"), f"path between gpu1 and gpu3; {cause}"
    )
    deaf = asked(EveryNodeIsReached, cut(survey, [(n, 3) for n in range(3)]), spec)["gpu3"][
        0
    ].culprit
    assert deaf is not None
    assert deaf.startswith("gpu3: it sends but cannot receive")
    assert deaf.endswith(cause)
    assert not deaf.nodes, "nobody knows whose address it is"
    assert deaf.either == {frozenset({"gpu3"}), frozenset({"gpu1", "gpu3"})}


def test_addresses_of_links_and_of_one_machine_may_be_the_same(spec: Spec) -> None:
    for address, local in (("fe80::1", False), ("10.2.0.9", True)):
        survey = healthy()
        for index in (1, 3):
            own = survey.nodes[index].machine.by_name["fab0"].addresses
            survey = with_interface(survey, index, "fab0", addresses=(*own, address))
        survey = on_loopback(survey) if local else survey
        assert culprits(EveryNodeIsReached, survey, spec) == {}


def test_a_link_without_a_carrier_is_the_cause_of_lost_paths(spec: Spec) -> None:
    lost = cut(healthy(3), [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
    for index in (1, 2):
        lost = with_interface(lost, index, "fab0", carrier=False)
    found = {name: f"{name}: fab0 has no carrier" for name in ("gpu1", "gpu2")}
    assert culprits(EveryNodeIsReached, lost, spec) == found
    assert (
        verdicts(EveryNodeIsReached, lost, spec)["gpu0"] == "inconclusive"
    )  # no node is left to reach
    assert culprits(InterfacesAreUp, lost, spec)["gpu1"] == "gpu1 fab0 has no carrier"


def test_no_node_passes_where_every_node_is_at_fault(spec: Spec) -> None:
    lost = cut(healthy(3), [(a, b) for a in range(3) for b in range(3) if a != b])
    for index in range(3):
        lost = with_interface(lost, index, "fab0", carrier=False)
    found = {name: one.value for name, [one, _] in asked(EveryNodeIsReached, lost, spec).items()}
    assert found == {"gpu0": 0, "gpu1": 0, "gpu2": 0}
    assert set(verdicts(EveryNodeIsReached, lost, spec).values()) == {"fail"}


def test_a_path_to_a_node_at_fault_is_named_by_that_node_alone(spec: Spec) -> None:
    lost = cut(healthy(5), [*((2, n) for n in (0, 1, 3, 4)), (0, 2), (0, 1)])
    [found, _] = asked(EveryNodeIsReached, lost, spec)["gpu0"]
    assert found.culprit is not None
    assert (found.value, found.culprit.parts.paths) == (2, (("gpu0", "gpu1"),))


def test_a_node_at_fault_does_not_reach_a_silent_one(spec: Spec) -> None:
    lost = silent(cut(healthy(5), [e for n in (0, 1, 3) for e in ((n, 2), (2, n))]), 4)
    [found, _] = asked(EveryNodeIsReached, lost, spec)["gpu2"]
    assert (found.value, found.expected and found.expected.limit) == (0, 4)


def test_filtered_connections_are_not_taken_for_cut_paths(spec: Spec) -> None:
    def filtered(one: Connection) -> Connection:
        refused = replace(one, took_s=None, problem="no answer within 2 s")
        return refused if (one.to, one.network) == (2, "management") else one

    survey = healthy()
    for index in OTHERS:
        survey = with_path_facts(survey, index, connections=filtered)
    named = "connections to it are filtered on the management network, datagrams pass"
    assert culprits(EveryNodeIsReached, survey, spec) == {"gpu2": f"gpu2: {named}"}
    assert "though datagrams pass" in asked(EveryNodeIsReached, survey, spec)["gpu2"][1].note
    one_is_cut = cut(survey, [(0, 2)], "management")
    named = "it sends but cannot receive on the management network"
    assert culprits(EveryNodeIsReached, one_is_cut, spec) == {"gpu2": f"gpu2: {named}"}
    for index in OTHERS:
        pinged = ProbedPath(2, "management", "eth0", answered=True, sent=12)
        survey = with_path_facts(survey, index, paths=(pinged,))
    named = "gpu2: it loses packets on the management network"
    assert culprits(EveryNodeIsReached, survey, spec) == {"gpu2": named}


def test_a_fabric_without_ip_is_inconclusive() -> None:
    spec = promising(ANY, "infiniband", "mlx5_0")
    down = interface("ib0", "", admin_up=False, carrier=None)
    survey = everywhere(healthy(3), IB, interfaces=(down,))
    for node in survey.nodes:
        assert node.facts is not None
        rails = {**node.facts.rails, "fabric": ()}
        survey = with_facts(survey, node.index, rails=rails)
        kept = tuple(c for c in _connections(node) if c.network != "fabric")
        survey = with_path_facts(survey, node.index, connections=kept)
    assert set(verdicts(EveryNodeIsReached, survey, spec).values()) == {"inconclusive"}


def _master(survey: Survey, lost: set[int]) -> Survey:
    refused = Connection(0, "control", "", None, "no answer within 2 s")
    for index in lost:
        survey = with_path_facts(survey, index, master=refused)
    return survey


@pytest.mark.parametrize(
    ("count", "lost", "found"),
    [
        (4, {2}, {"gpu2": "gpu2 (gpu1, gpu3 can connect)"}),
        (4, {1, 2, 3}, {"gpu0": "gpu0 10.1.0.1"}),
        (3, {1, 2}, {"gpu0": "gpu0 10.1.0.1"}),
        (2, {1}, {"gpu1": "gpu1 or gpu0"}),
        (4, {2, 3}, {name: f"{name} (gpu1 can connect)" for name in ("gpu2", "gpu3")}),
    ],
)
def test_an_unreachable_first_node_blames_one_node_or_the_first(
    spec: Spec, count: int, lost: set[int], found: dict[str, str]
) -> None:
    survey = _master(healthy(count), lost)
    assert culprits(FirstNodeIsReached, survey, spec) == found
    unknown = {f"gpu{n}": "inconclusive" for n in lost if "gpu0" in found}
    assert verdicts(FirstNodeIsReached, survey, spec) == dict.fromkeys(found, "fail") | unknown


@pytest.mark.parametrize("culprit", [0, 2, None])
def test_a_first_node_that_refuses_some_connections_is_named(
    spec: Spec, culprit: int | None
) -> None:
    """As what nodes find on the control network shows."""
    edges = [(n, culprit) for n in range(4) if culprit not in (n, None)]
    survey = _master(cut(healthy(), edges, "management"), {2})
    named = "gpu2 (gpu1, gpu3 can connect)"
    if culprit == 0:
        named = "gpu0: it refuses some connections"
    assert culprits(FirstNodeIsReached, survey, spec) == {"gpu2": named}


def test_a_first_node_that_cannot_listen_is_named(spec: Spec) -> None:
    problem = "cannot listen on port 29500: in use"
    taken = with_facts(healthy(), 0, master_problem=problem)
    assert culprits(FirstNodeIsReached, taken, spec) == {"gpu0": f"gpu0: {problem}"}


def _without_address(survey: Survey, index: int, interface: str) -> Survey:
    """No node tried a path to or from this interface of a node."""
    for node in survey.nodes:
        connections = tuple(
            one
            for one in _connections(node)
            if one.rail != interface or index not in (node.index, one.to)
        )
        survey = with_path_facts(survey, node.index, connections=connections)
    facts = survey.nodes[index].facts
    assert facts is not None
    rails = {
        key: tuple(rail for rail in of_key if rail.interface != interface)
        for key, of_key in facts.rails.items()
    }
    return with_facts(survey, index, rails=rails)


@pytest.mark.parametrize("rail", RAILS)
def test_a_node_without_the_address_that_most_nodes_have_is_named(spec: Spec, rail: str) -> None:
    found = culprits(EveryNodeIsReached, _without_address(healthy(), 3, rail), spec)
    assert found == {"gpu3": f"gpu3: no address on {rail}, where most nodes have one"}


def test_interfaces_that_cannot_be_read_are_not_missing(spec: Spec) -> None:
    unread = {"interfaces": None, "unread": {"interfaces": "no answer within 30 s"}}
    found = with_facts(_without_address(healthy(), 3, "fab0"), 3, **unread)
    assert verdicts(EveryNodeIsReached, found, spec) == {"gpu3": "inconclusive"}
    assert "gpu3: no answer within 30 s" in asked(EveryNodeIsReached, found, spec)["gpu3"][0].note
    assert culprits(FirstNodeIsReached, with_facts(_master(healthy(), {2}), 2, **unread), spec) == {
        "gpu2": "gpu2 (gpu1, gpu3 can connect)"
    }


def test_a_node_without_a_route_to_others_is_named(spec: Spec) -> None:
    """It is in another subnet; datagrams bound to the interface still pass."""
    survey = healthy()
    for node in survey.nodes:
        why = "network is unreachable: no route" if node.index in (0, 2) else "no answer within 2 s"
        connections = tuple(
            replace(one, took_s=None, problem=why)
            if one.network == "fabric" and 2 in (node.index, one.to)
            else one
            for one in _connections(node)
        )
        survey = with_path_facts(survey, node.index, connections=connections)
    [(name, culprit)] = culprits(EveryNodeIsReached, survey, spec).items()
    assert name == "gpu2"
    assert culprit.startswith("gpu2: no route to most nodes over fab0, fab1: ")
    # Without a route to one node only, the path is to blame.
    one = _failing(cut(healthy(), [(2, 0)]), 2, problem="network is unreachable")
    assert set(culprits(EveryNodeIsReached, one, spec).values()) == {
        "path from gpu2 to gpu0 (one way)"
    }


def test_a_node_with_no_port_left_is_named_and_no_path(spec: Spec) -> None:
    problem = "cannot assign requested address (connection 2 of 3)"
    why = f"gpu2: {problem}: check its addresses and net.ipv4.ip_local_port_range"
    lost = _failing(cut(healthy(), [(2, 0)]), 2, problem=problem)
    assert culprits(EveryNodeIsReached, lost, spec) == {"gpu2": why}
    refused = Connection(0, "control", "", None, problem)
    lost = with_path_facts(healthy(), 2, master=refused)
    assert culprits(FirstNodeIsReached, lost, spec) == {"gpu2": why}
