"""Specs drafted from recorded machines, also with changed facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.discover.draft import draft
from pytest_mnode.discover.nodes import FoundCluster, FoundNode
from pytest_mnode.machine.model import Machine
from tests.recorded import NAMES, Recorded
from tests.trees import GPU, NVIDIA, Tree


def cluster(**machines: Machine) -> FoundCluster:
    nodes = tuple(
        FoundNode(name, f"10.1.0.{i}", machine)
        for i, (name, machine) in enumerate(machines.items(), 1)
    )
    return FoundCluster(nodes, "ssh", "", "2026-11-21 16:00 UTC")


def addressed(machine: Machine, **addresses: str) -> Machine:
    """The cluster with an address for each of these interfaces; none was recorded."""
    interfaces = tuple(
        replace(one, addresses=(addresses[one.name],) if one.name in addresses else ())
        for one in machine.interfaces or ()
    )
    return replace(machine, interfaces=interfaces)


@pytest.mark.parametrize("name", NAMES)
def test_any_recorded_machine_makes_a_page(recorded: Recorded, name: str) -> None:
    assert "criteria:" in draft(cluster(node0=Machine.read(recorded(name)))).text()


def test_recorded_machines_side_by_side_differ(recorded: Recorded) -> None:
    machines = {
        state.replace("-", "_"): Machine.read(recorded(f"numa2-e1000e-rxe-{state}"))
        for state in ("up", "port-down")
    }
    page = draft(cluster(**machines))
    assert page.missing  # no address was recorded, so no link can be found
    assert {"fabric.kind", "fabric.line_rate"} <= set(page.missing)


def test_recorded_machines_with_addresses_make_a_page(recorded: Recorded) -> None:
    machine = Machine.read(recorded("numa2-virtio-aligned-rxe-up"))
    first, second = (addressed(machine, eth0=f"10.1.0.{i}", eth1=f"10.2.0.{i}") for i in (1, 2))
    page = draft(cluster(node1=first, node2=second))
    text = page.text()
    assert page.missing == ()
    assert page.differences == ()
    assert "interfaces: [eth1]" in text
    assert "line_rate: 100 Gbit/s" in text
    assert "interfaces: [eth0]" in text
    assert "line_rate: 25 Gbit/s" in text


def test_accelerators_of_other_vendors_and_virtual_functions_need_no_nvml(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path)
    for i in (1, 2):
        tree.pci(f"pci0000:10/0000:10:0{i}.0", GPU, NVIDIA)
    tree.pci("pci0000:10/0000:10:03.0", "0x120000", "0x1002")
    tree.pci("pci0000:10/0000:10:04.0", GPU, NVIDIA)
    tree.link("sys/devices/pci0000:10/0000:10:04.0/physfn", "sys/bus/pci/devices/0000:10:01.0")
    machine = replace(Machine.read(tmp_path), accelerators=())
    text = " ".join(draft(cluster(node0=machine)).text().split())
    assert "NVML shows 0 of 2 on PCI" in text
