"""Judges of ports and links on recorded machines, unchanged and with one fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight.judges import devices, rdma
from pytest_mnode.machine.model import Machine
from tests.criteria.preflight.made import Judge, asked, healthy, spec_of, with_facts
from tests.recorded import Recorded

ROCE = "{rdma: {gid_types: [RoCE v2], errors_at_most: 0}, pcie: full}"
PORT = "sys/class/infiniband/rxe0/ports/1"
NIC_OF_RXE0 = "sys/bus/pci/devices/0000:41:00.0"
SLOT_OF_RXE0 = "sys/bus/pci/devices/0000:40:00.0"
Edit = Callable[[Path], object]


def wrote(path: str, text: str) -> Edit:
    return lambda root: (root / path).resolve().write_text(f"{text}\n")


def without(*paths: str) -> Edit:
    def edit(root: Path) -> None:
        for path in paths:
            (root / path).unlink()

    return edit


def rewrote_types(text: str) -> Edit:
    def edit(root: Path) -> None:
        for path in (root / f"{PORT}/gid_attrs/types").iterdir():
            path.write_text(f"{text}\n")

    return edit


def wider_card(width: str, full: str, slot: str) -> Edit:
    def edit(root: Path) -> None:
        for path, text in (
            (f"{NIC_OF_RXE0}/current_link_width", width),
            (f"{NIC_OF_RXE0}/max_link_width", full),
            (f"{SLOT_OF_RXE0}/max_link_width", slot),
        ):
            wrote(path, text)(root)

    return edit


@pytest.mark.parametrize(
    ("judge", "name", "fabric", "edit", "verdicts", "culprit"),
    [
        (rdma.rdma_ports, "numa2-e1000e-rxe-up", "rxe*", None, "pass pass", ""),
        (rdma.rdma_ports, "numa2-e1000e-rxe-up", "eth?", None, "pass pass", ""),
        (rdma.rdma_ports, "numa1-veth-rxe", "rxe0", None, "pass pass", ""),
        (
            *(rdma.rdma_ports, "numa2-e1000e-rxe-port-down", "rxe1", None),
            *("fail inconclusive", "gpu1 rxe1:1 DOWN"),
        ),
        (rdma.rdma_ports, "numa2-e1000e-rxe-port-down", "rxe0", None, "pass pass", ""),
        (
            *(rdma.rdma_ports, "numa2-e1000e-siw", "siw0", None),
            *("fail inconclusive", "gpu1 siw0:1 is iWARP, not RoCE"),
        ),
        (
            *(rdma.rdma_ports, "numa2-e1000e-aligned", "rxe0", None),
            *("fail inconclusive", "gpu1: RDMA devices are missing"),
        ),
        (
            *(rdma.rdma_ports, "numa2-e1000e-rxe-up", "rxe0"),
            *(without(f"{PORT}/gids/0", f"{PORT}/gids/1"), "pass fail", "gpu1 rxe0:1 has none"),
        ),
        (
            *(rdma.rdma_ports, "numa2-e1000e-rxe-up", "rxe0"),
            *(rewrote_types("IB/RoCE v1"), "pass fail", "gpu1 rxe0:1 has RoCE v1"),
        ),
        (
            *(rdma.rdma_ports, "numa2-e1000e-rxe-up", "rxe0"),
            *(wrote(f"{PORT}/phys_state", "3: Disabled"), "fail inconclusive"),
            "gpu1 rxe0:1 ACTIVE, Disabled",
        ),
        # Soft-RoCE has no slot: the slot of its interface counts if the spec names that.
        (devices.pcie, "numa2-virtio-aligned-rxe-up", "eth?", None, "pass pass", ""),
        (
            *(devices.pcie, "numa2-virtio-aligned-rxe-up", "eth1", wider_card("8", "16", "32")),
            *("fail pass", "gpu1 eth1 x8 of 16"),
        ),
        (
            *(devices.pcie, "numa2-virtio-aligned-rxe-up", "eth1", wider_card("8", "16", "8")),
            *("pass pass", ""),  # its slot is no wider
        ),
        (
            *(devices.pcie, "numa2-virtio-aligned-rxe-up", "eth1"),
            *(wrote(f"{NIC_OF_RXE0}/max_link_speed", "16.0 GT/s PCIe"), "pass fail"),
            "gpu1 eth1 GT/s 2.5 of 16",
        ),
        (
            *(devices.pcie, "numa2-virtio-aligned-rxe-up", "eth1"),
            *(without(f"{NIC_OF_RXE0}/current_link_width"), "inconclusive pass", ""),
        ),
        (devices.pcie, "numa1-veth-rxe", "veth0", None, "inconclusive inconclusive", ""),
    ],
)
def test_one_fault_is_named(  # noqa: PLR0917  one table
    tmp_path: Path,
    recorded: Recorded,
    judge: Judge,
    name: str,
    fabric: str,
    edit: Edit | None,
    verdicts: str,
    culprit: str,
) -> None:
    root = recorded(name)
    if edit is not None:
        shutil.copytree(root / "sys", tmp_path / "sys", symlinks=True)
        root = tmp_path
        edit(root)
    machine = Machine.read(root)
    survey = healthy(2)
    survey = with_facts(
        survey, 1, rdma=machine.rdma, interfaces=machine.interfaces, pci=machine.pci
    )
    answers = asked(judge, survey, spec_of(tmp_path, ROCE, "roce", f'"{fabric}"'))["gpu1"]
    assert " ".join(str(m.verdict) for m in answers) == verdicts
    assert "; ".join(m.culprit for m in answers if m.culprit) == culprit


def test_a_gid_of_the_interfaces_own_address(tmp_path: Path, recorded: Recorded) -> None:
    """The kernel's table has a GID of each address; a link-local one alone is not enough."""
    machine = Machine.read(recorded("numa2-e1000e-rxe-up"))
    [device, *_] = machine.rdma or ()
    [port] = device.ports
    ipv4 = [gid for gid in port.gids or () if ":ffff:" in gid.gid]
    assert ipv4, "the interface was recorded with an address"
    digits = ipv4[0].gid.replace(":", "")[-8:]
    address = ".".join(str(int(digits[i : i + 2], 16)) for i in range(0, 8, 2))
    interfaces = tuple(
        replace(one, addresses=(address, "fe80::1") if one.name in device.netdevs else ())
        for one in machine.interfaces or ()
    )
    spec = spec_of(tmp_path, ROCE, "roce", "rxe0")
    local = replace(port, gids=tuple(gid for gid in port.gids or () if gid not in ipv4))
    for there, culprit in ((port, None), (local, f"gpu1 rxe0:1 has no RoCE v2 GID for {address}")):
        found = with_facts(
            healthy(2), 1, rdma=(replace(device, ports=(there,)),), interfaces=interfaces
        )
        assert asked(rdma.rdma_ports, found, spec)["gpu1"][-1].culprit == culprit
