from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.discover.networks import networks_of, shared_addresses
from pytest_mnode.discover.nodes import FoundNetwork, FoundNode, Networks
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.rdma import RdmaDevice
from tests.discover.made import (
    DOWN,
    MACHINE,
    cluster_of,
    device,
    efa_node,
    gpus,
    ib_node,
    nic,
    roce_node,
    tcp_node,
)
from tests.trees import GPU, MELLANOX, NIC, NVIDIA, SWITCH_PORT, Tree

CONTROL = "10.1.0.1"


def fabric_of(machine: Machine) -> FoundNetwork:
    fabric = networks_of(FoundNode("node0", CONTROL, machine)).fabric
    assert fabric is not None
    return fabric


def found_with(
    nics: tuple[Interface, ...] | None = (),
    rdma: tuple[RdmaDevice, ...] = (),
    accelerators: int = 0,
) -> Networks:
    machine = replace(MACHINE, interfaces=nics, rdma=rdma, **gpus(accelerators))
    mtus = {port.name: 4096 for port in machine.ports}
    return networks_of(FoundNode("node0", CONTROL, replace(machine, active_mtus=mtus)))


def fabric_with(
    nics: tuple[Interface, ...] = (), rdma: tuple[RdmaDevice, ...] = (), accelerators: int = 0
) -> FoundNetwork:
    fabric = found_with(nics, rdma, accelerators).fabric
    assert fabric is not None
    return fabric


def test_of_rdma_the_ports_beside_accelerators_are_the_fabric() -> None:
    networks = networks_of(FoundNode("node0", CONTROL, ib_node(0)))
    assert networks.fabric is not None
    assert networks.fabric.kind == "infiniband"
    assert networks.fabric.interfaces == tuple(f"mlx5_{i}" for i in range(8))
    assert networks.fabric.rate_mbits_s == 400_000
    assert any("mlx5_8 is at PCI distance SYS" in text for text in networks.fabric.not_chosen)
    assert networks.management is not None
    assert networks.management.interfaces == ("eno1",)


def test_a_port_that_is_down_is_left_out_and_named() -> None:
    ports = (device("mlx5_0"), device("mlx5_1", state="DOWN"))
    fabric = fabric_with(rdma=ports, accelerators=8)
    assert fabric.nics == 1
    assert "mlx5_1:1 is DOWN" in fabric.not_chosen


@pytest.mark.parametrize(("layer", "kind"), [("RoCE", "roce"), ("InfiniBand", "infiniband")])
def test_rdma_needs_accelerators_and_other_ranks_use_tcp(layer: str, kind: str) -> None:
    nics = (
        nic("eth0", CONTROL, speed_mbits_s=1000),
        nic("eth1", "10.2.0.1", speed_mbits_s=100_000),
    )
    ports = (device("mlx5_0", layer, netdevs=("eth1",), rate_gbits_s=100.0),)
    with_them, without = fabric_with(nics, ports, accelerators=8), fabric_with(nics, ports)
    assert (with_them.kind, with_them.interfaces) == (kind, ("mlx5_0",))
    assert (without.kind, without.interfaces) == ("ethernet", ("eth1",))
    assert any("mlx5_0 could do RDMA" in text for text in without.not_chosen)


@pytest.mark.parametrize(
    "port",
    [device("rxe0", "RoCE", virtual=True), device("irdma0", "iWARP", netdevs=("eth1",))],
    ids=["software", "iWARP"],
)
def test_neither_software_rdma_nor_iwarp_is_a_fabric(port: RdmaDevice) -> None:
    nics = (nic("eth0", CONTROL), nic("eth1", "10.2.0.1", speed_mbits_s=100_000))
    fabric = fabric_with(nics, (port,), accelerators=8)
    assert (fabric.kind, fabric.interfaces) == ("ethernet", ("eth1",))


def test_the_rdma_nic_of_the_control_network_is_not_the_fabric() -> None:
    nics = (nic("eth0", CONTROL),)
    ports = tuple(device(f"mlx5_{i}", "RoCE", netdevs=("eth0",) if not i else ()) for i in range(3))
    networks = found_with(nics, ports, accelerators=2)
    assert networks.fabric is not None
    assert networks.fabric.interfaces == ("mlx5_1", "mlx5_2")
    assert networks.management is not None


def test_efa_is_recognised_by_its_driver() -> None:
    networks = networks_of(FoundNode("node0", CONTROL, efa_node(0)))
    assert networks.fabric is not None
    assert (networks.fabric.kind, networks.fabric.nics) == ("efa", 32)
    assert networks.management is None
    assert networks.no_management == "ens32 carries control traffic, and its rate is unknown"


def test_each_rail_of_roce_has_its_interface() -> None:
    fabric = fabric_of(roce_node(0))
    assert (fabric.nics, fabric.mtu_bytes, fabric.addressed) == (8, 9000, True)


@pytest.mark.parametrize(("maker", "kind"), [("0x17db", "cxi"), (MELLANOX, "ethernet")])
def test_slingshot_is_recognised_by_the_maker_of_its_nics(
    tmp_path: Path, maker: str, kind: str
) -> None:
    tree = Tree(tmp_path)
    tree.pci("pci0009:00/0009:01:00.0", GPU, NVIDIA)
    for at, (name, made) in enumerate((("hsn0", maker), ("nmn0", "0x8086"))):
        tree.pci(f"pci0000:1{at}/0000:1{at}:00.0", NIC, made)
        tree.interface(name, f"pci0000:1{at}/0000:1{at}:00.0", speed=200000 >> 8 * at)
    machine = Machine.read(tree.root)
    interfaces = tuple(
        replace(one, addresses=(f"10.{at}.0.1",)) for at, one in enumerate(machine.interfaces or ())
    )
    fabric = fabric_of(replace(machine, interfaces=interfaces))
    assert (fabric.kind, fabric.interfaces) == (kind, ("hsn0",))


def test_the_fastest_tcp_interface_is_the_fabric_but_no_bridge() -> None:
    networks = networks_of(FoundNode("node0", CONTROL, tcp_node(0)), frozenset({"172.17.0.1"}))
    assert networks.fabric is not None
    assert networks.fabric.interfaces == ("eth1",)
    assert networks.fabric.rate_mbits_s == 100_000
    assert networks.management is not None
    assert networks.management.rate_mbits_s == 1000


@pytest.mark.parametrize(
    ("nics", "chosen", "rate"),
    [
        # Equally fast: the interface with the nodes' addresses is for control.
        ((nic("eth0", CONTROL), nic("eth1", "10.2.0.1")), ("eth1",), 25_000),
        # A node with one NIC uses it for everything.
        ((nic("eth0", CONTROL),), ("eth0",), 25_000),
        # A virtual machine's NIC reports no rate.
        ((nic("eth0", CONTROL), nic("eth1", "10.2.0.1", speed_mbits_s=None)), ("eth1",), None),
        ((nic("eth0", CONTROL, speed_mbits_s=None),), ("eth0",), None),
        # A port of a bond is not a separate link.
        (
            (nic("bond0", CONTROL, speed_mbits_s=50_000), nic("eth1", "10.2.0.1", master="bond0")),
            ("bond0",),
            50_000,
        ),
        # An interface that is down carries no traffic.
        ((nic("eth0", CONTROL), nic("eth1", "10.2.0.1", **DOWN)), ("eth0",), 25_000),
        # Emulated links have no hardware, but a queue that limits their rate.
        (
            (
                nic("mgmt0", CONTROL, kind=Kind.VIRTUAL, shaped_mbits_s=20.0),
                nic("fab0", "10.2.0.1", kind=Kind.VIRTUAL, shaped_mbits_s=200.0),
            ),
            ("fab0",),
            200,
        ),
    ],
)
def test_the_chosen_interface(
    nics: tuple[Interface, ...], chosen: tuple[str, ...], rate: float | None
) -> None:
    fabric = fabric_with(nics)
    assert fabric.interfaces == chosen
    assert fabric.rate_mbits_s == rate


def on(wires: str, name: str, address: str = "", **changes: Any) -> Interface:
    """An interface built on others: a VLAN, a macvlan, a bond."""
    made = {"kind": Kind.VIRTUAL, "speed_mbits_s": 100_000, **changes}
    return nic(name, address, slaves=tuple(wires.split()), **made)


def test_interfaces_built_on_one_nic_count_as_one() -> None:
    nics = (
        nic("eth0", CONTROL),
        nic("eth1", speed_mbits_s=100_000),
        on("eth1", "eth1.100", "10.2.0.1"),
        on("eth1", "eth1.200", "10.3.0.1"),
        on("eth1", "vlan300", "10.4.0.1"),
    )
    fabric = fabric_with(nics)
    assert (fabric.interfaces, fabric.nics) == (("eth1.100",), 1)
    assert "eth1.200 is on the wire of eth1.100" in fabric.not_chosen
    assert "vlan300 is on the wire of eth1.100" in fabric.not_chosen


def test_an_interface_is_chosen_over_those_built_on_it() -> None:
    made = on("eth1", "a100", "10.3.0.1")
    fabric = fabric_with((made, nic("eth1", "10.2.0.1", speed_mbits_s=100_000)))
    assert fabric.interfaces == ("eth1",)
    assert fabric.not_chosen == ("a100 is on the wire of eth1",)


def test_one_nic_is_not_two_networks() -> None:
    both = ("bond0", CONTROL, "bond0.200", "10.3.0.1")
    for control, its, other, address in (both, ("bond0.200", CONTROL, "bond0", "10.3.0.1")):
        bound = (nic("eth0", master="bond0"), nic("eth1", master="bond0"))
        nics = (on("eth0 eth1", control, its), on("eth0 eth1", other, address), *bound)
        for order in (nics, nics[::-1]):
            networks = found_with(order)
            assert networks.fabric is not None
            assert networks.fabric.interfaces == (control,)
            assert networks.fabric.not_chosen == (f"{other} is on the wire of {control}",)
            assert networks.management is None
            assert "also carries control traffic" in networks.no_management


@pytest.mark.parametrize("made", ["bond0", "eth0.100"])
def test_rdma_is_addressed_by_what_is_made_of_its_nic(made: str) -> None:
    below = nic("eth0", master=made if made == "bond0" else None, mtu_bytes=9216)
    nics = (nic("eno1", CONTROL), below, on("eth0", made, "10.2.0.1", mtu_bytes=9000))
    fabric = fabric_with(nics, (device("mlx5_0", "RoCE", netdevs=(made, "eth0")),), accelerators=2)
    assert (fabric.addressed, fabric.mtu_bytes) == (True, 9000)


def test_a_control_interface_built_on_an_rdma_nic_belongs_to_that_nic() -> None:
    nics = tuple(nic(f"eth{i}") for i in range(3))
    nics += (on("eth0", "eth0.7", CONTROL),)
    ports = tuple(device(f"mlx5_{i}", "RoCE", netdevs=(f"eth{i}",)) for i in range(3))
    networks = found_with(nics, ports, accelerators=2)
    assert networks.fabric is not None
    assert networks.fabric.interfaces == ("mlx5_1", "mlx5_2")
    assert networks.management is not None
    alone = found_with(nics, ports[:1], accelerators=2)
    assert alone.fabric is not None
    assert alone.fabric.interfaces == ("mlx5_0",)
    assert alone.management is None
    assert alone.no_management == "eth0.7 of the fabric also carries control traffic"


@pytest.mark.parametrize("shown", [2044, 4092])
def test_the_infiniband_mtu_is_that_of_ipoib_only_if_there_is_ipoib(shown: int) -> None:
    def fabric(*addresses: str) -> FoundNetwork:
        nics = tuple(
            nic(f"ib{i}", address, kind=Kind.IPOIB, carrier=bool(address), mtu_bytes=shown)
            for i, address in enumerate(addresses)
        )
        ports = tuple(device(f"mlx5_{i}", netdevs=(f"ib{i}",)) for i in range(2))
        return fabric_with((nic("eno1", CONTROL), *nics), ports, accelerators=2)

    assert fabric("", "").mtu_bytes == 4096
    assert fabric("10.2.0.1", "").mtu_bytes == 4096
    assert fabric("10.2.0.1", "10.2.1.1").mtu_bytes == shown
    assert fabric("10.2.0.1", "10.2.1.1").addressed
    assert not fabric("10.2.0.1", "").addressed


@pytest.mark.parametrize(
    ("nics", "why"),
    [
        ((), "it has no interface but loopback"),
        ((nic("eth0", **DOWN),), "eth0 is down"),
        ((nic("eth0"),), "eth0 has no address"),
        ((nic("veth0", "10.9.0.1", kind=Kind.VIRTUAL),), "veth0 is virtual"),
        ((nic("eth0", "fe80::1%eth0"),), "eth0 has no address"),
        (None, "its interfaces cannot be read"),
    ],
)
def test_reasons_why_there_is_no_fabric(nics: tuple[Interface, ...] | None, why: str) -> None:
    networks = found_with(nics)
    assert networks.fabric is None
    assert why in networks.no_fabric


def test_interfaces_with_addresses_shared_by_nodes_are_no_links() -> None:
    nodes = cluster_of(tcp_node, 3).nodes
    assert shared_addresses(nodes) == {"172.17.0.1"}


def test_neither_virtual_functions_nor_their_representors_are_nics(tmp_path: Path) -> None:
    tree, bridge = Tree(tmp_path), "pci0000:10/0000:10:01.0"
    physical, virtual = f"{bridge}/0000:11:00.0", f"{bridge}/0000:11:00.1"
    tree.pci(bridge, SWITCH_PORT, "0x1000")
    tree.pci(f"{bridge}/0000:12:00.0", GPU, NVIDIA, 0)
    for function, name in ((physical, "ens1"), (virtual, "ens1v0")):
        tree.pci(function, NIC, MELLANOX, 0)
        tree.interface(name, function, speed=400000, mtu=9000)
        gids = [("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", name)]
        rdma = "mlx5_0" if name == "ens1" else "mlx5_1"
        tree.rdma(rdma, function, gids=gids, link_layer="Ethernet")
    tree.link(f"sys/devices/{virtual}/physfn", f"sys/devices/{physical}")
    tree.write(f"sys/devices/{physical}/net/ens1/phys_port_name", "p0")
    tree.interface("ens1_0", physical, mtu=1500, phys_port_name="pf0vf0")
    machine = Machine.read(tree.root)
    assert [device.netdevs for device in machine.rdma or ()] == [("ens1",), ("ens1v0",)]
    addressed = [
        replace(one, addresses=("10.2.0.1",) if one.name == "ens1" else ())
        for one in machine.interfaces or ()
    ]
    fabric = fabric_of(replace(machine, interfaces=tuple(addressed)))
    assert (fabric.interfaces, fabric.nics) == (("mlx5_0",), 1)
    assert "mlx5_1 is a virtual function" in fabric.not_chosen


GUID = "fc4c:ea03:00f9:4230"
LANES: Any = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}


def twins(
    root: Path, cables: int, *, layer: str = "Ethernet", width: int = 4, wires: bool = True
) -> FoundNetwork:
    """A card of two ports with two functions in each of two slots, as for two sockets."""
    tree = Tree(root)
    tree.pci("pci000f:00/000f:00:00.0", SWITCH_PORT, NVIDIA)
    tree.pci("pci000f:00/000f:00:00.0/000f:01:00.0", GPU, NVIDIA)
    for domain in ("0000", "0002"):
        bridge = f"pci{domain}:00/{domain}:00:00.0"
        tree.pci(bridge, SWITCH_PORT, NVIDIA, max_link_width=width, **LANES)
        for port in (0, 1):
            path, up = f"{bridge}/{domain}:01:00.{port}", port < cables
            tree.pci(path, NIC, MELLANOX, current_link_width=width, max_link_width=16, **LANES)
            name = f"en{domain}f{port}"
            if layer == "Ethernet":
                ids = {"phys_port_name": f"p{port}", "phys_switch_id": "30f400ea4cfc"}
                state: dict[str, str | int] = {"speed": 200000} if up else {"operstate": "down"}
                tree.interface(name, path, mtu=9000, **state, **(ids if wires else {}))
            tree.rdma(
                f"mlx{domain}f{port}",
                path,
                gids=[("fe80::1", "RoCE v2", name)] if layer == "Ethernet" else [],
                link_layer=layer,
                rate="200 Gb/sec (4X HDR)",
                state="4: ACTIVE" if up else "1: DOWN",
                sys_image_guid=GUID,
            )
    return fabric_of(Machine.read(tree.root))


@pytest.mark.parametrize("layer", ["Ethernet", "InfiniBand"])
@pytest.mark.parametrize("wires", [True, False])
def test_two_functions_of_one_wire_share_its_rate(tmp_path: Path, layer: str, wires: bool) -> None:
    fabric = twins(tmp_path, 1, layer=layer, wires=wires)
    assert (fabric.nics, fabric.rate_mbits_s) == (2, 100_000)
    assert fabric.why.endswith(", 2 PCI functions to each wire of 200 Gbit/s")


@pytest.mark.parametrize(
    ("cables", "width", "rate_mbits_s", "limit"),
    [
        (2, 4, 53_000, ", limited by PCIe x4 at 32 GT/s for 2 functions"),
        (2, 16, 100_000, ""),
        (1, 1, 100_000, ""),  # a link that a virtual machine makes up
    ],
)
def test_functions_of_one_slot_share_its_link(
    tmp_path: Path, cables: int, width: int, rate_mbits_s: int, limit: str
) -> None:
    fabric = twins(tmp_path, cables, width=width)
    assert (fabric.nics, fabric.rate_mbits_s) == (2 * cables, rate_mbits_s)
    assert fabric.why.endswith(limit)
    assert ("PCIe" in fabric.why) is bool(limit)


@pytest.mark.parametrize(
    ("gtransfers_s", "width", "rate_mbits_s"),
    [(8, 16, 106_000), (16, 16, 200_000), (16, 8, 106_000), (32, 8, 200_000)],
)
def test_the_rate_of_a_nic_is_at_most_that_of_its_slot(
    tmp_path: Path, gtransfers_s: int, width: int, rate_mbits_s: int
) -> None:
    tree, bridge = Tree(tmp_path), "pci0000:10/0000:10:01.0"
    speed = f"{gtransfers_s}.0 GT/s PCIe"
    tree.pci(bridge, SWITCH_PORT, "0x1000", max_link_speed=speed, max_link_width=width)
    tree.pci(f"{bridge}/0000:12:00.0", GPU, NVIDIA, 0)
    for port in (0, 1):  # an ordinary card of two ports, of which one is used
        path = f"{bridge}/0000:11:00.{port}"
        tree.pci(path, NIC, MELLANOX, 0, max_link_speed="32.0 GT/s PCIe", max_link_width=16)
        tree.interface(
            f"ens1f{port}", path, speed=200000, phys_port_name=f"p{port}", phys_switch_id="30f4"
        )
        tree.rdma(
            f"mlx5_{port}",
            path,
            gids=[("fe80::1", "RoCE v2", f"ens1f{port}")],
            link_layer="Ethernet",
            rate="200 Gb/sec (4X HDR)",
            state="4: ACTIVE" if port == 0 else "1: DOWN",
            sys_image_guid=GUID,
        )
    fabric = fabric_of(Machine.read(tree.root))
    assert (fabric.nics, fabric.rate_mbits_s) == (1, rate_mbits_s)


def test_twin_functions_share_a_wire_for_tcp_too() -> None:
    names = {"enp1s0f0": "10.2.0.1", "enP2p1s0f0": "10.3.0.1"}
    nics = tuple(nic(n, a, speed_mbits_s=200_000, wire="30f4 p0") for n, a in names.items())
    fabric = fabric_with((nic("eno1", CONTROL), *nics))
    assert (fabric.nics, fabric.rate_mbits_s) == (2, 100_000)


def test_a_bond_of_functions_of_one_wire_has_the_rate_of_the_wire() -> None:
    ports = [
        nic(name, speed_mbits_s=200_000, wire="30f4 p0", master="bond0")
        for name in ("enp1s0f0", "enP2p1s0f0")
    ]
    names = tuple(one.name for one in ports)
    bond = nic("bond0", "10.2.0.1", kind=Kind.BOND, speed_mbits_s=400_000, slaves=names)
    fabric = fabric_with((nic("eno1", CONTROL), bond, *ports))
    assert (fabric.interfaces, fabric.rate_mbits_s) == (("bond0",), 200_000)
    two = [replace(one, wire=f"30f4 p{i}") for i, one in enumerate(ports)]
    assert fabric_with((nic("eno1", CONTROL), bond, *two)).rate_mbits_s == 400_000


def test_virtual_functions_of_one_card_share_its_wire(tmp_path: Path) -> None:
    """As in a pod that has two of them, and not the card's own interface."""
    tree, bridge = Tree(tmp_path), "pci0000:10/0000:10:01.0"
    tree.pci(bridge, SWITCH_PORT, "0x1000")
    tree.pci(f"{bridge}/0000:12:00.0", GPU, NVIDIA, 0)
    tree.pci(f"{bridge}/0000:11:00.0", NIC, MELLANOX, 0)
    for number in (1, 2):
        path, name = f"{bridge}/0000:11:00.{number}", f"net{number}"
        tree.pci(path, NIC, MELLANOX, 0)
        tree.link(f"sys/devices/{path}/physfn", f"sys/devices/{bridge}/0000:11:00.0")
        tree.interface(name, path, speed=400000)
        gids = [("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", name)]
        tree.rdma(f"mlx5_{number}", path, gids=gids, link_layer="Ethernet")
    fabric = fabric_of(Machine.read(tree.root))
    assert (fabric.nics, fabric.rate_mbits_s) == (2, 200_000)
