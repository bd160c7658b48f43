"""Judges of interfaces: state, speed and MTU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.checks.node.interfaces import InterfacesAreUp, InterfacesRunAtTheirSpeed
from pytest_mnode.checks.node.mtu import InterfacesHaveTheirMtu
from pytest_mnode.checks.node.rdma import RdmaDevicesCanBeOpened, RdmaPortsAreActive
from pytest_mnode.checks.node.reachable import EveryNodeIsReached
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.pci import PciFunction, PciTree
from pytest_mnode.machine.rdma import RdmaDevice, VerbsDevice
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    ANY,
    IB,
    asked,
    culprits,
    cut,
    devices_of,
    everyone,
    everywhere,
    healthy,
    interface,
    on_loopback,
    promising,
    rdma_port,
    verdicts,
    with_facts,
    with_interface,
    with_path_facts,
)

IPOIB = interface("ib0", "", mtu_bytes=4092)
INTERFACES = promising("{interfaces: {}}")
USUAL = healthy(1).nodes[0].machine.interfaces or ()


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
def test_infiniband_works_without_ipoib(interfaces: tuple[Interface, ...]) -> None:
    spec = promising(ANY, "infiniband", "mlx5_0")
    survey = everywhere(healthy(3), IB, interfaces=interfaces)
    for question in (InterfacesAreUp, InterfacesRunAtTheirSpeed, RdmaPortsAreActive):
        assert verdicts(question, survey, spec) == {}, question
    down = with_facts(survey, 1, rdma=devices_of(replace(IB, state="INIT")))
    assert culprits(InterfacesAreUp, down, spec) == {"gpu1": "gpu1 mlx5_0:1 is INIT"}
    unread = with_facts(everywhere(healthy(3), IB, interfaces=()), 1, rdma=None)
    assert verdicts(InterfacesAreUp, unread, spec) == {"gpu1": "inconclusive"}
    by_name = promising(ANY, "infiniband", "ib0")
    if interfaces and not interfaces[0].carrier:
        assert set(verdicts(InterfacesAreUp, survey, by_name).values()) == {"fail"}


def test_links_that_end_in_accelerators_are_not_known_to_be_missing() -> None:
    spec = promising("{interfaces: {}, speed: {}}", "ub", "ub0", nics=8)
    survey = everywhere(healthy(2), interfaces=(replace(IPOIB, name="eth0"),))
    for question in (InterfacesAreUp, InterfacesRunAtTheirSpeed):
        assert set(verdicts(question, survey, spec).values()) == {"inconclusive"}
    named = promising("{interfaces: {}}", "cxi", "hsn0")
    assert set(verdicts(InterfacesAreUp, survey, named).values()) == {"fail"}


def test_a_second_port_without_a_cable_is_neither_a_fault_nor_named_beside_one() -> None:
    spec = promising(ANY, "infiniband", "mlx5_0")
    second = replace(IB, number=2, state="DOWN", phys_state="Polling", gids=())
    survey = everywhere(healthy(2), IB, second, interfaces=())
    for question in (InterfacesAreUp, InterfacesRunAtTheirSpeed, RdmaPortsAreActive):
        assert verdicts(question, survey, spec) == {}, question
    two = promising("{interfaces: {}}", "infiniband", '"mlx5_*"', nics=2)
    other = replace(IB, device="mlx5_1", state="INIT"), replace(second, device="mlx5_1")
    survey = everywhere(healthy(1), IB, second, *other, interfaces=())
    culprit = "gpu0 mlx5_1:1 is INIT, mlx5_1:2 is DOWN"
    assert culprits(InterfacesAreUp, survey, two) == {"gpu0": culprit}


def test_rdma_ports_are_judged_in_place_of_interfaces() -> None:
    spec = promising("{interfaces: {}, speed: {}}", "infiniband", '"mlx5_*"')
    survey = everywhere(healthy(2), IB, interfaces=())
    down = replace(IB, state="DOWN", phys_state="Polling", rate_gbits_s=10.0)
    survey = with_facts(survey, 1, rdma=devices_of(down))
    assert verdicts(InterfacesAreUp, survey, spec) == {"gpu1": "fail"}
    assert verdicts(InterfacesRunAtTheirSpeed, survey, spec) == {
        "gpu1": "inconclusive"
    }  # no port is up


@pytest.mark.parametrize("has", [interface("lo", ""), interface("fab0", "", carrier=False)])
def test_a_single_node_reached_on_loopback_is_judged_by_its_links(has: Interface) -> None:
    """As in the health check of a node, whose worst finding is that it has no link at all."""
    survey = everyone(on_loopback(healthy(1)), interfaces=(has,))
    assert verdicts(InterfacesAreUp, survey, INTERFACES) == {"gpu0": "fail"}


def test_nodes_on_loopback_are_inconclusive() -> None:
    spec = promising("{reachable: {}, interfaces: {}}")
    survey = everyone(on_loopback(healthy(2)), interfaces=(interface("lo", "127.0.0.1"),))
    for index in range(2):
        survey = with_path_facts(survey, index, connections=())
    for judge in (InterfacesAreUp, EveryNodeIsReached):
        assert set(verdicts(judge, survey, spec).values()) == {"inconclusive"}, judge


@pytest.mark.parametrize(
    ("admin_up", "carrier", "found"),
    [
        (True, True, []),
        (False, None, [("fail", "gpu1 lo is down")]),
        (None, None, [("inconclusive", None)]),
    ],
)
def test_loopback_is_up(
    admin_up: bool | None, carrier: bool | None, found: list[tuple[str, str | None]]
) -> None:
    loopback = interface("lo", "127.0.0.1", kind=Kind.LOOPBACK, carrier=carrier, admin_up=admin_up)
    loopback = replace(loopback, operstate="unknown")
    survey = with_facts(healthy(2), 1, interfaces=(loopback, *USUAL))
    bad = [m for m in asked(InterfacesAreUp, survey, INTERFACES)["gpu1"] if m.verdict != "pass"]
    assert [(one.verdict, one.culprit) for one in bad] == found


def test_a_loopback_on_which_no_connection_opens_is_named() -> None:
    loopback = replace(interface("lo", "127.0.0.1", kind=Kind.LOOPBACK), operstate="unknown")
    facts = {"interfaces": (loopback, *USUAL), "loopback_problem": "no answer within 2 s"}
    survey = with_facts(healthy(2), 1, **facts)
    assert culprits(InterfacesAreUp, survey, INTERFACES) == {
        "gpu1": "gpu1 lo: no TCP connection opens: no answer within 2 s"
    }


def test_speeds_of_virtual_interfaces_are_unknown(spec: Spec) -> None:
    eth = interface("eth0", "10.1.0.2", speed_mbits_s=25_000)
    unknown = replace(eth, speed_mbits_s=None)
    slow = interface("fab0", "10.2.0.2", speed_mbits_s=100_000)
    [fabric, management] = asked(
        InterfacesRunAtTheirSpeed, with_facts(healthy(), 1, interfaces=(slow, unknown)), spec
    )["gpu1"]
    assert (fabric.verdict, fabric.culprit) == ("fail", "gpu1 fab0 (100000 Mbit/s)")
    assert management.verdict == "inconclusive"
    assert "the speed of eth0 is not known" in management.note
    # A veth reports 10000 at any real rate: only the rate of its queue counts.
    veth = interface("fab0", "10.2.0.2", kind=Kind.VIRTUAL)
    shaped = replace(veth, shaped_mbits_s=400_000.0)
    for one, found in ((veth, {"gpu1": "inconclusive"}), (shaped, {})):
        survey = with_facts(healthy(), 1, interfaces=(one, eth))
        assert verdicts(InterfacesRunAtTheirSpeed, survey, spec) == found


def test_the_rate_of_a_software_rdma_port_is_not_the_rate_of_its_link() -> None:
    """Soft-iWARP reports a port of 2.5 Gb/sec on any interface."""
    port = rdma_port("iWARP", device="siw0", rate_gbits_s=2.5)
    survey = everywhere(healthy(2), port, interfaces=(interface("fab0", "10.2.0.1"),))
    assert verdicts(InterfacesRunAtTheirSpeed, survey, promising("{speed: {}}")) == {}
    roce = promising("{speed: {}}", "roce")
    assert set(verdicts(InterfacesRunAtTheirSpeed, survey, roce).values()) == {"fail"}


@pytest.mark.parametrize(("named", "slow"), [("bond0", "bond0"), ("mlx5_bond_0", "mlx5_bond_0:1")])
def test_the_speed_of_a_bond_is_that_of_all_its_nics(named: str, slow: str) -> None:
    spec = promising("{speed: {}}", "roce", named)
    nic = interface("fab0", "", master="bond0", pci_address=PHYSICAL)
    for speed, found in ((400_000, {}), (200_000, {"gpu0": f"gpu0 {slow} (200000 Mbit/s)"})):
        bond = interface("bond0", "10.2.0.1", kind=Kind.BOND, speed_mbits_s=speed, slaves=("fab0",))
        port = rdma_port("RoCE", device="mlx5_bond_0", rate_gbits_s=200.0)
        survey = everywhere(healthy(1), port, interfaces=(bond, nic))
        assert culprits(InterfacesRunAtTheirSpeed, survey, spec) == found


def test_the_smallest_of_several_wrong_mtus_is_named(spec: Spec) -> None:
    """More than is promised is wrong too."""
    found = with_interface(healthy(), 1, "fab0", mtu_bytes=9216)
    assert culprits(InterfacesHaveTheirMtu, found, spec) == {"gpu1": "gpu1 fab0 (MTU 9216)"}
    worse = with_interface(found, 1, "fab1", mtu_bytes=1500)
    assert culprits(InterfacesHaveTheirMtu, worse, spec) == {"gpu1": "gpu1 fab1 (MTU 1500)"}
    half_read = with_interface(worse, 1, "fab0", mtu_bytes=None)
    assert culprits(InterfacesHaveTheirMtu, half_read, spec) == {"gpu1": "gpu1 fab1 (MTU 1500)"}


def test_spare_ports_without_a_cable_are_no_fault() -> None:
    """The second ports of all cards match the pattern, and no node uses them."""
    promised = "{interfaces: {}, mtu: {networks: [fabric]}, reachable: {networks: [fabric]}}"
    spec = promising(promised, interfaces='"fab*"', nics=2)
    survey = healthy()
    spare = interface("fab00", "", carrier=False, mtu_bytes=1500, speed_mbits_s=None)
    for node in survey.nodes:
        there = (spare, *(node.machine.interfaces or ()))
        survey = with_facts(survey, node.index, interfaces=there)
    for judge in (InterfacesAreUp, InterfacesHaveTheirMtu, EveryNodeIsReached):
        assert verdicts(judge, survey, spec) == {}, judge
    path = cut(survey, [(0, 1), (1, 0)])
    both = dict.fromkeys(("gpu0", "gpu1"), "path between gpu0 and gpu1")
    assert culprits(EveryNodeIsReached, path, spec) == both
    lost = cut(survey, [e for n in range(3) for e in ((n, 3), (3, n))])
    assert culprits(EveryNodeIsReached, lost, spec).keys() == {"gpu3"}
    down = (spare, interface("fab0", "10.2.0.4", carrier=False), interface("eth0", "10.1.0.4"))
    lost = with_facts(lost, 3, interfaces=down)
    assert culprits(EveryNodeIsReached, lost, spec) == {"gpu3": "gpu3: fab0 has no carrier"}


PHYSICAL, SECOND, VIRTUAL = "0000:17:00.0", "0000:18:00.0", "0000:17:00.2"
ON_PCI = PciTree(
    functions=(
        PciFunction(address=PHYSICAL),
        PciFunction(address=VIRTUAL, physical_function=PHYSICAL),
        PciFunction(address=SECOND),
    )
)


@pytest.mark.parametrize(
    "shares",
    [
        interface("fab0.100", "10.3.0.1", kind=Kind.VIRTUAL),
        interface("fab0v0", "10.3.0.1", pci_address=VIRTUAL),
        interface("fab9", "", master="fab0"),
    ],
    ids=["VLAN", "virtual function", "port"],
)
def test_what_shares_the_wire_of_a_nic_is_not_a_second_nic(shares: Interface) -> None:
    spec = promising("{interfaces: {}}", interfaces='"fab*"', nics=2)
    first = interface("fab0", "10.2.0.1", pci_address=PHYSICAL)
    second = interface("fab1", "10.4.0.1", pci_address=SECOND)
    control = interface("eth0", "10.1.0.1")
    for other, found in ((second, {}), (replace(second, carrier=False), {"gpu0": "fail"})):
        there = (first, shares, other, control)
        survey = with_facts(healthy(1), 0, interfaces=there, pci=ON_PCI)
        assert verdicts(InterfacesAreUp, survey, spec) == found


def test_interfaces_that_management_names_are_counted_by_name() -> None:
    spec, names = INTERFACES, ("eth0", "eth0.10", "eth1")
    assert spec.management is not None
    management = spec.management.model_copy(update={"interfaces": names})
    spec = spec.model_copy(update={"management": management})
    vlan = interface("eth0.10", "10.3.0.1", kind=Kind.VIRTUAL)
    for up, found in ((True, {}), (False, {"gpu0": "gpu0 eth0.10 has no carrier"})):
        there = (*USUAL, interface("eth1", "", master="eth0"), replace(vlan, carrier=up))
        survey = with_facts(healthy(1), 0, interfaces=there)
        assert culprits(InterfacesAreUp, survey, spec) == found


def test_the_port_of_a_virtual_function_does_not_stand_for_one_that_is_down() -> None:
    spec = promising("{rdma: {}}", "roce", '"mlx5_*"', nics=2)
    roce = rdma_port("RoCE", ("RoCE v2",))
    places = {"mlx5_0": PHYSICAL, "mlx5_1": SECOND, "mlx5_2": VIRTUAL}
    for state, found in (("ACTIVE", {}), ("DOWN", {"gpu0": "gpu0 mlx5_1:1 DOWN"})):
        devices = tuple(
            RdmaDevice(name=name, ports=(replace(roce, device=name),), pci_address=at)
            for name, at in places.items()
        )
        down = replace(devices[1], ports=(replace(roce, device="mlx5_1", state=state),))
        devices = (devices[0], down, devices[2])
        survey = with_facts(healthy(1), 0, rdma=devices, pci=ON_PCI)
        assert culprits(RdmaPortsAreActive, survey, spec) == found
        # A pod that has virtual functions is shown the devices of the whole machine.
        opened = tuple(VerbsDevice(f"uverbs{n}", f"mlx5_{n}") for n in (1, 2))
        survey = with_facts(survey, 0, verbs=opened)
        assert culprits(RdmaDevicesCanBeOpened, survey, spec).keys() == found.keys()


def test_a_port_that_is_down_is_named_before_the_spare_ones() -> None:
    spec = promising("{rdma: {}}", "infiniband", '"mlx5_*"')
    spares = [rdma_port(device=f"mlx5_{n}", state="DOWN") for n in range(6)]
    used = rdma_port(device="mlx5_9")
    survey = everywhere(healthy(3), *spares, used, interfaces=())
    down = with_facts(survey, 1, rdma=devices_of(*spares, replace(used, state="INIT")))
    [culprit] = culprits(RdmaPortsAreActive, down, spec).values()
    assert culprit.startswith("gpu1 mlx5_9:1 INIT, mlx5_0:1 DOWN, ")


def test_the_nic_below_a_vlan_may_have_a_larger_mtu() -> None:
    spec = promising("{mtu: {networks: [fabric]}}", "roce", "mlx5_0")
    below = interface("fab0", "", mtu_bytes=9216)
    vlan = interface("fab0.100", "10.2.0.1", kind=Kind.VIRTUAL)
    survey = everywhere(healthy(2), rdma_port("RoCE"), interfaces=(below, vlan))
    assert verdicts(InterfacesHaveTheirMtu, survey, spec) == {}
    small = everywhere(survey, rdma_port("RoCE"), interfaces=(below, replace(vlan, mtu_bytes=1500)))
    assert culprits(InterfacesHaveTheirMtu, small, spec)["gpu0"] == "gpu0 fab0.100 (MTU 1500)"
