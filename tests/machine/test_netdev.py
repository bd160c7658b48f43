"""Network interfaces, compared with the output of the ip tool on the same machines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.machine.netdev import (
    Interface,
    Kind,
    live,
    physical_below,
    rate_mbits_s,
    read_interfaces,
    rests_on_hardware,
)
from tests.recorded import NAMES, Recorded
from tests.trees import NIC, Tree, gpu_server


def _interfaces(root: Path) -> dict[str, Interface]:
    return {interface.name: interface for interface in read_interfaces(root) or ()}


@pytest.mark.parametrize("name", NAMES)
def test_interfaces_are_as_the_ip_tool_shows_them(recorded: Recorded, name: str) -> None:
    root = recorded(name)
    links = json.loads((root / "cmd/ip-link.json").read_text())
    found = _interfaces(root)
    assert set(found) == {link["ifname"] for link in links}
    for link in links:
        interface = found[link["ifname"]]
        assert interface.mtu_bytes == link["mtu"]
        assert (interface.operstate or "").upper() == link["operstate"]
        assert interface.admin_up == ("UP" in link["flags"])
        assert (interface.carrier is True) == ("LOWER_UP" in link["flags"])
        assert interface.address == link["address"]
        if link.get("parentbus") == "pci":
            assert interface.pci_address == link["parentdev"]
        else:
            assert (interface.pci_address is not None) == (link.get("parentbus") == "virtio")


def test_numa_nodes_of_nics_even_if_the_device_shows_none(recorded: Recorded) -> None:
    plain = _interfaces(recorded("numa2-e1000e-aligned"))
    assert (plain["eth0"].numa_node, plain["eth1"].numa_node) == (1, 0)
    both = _interfaces(recorded("numa2-both-nics-on-node1"))
    assert (both["eth0"].numa_node, both["eth1"].numa_node) == (1, 1)
    virtio = _interfaces(recorded("numa2-virtio-aligned-rxe-up"))
    assert (virtio["eth0"].numa_node, virtio["eth1"].numa_node) == (1, 0)
    assert virtio["eth0"].pci_address == "0000:61:00.0"
    for name in ("numa1-plain", "numa2-nics-no-affinity"):
        assert _interfaces(recorded(name))["eth0"].numa_node is None, "−1 is unknown"


def test_an_interface_that_is_down_has_neither_speed_nor_carrier(recorded: Recorded) -> None:
    found = _interfaces(recorded("numa2-e1000e-rxe-port-down"))
    down, up = found["eth0"], found["eth1"]
    assert (down.up, down.admin_up, down.carrier, down.speed_mbits_s) == (False, False, None, None)
    assert (up.up, up.speed_mbits_s, up.kind) == (True, 1000, Kind.PHYSICAL)
    assert found["lo"].up is True
    assert (found["lo"].kind, found["lo"].operstate) == (Kind.LOOPBACK, "unknown")


def test_veth_reports_what_it_does_not_carry(recorded: Recorded) -> None:
    veth = _interfaces(recorded("numa1-veth-rxe"))["veth0"]
    assert (veth.speed_mbits_s, veth.kind, veth.numa_node) == (10000, Kind.VIRTUAL, None)


def test_counters_of_a_recorded_interface(recorded: Recorded) -> None:
    eth1 = _interfaces(recorded("numa2-e1000e-siw"))["eth1"]
    assert (eth1.sent_bytes, eth1.sent_packets, eth1.received_bytes) == (516, 6, 0)
    assert eth1.errors["tx_dropped"] == 0


def test_values_that_are_no_speed(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name, speed in {"a": -1, "b": 4294967295, "c": 0, "d": 100000}.items():
        tree.interface(name, speed=speed)
    assert [i.speed_mbits_s for i in read_interfaces(tmp_path) or ()] == [None, None, None, 100000]


def test_lower_interfaces_of_bonds_bridges_and_vlans(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.pci("pci0000:10/0000:10:01.0", NIC, "0x15b3", 1, "4-7")
    tree.interface("eth0", "pci0000:10/0000:10:01.0")
    tree.interface("eth1", carrier=0, operstate="down")
    tree.interface("bond0")
    tree.write("sys/devices/virtual/net/bond0/bonding/slaves", "eth0 eth1")
    tree.link("sys/class/net/eth0/master", "sys/devices/virtual/net/bond0")
    tree.interface("br0")
    (tree.root / "sys/devices/virtual/net/br0/bridge").mkdir()
    tree.write("sys/devices/virtual/net/br0/brif/veth9/port_no", 1)
    tree.interface("bond0.100")
    tree.link("sys/devices/virtual/net/bond0.100/lower_bond0", "sys/devices/virtual/net/bond0")
    tree.write("sys/class/net/bonding_masters", "bond0")
    found = _interfaces(tmp_path)
    assert "bonding_masters" not in found
    assert (found["bond0"].kind, found["bond0"].slaves) == (Kind.BOND, ("eth0", "eth1"))
    assert found["eth0"].master == "bond0"
    assert (found["br0"].kind, found["br0"].slaves) == (Kind.BRIDGE, ("veth9",))
    assert (found["bond0.100"].slaves, found["bond0.100"].parent) == (("bond0",), "bond0")
    assert found["eth1"].up is False


def test_ipoib_knows_its_rdma_device(tmp_path: Path) -> None:
    gpu_server(tmp_path)
    ib3 = _interfaces(tmp_path)["ib3"]
    assert (ib3.kind, ib3.numa_node) == (Kind.IPOIB, 0)
    assert (ib3.mtu_bytes, ib3.speed_mbits_s) == (4092, 400000)


def test_a_missing_sys_is_unknown_not_empty(tmp_path: Path) -> None:
    assert read_interfaces(tmp_path) is None


def test_this_machine_has_a_loopback() -> None:
    assert _interfaces(Path("/"))["lo"].kind is Kind.LOOPBACK


def test_speeds_are_accepted_only_for_interfaces_on_hardware(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for i in (0, 1):
        path = f"pci0000:00/0000:00:0{i + 1}.0"
        tree.pci(path, NIC, "0x15b3", 0, "0")
        tree.interface(f"ens{i}", path, speed=100000)
    tree.interface("bond0", speed=200000)
    tree.write("sys/devices/virtual/net/bond0/bonding/slaves", "ens0 ens1")
    for name, lower in (("bond0.100", "bond0"), ("vxlan7", "ens0"), ("vlan9", "veth0")):
        tree.interface(name, speed=100000)
        tree.link(
            f"sys/devices/virtual/net/{name}/lower_{lower}", f"sys/devices/virtual/net/{lower}"
        )
    tree.interface("veth0", speed=400000)
    for name, ports in (("br0", ("ens1", "veth0")), ("br1", ("veth0",)), ("bond1", ())):
        tree.interface(name, speed=400000)
        tree.write(f"sys/devices/virtual/net/{name}/brport", "")
        for port in ports:
            tree.write(f"sys/devices/virtual/net/{name}/brif/{port}/port_no", "0x1")
        kind = "bonding/slaves" if name == "bond1" else "bridge/bridge_id"
        tree.write(f"sys/devices/virtual/net/{name}/{kind}", "")
    tree.interface("lo", type=772)
    known = _interfaces(tree.root)
    real = {name for name, one in known.items() if rests_on_hardware(one, known)}
    assert real == {"ens0", "ens1", "bond0", "bond0.100", "vxlan7", "br0"}
    rates = {name: rate_mbits_s(one, known) for name, one in known.items()}
    assert rates == dict.fromkeys(known) | dict.fromkeys(real, 100000) | {"bond0": 200000}
    assert {name: physical_below(one, known) for name, one in known.items()} == {
        "ens0": ("ens0",),
        "ens1": ("ens1",),
        "bond0": ("ens0", "ens1"),
        "bond0.100": ("ens0", "ens1"),
        "vxlan7": ("ens0",),
        "br0": ("ens1",),
        **dict.fromkeys(("vlan9", "veth0", "br1", "bond1", "lo"), ()),
    }


def test_a_child_of_ipoib_is_on_the_port_of_its_parent(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    nic = "pci0000:00/0000:00:01.0"
    tree.pci(nic, "0x020700", "0x15b3", 0, "0")
    for name in ("ib0", "ib0.8001"):
        tree.interface(name, nic, type=32)
    known = _interfaces(tree.root)
    assert physical_below(known["ib0.8001"], known) == ("ib0",)
    assert rests_on_hardware(known["ib0.8001"], known)


def test_addresses_with_labels_belong_to_their_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(text: str) -> SimpleNamespace:
        return SimpleNamespace(family=socket.AF_INET, address=text)

    listing = {"eth0": [address("10.1.0.1")], "eth0:1": [address("10.9.0.1")], "ib0": []}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: listing)
    found = live(Interface(name=name, kind=Kind.PHYSICAL) for name in ("eth0", "ib0"))
    assert [one.addresses for one in found] == [("10.1.0.1", "10.9.0.1"), ()]


def test_offloads_are_those_that_the_kernel_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    [loopback, absent] = live(Interface(name=n, kind=Kind.LOOPBACK) for n in ("lo", "absent0"))
    assert loopback.offloads["gso"] is True
    assert "tso" in loopback.offloads
    assert absent.offloads == {}


def test_all_branches_below_an_interface_are_followed() -> None:
    below = {
        "br0": ("bond0", "bond1"),
        "bond0": ("a", "b"),
        "bond1": ("c",),
        "a": (),
        "b": (),
        "c": (),
    }
    known = {
        name: Interface(name=name, kind=Kind.BOND if slaves else Kind.PHYSICAL, slaves=slaves)
        for name, slaves in below.items()
    }
    assert physical_below(known["br0"], known) == ("a", "b", "c")
