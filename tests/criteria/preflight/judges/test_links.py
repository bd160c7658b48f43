"""Judges of interfaces: state, speed and MTU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight.judges import (
    links,
    rdma,
    reach,
)
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    ANY,
    IB,
    asked,
    culprits,
    devices_of,
    everywhere,
    healthy,
    interface,
    rdma_port,
    spec_of,
    verdicts,
    with_facts,
    with_node,
)

IPOIB = interface("ib0", "", mtu_bytes=4092)


@pytest.mark.parametrize(
    "interfaces",
    [
        (replace(IPOIB, admin_up=False, carrier=None, speed_mbits_s=None),),
        (replace(IPOIB, carrier=False, speed_mbits_s=None),),
        (replace(IPOIB, speed_mbits_s=10_000),),
        (),
    ],
    ids=["down", "without carrier", "with a speed of its own", "none"],
)
def test_infiniband_works_without_ipoib(tmp_path: Path, interfaces: tuple[Interface, ...]) -> None:
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_0")
    survey = everywhere(healthy(3), IB, interfaces=interfaces)
    for question in (links.interfaces, links.speed, rdma.rdma_ports):
        assert verdicts(question, survey, spec) == {}, question
    down = with_facts(survey, 1, rdma=devices_of(replace(IB, state="INIT")))
    assert culprits(links.interfaces, down, spec) == {"gpu1": "gpu1 mlx5_0:1 is INIT"}
    by_name = spec_of(tmp_path, ANY, "infiniband", "ib0")
    if interfaces and not interfaces[0].carrier:
        assert set(verdicts(links.interfaces, survey, by_name).values()) == {"fail"}


def test_a_second_port_without_a_cable_is_no_fault(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_0")
    second = replace(IB, number=2, state="DOWN", phys_state="Polling", gids=())
    survey = everywhere(healthy(2), IB, second, interfaces=())
    for question in (links.interfaces, links.speed, rdma.rdma_ports):
        assert verdicts(question, survey, spec) == {}, question


def test_an_interface_of_unknown_state_is_neither_up_nor_down(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{interfaces: {}, mtu: {}}")
    mute = with_facts(
        healthy(2), 1, interfaces=(interface("fab0", "", carrier=None), interface("eth0", ""))
    )
    assert verdicts(links.interfaces, mute, spec) == {"gpu1": "inconclusive"}
    spec = spec_of(tmp_path, "{interfaces: {}, mtu: {}}", interfaces="fab*")
    half = (interface("fab0", ""), interface("fab1", "", mtu_bytes=None), interface("eth0", ""))
    assert verdicts(links.interface_mtu, with_facts(healthy(2), 1, interfaces=half), spec) == {
        "gpu1": "inconclusive"
    }


def test_rdma_ports_are_judged_in_place_of_interfaces(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{interfaces: {}, speed: {}}", "infiniband", '"mlx5_*"')
    eth = interface("eth0", "10.1.0.1", speed_mbits_s=25_000)
    port = rdma_port()
    down = replace(port, state="DOWN", phys_state="Polling", rate_gbits_s=10.0)
    survey = healthy(2)
    for index, one in enumerate((port, down)):
        survey = with_facts(survey, index, interfaces=(eth,), rdma=devices_of(one))
    assert verdicts(links.interfaces, survey, spec) == {"gpu1": "fail"}
    assert verdicts(links.speed, survey, spec) == {"gpu1": "inconclusive"}  # no port is up


@pytest.mark.parametrize("has", [interface("lo", ""), interface("fab0", "", carrier=False)])
def test_a_single_node_reached_on_loopback_is_judged_by_its_links(
    has: Interface, tmp_path: Path
) -> None:
    """As in the health check of a node, whose worst finding is that it has no link at all."""
    spec = spec_of(tmp_path, "{interfaces: {}}")
    survey = with_facts(with_node(healthy(1), 0, address="127.0.0.1"), 0, interfaces=(has,))
    assert verdicts(links.interfaces, survey, spec) == {"gpu0": "fail"}


def test_nodes_on_loopback_are_inconclusive(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{reachable: {}, interfaces: {}}")
    survey = healthy(2)
    for index in range(2):
        survey = with_node(survey, index, address="127.0.0.1")
        survey = with_facts(survey, index, interfaces=(interface("lo", "127.0.0.1"),))
        paths = survey.nodes[index].paths
        assert paths is not None
        survey = with_node(survey, index, paths=replace(paths, connections=()))
    assert set(verdicts(links.interfaces, survey, spec).values()) == {"inconclusive"}
    assert set(verdicts(reach.peers, survey, spec).values()) == {"inconclusive"}


@pytest.mark.parametrize(
    ("admin_up", "carrier", "found"),
    [
        (True, True, []),
        (False, None, [("fail", "gpu1 lo is down")]),
        (None, None, [("inconclusive", None)]),
    ],
)
def test_loopback_is_up(
    admin_up: bool | None,
    carrier: bool | None,
    found: list[tuple[str, str | None]],
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, "{interfaces: {}}")
    survey = healthy(2)
    loopback = replace(
        interface("lo", "127.0.0.1", kind=Kind.LOOPBACK, carrier=carrier),
        operstate="unknown",
        admin_up=admin_up,
    )
    has = survey.nodes[1].machine.interfaces
    assert has is not None
    one_down = with_facts(survey, 1, interfaces=(loopback, *has))
    bad = [one for one in asked(links.interfaces, one_down, spec)["gpu1"] if one.verdict != "pass"]
    assert [(one.verdict, one.culprit) for one in bad] == found


def test_speeds_of_virtual_interfaces_are_unknown(spec: Spec) -> None:
    slow = with_facts(
        healthy(),
        1,
        interfaces=(
            interface("fab0", "10.2.0.2", speed_mbits_s=100_000),
            interface("eth0", "10.1.0.2", speed_mbits_s=None),
        ),
    )
    [fabric, management] = asked(links.speed, slow, spec)["gpu1"]
    assert (fabric.verdict, fabric.culprit) == ("fail", "gpu1 fab0 (100000 Mbit/s)")
    assert (management.verdict, management.note) == (
        "inconclusive",
        "gpu1: the speed of eth0 is not known",
    )
    # A veth reports 10000 at any real rate: only the rate of its queue counts.
    veth = interface("fab0", "10.2.0.2", kind=Kind.VIRTUAL)
    eth = interface("eth0", "10.1.0.2", speed_mbits_s=25_000)
    emulated = with_facts(healthy(), 1, interfaces=(veth, eth))
    assert verdicts(links.speed, emulated, spec) == {"gpu1": "inconclusive"}
    shaped = replace(veth, shaped_mbits_s=400_000.0)
    assert verdicts(links.speed, with_facts(healthy(), 1, interfaces=(shaped, eth)), spec) == {}


def test_the_rate_of_a_software_rdma_port_is_not_the_rate_of_its_link(tmp_path: Path) -> None:
    """Soft-iWARP reports a port of 2.5 Gb/sec on any interface."""
    spec = spec_of(tmp_path, "{speed: {}}")
    port = rdma_port("iWARP", device="siw0", rate_gbits_s=2.5)
    links_there = (interface("fab0", "10.2.0.1"),)
    survey = everywhere(healthy(2), port, interfaces=links_there)
    assert verdicts(links.speed, survey, spec) == {}
    roce = spec_of(tmp_path, "{speed: {}}", "roce")
    assert set(verdicts(links.speed, survey, roce).values()) == {"fail"}


def test_an_mtu_above_the_promise_is_wrong_too(spec: Spec) -> None:
    fabric, control = healthy().nodes[1].machine.interfaces or ()
    large = replace(fabric, mtu_bytes=9216)
    found = with_facts(healthy(), 1, interfaces=(large, control))
    assert culprits(links.interface_mtu, found, spec) == {"gpu1": "gpu1 fab0 (MTU 9216)"}
