"""Which interfaces count the same bytes, from what the kernel says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_mnode.measuring.wires import all_beneath, beneath_of


def nic(name: str, *slaves: str, parent: str | None = None) -> Any:
    return SimpleNamespace(name=name, slaves=slaves, parent=parent)


def test_bonds_vlans_and_rdma_devices_have_others_beneath_them() -> None:
    nics = [
        *(nic("eth2"), nic("eth3"), nic("bond0", "eth2", "eth3")),
        *(nic("bond0.7", parent="bond0"), nic("fab.x", parent="fab"), nic("ib0")),
    ]
    devices: list[Any] = [
        SimpleNamespace(name="mlx5_0", netdevs=("ib0", "elsewhere0")),
        SimpleNamespace(name="mlx5_1", netdevs=()),
    ]
    found = beneath_of(nics, devices)
    assert found == {"bond0": ("eth2", "eth3"), "bond0.7": ("bond0",), "mlx5_0": ("ib0",)}
    assert all_beneath("bond0.7", found) == {"bond0", "eth2", "eth3"}
    assert all_beneath("ib0", found) == set()
