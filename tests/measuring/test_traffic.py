"""The interface that carried the measured traffic, from the kernel's counters."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.measuring.traffic import (
    LowerDevices,
    SentByNode,
    all_lower_devices,
    lower_devices_of,
    off_fabric,
)
from pytest_mnode.spec.inventory import Network

FABRIC = Network.model_validate({"interfaces": ["fab*"], "line_rate": "200 Mbit/s"})


@pytest.mark.parametrize(
    ("sent", "carrier", "share", "instead"),
    [
        ({"fab0": 990, "mgmt0": 10}, "fab0", 0.99, None),
        ({"fab0": 500, "fab1": 490, "mgmt0": 10}, "fab0", 0.99, None),
        ({f"fab{i}": 125 for i in range(8)}, "fab0", 1.0, None),  # each of several carries a share
        ({"fab0": 300, "fab1": 300, "mgmt0": 400}, "mgmt0", 0.6, None),  # part of it elsewhere
        ({"fab0": 10, "mgmt0": 990}, "mgmt0", 0.01, "mgmt0"),
        ({"fab0": 10, "eth0": 300, "eth1": 690}, "eth1", 0.01, "eth1"),
        ({"lo": 1000}, "lo", 0.0, "lo"),
        ({"fab0": 20, "eth0": 100}, None, None, None),  # RDMA: the kernel counted almost nothing
        ({}, None, None, None),
    ],
)
def test_the_interface_that_carried_the_traffic(
    sent: Mapping[str, int], carrier: str | None, share: float | None, instead: str | None
) -> None:
    node = SentByNode("node0", sent, least_bytes=980)
    assert node.carrier == carrier
    assert node.share(FABRIC) == (None if share is None else pytest.approx(share))
    assert node.off_fabric(FABRIC) == instead


def test_nodes_that_sent_over_other_interfaces() -> None:
    good = SentByNode("node0", {"fab0": 1000}, 1000)
    bad = SentByNode("node2", {"mgmt0": 1000}, 1000)
    worse = SentByNode("node3", {"lo": 1000}, 1000)
    assert off_fabric([good, good], FABRIC) is None
    assert off_fabric([good, bad], FABRIC) == "node2 sent over mgmt0 instead of fab*"
    assert off_fabric([bad, worse], FABRIC) == "all nodes sent over mgmt0, lo instead of fab*"


BOND: LowerDevices = {"bond0": ("eth2", "eth3"), "bond0.7": ("bond0",)}
BONDED = {"bond0": 990, "eth2": 500, "eth3": 495}
VLAN: LowerDevices = {"eth0.100": ("eth0",)}
IPOIB: LowerDevices = {"mlx5_0": ("ib0",)}


@pytest.mark.parametrize(
    ("interfaces", "lower_devices", "sent", "carrier", "share", "instead"),
    [
        (["bond0"], BOND, BONDED, "bond0", 0.995, None),
        (["eth2", "eth3"], BOND, BONDED, "bond0", 1.0, None),
        (["eth2"], BOND, {"bond0": 990, "eth2": 0, "eth3": 995}, "bond0", 0.0, "eth3"),
        (["eth2"], BOND, {"bond0.7": 990, "bond0": 991, "eth3": 995}, "bond0.7", 0.0, "eth3"),
        (["bond0.7"], BOND, {"bond0.7": 990, **BONDED}, "bond0.7", 0.995, None),
        (["fab0"], BOND, {"fab0": 3, **BONDED}, "bond0", 0.003, "bond0"),
        (["fab0"], BOND, {"fab0": 1990, **BONDED}, "fab0", 0.666, None),
        (["eth0.100"], VLAN, {"eth0.100": 990, "eth0": 995}, "eth0.100", 0.995, None),
        # Untagged, which is another network on the same NIC.
        (["eth0.100"], VLAN, {"eth0.100": 5, "eth0": 995}, "eth0", 0.005, "eth0"),
        (["eth0"], VLAN, {"eth0.100": 990, "eth0": 995}, "eth0.100", 1.0, None),
        (["ib0"], IPOIB, {"ib0": 990, "mlx5_0": 995}, "mlx5_0", 1.0, None),
        (["ib0"], IPOIB, {"ib0": 1, "mlx5_0": 995, "mgmt0": 5}, "mlx5_0", 0.995, None),  # RDMA
        (["mlx5_*"], IPOIB, {"ib0": 990, "mlx5_0": 995}, "mlx5_0", 1.0, None),
        (["fab0"], IPOIB, {"ib0": 990, "mlx5_0": 995, "fab0": 9}, "mlx5_0", 0.009, "mlx5_0"),
    ],
)
def test_bytes_counted_by_two_interfaces_count_once(  # noqa: PLR0917  a row of the table
    interfaces: list[str],
    lower_devices: LowerDevices,
    sent: Mapping[str, int],
    carrier: str,
    share: float,
    instead: str | None,
) -> None:
    network = Network.model_validate({"interfaces": interfaces, "line_rate": "200 Mbit/s"})
    node = SentByNode("node0", sent, least_bytes=980, lower_devices=lower_devices)
    assert node.carrier == carrier
    assert node.share(network) == pytest.approx(share, abs=0.002)
    assert node.off_fabric(network) == instead


def nic(name: str, *slaves: str, parent: str | None = None) -> Any:
    return SimpleNamespace(name=name, slaves=slaves, parent=parent)


def test_lower_devices_of_bonds_vlans_and_rdma_devices() -> None:
    nics = [nic("eth2"), nic("eth3"), nic("ib0"), nic("bond0", "eth2", "eth3")]
    nics += [nic("bond0.7", parent="bond0"), nic("fab.x", parent="fab")]
    mlx5_0: Any = SimpleNamespace(name="mlx5_0", netdevs=("ib0", "elsewhere0"))
    mlx5_1: Any = SimpleNamespace(name="mlx5_1", netdevs=())
    found = lower_devices_of(nics, [mlx5_0, mlx5_1])
    assert found == {"bond0": ("eth2", "eth3"), "bond0.7": ("bond0",), "mlx5_0": ("ib0",)}
    assert all_lower_devices("bond0.7", found) == {"bond0", "eth2", "eth3"}
    assert all_lower_devices("ib0", found) == set()
