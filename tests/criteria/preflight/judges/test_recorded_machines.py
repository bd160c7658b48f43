"""Judges of ports and links on recorded machines, unchanged and with one fault."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight.judges import devices, rdma
from pytest_mnode.machine.model import Machine
from tests.criteria.preflight.made import Judge, asked, healthy, promising, with_facts
from tests.recorded import Recorded

ROCE = "{rdma: {gid_types: [RoCE v2], errors_at_most: 0}, pcie: full}"
PORT = "sys/class/infiniband/rxe0/ports/1"
NIC_OF_RXE0 = "sys/bus/pci/devices/0000:41:00.0"
SLOT_OF_RXE0 = "sys/bus/pci/devices/0000:40:00.0"
UP, DOWN = "numa2-e1000e-rxe-up", "numa2-e1000e-rxe-port-down"
VIRTIO = "numa2-virtio-aligned-rxe-up"
Files = dict[str, str | None]
"""Changed text of files; None: the file is not there."""


def width(current: str, full: str, slot: str) -> Files:
    return {
        f"{NIC_OF_RXE0}/current_link_width": current,
        f"{NIC_OF_RXE0}/max_link_width": full,
        f"{SLOT_OF_RXE0}/max_link_width": slot,
    }


@pytest.mark.parametrize(
    ("judge", "name", "fabric", "files", "verdicts", "culprit"),
    [
        (rdma.rdma_ports, UP, "rxe*", {}, "pass pass", ""),
        (rdma.rdma_ports, UP, "eth?", {}, "pass pass", ""),
        (rdma.rdma_ports, "numa1-veth-rxe", "rxe0", {}, "pass pass", ""),
        (rdma.rdma_ports, DOWN, "rxe1", {}, "fail inconclusive", "gpu1 rxe1:1 DOWN"),
        (rdma.rdma_ports, DOWN, "rxe0", {}, "pass pass", ""),
        (
            *(rdma.rdma_ports, "numa2-e1000e-aligned", "rxe0", {}),
            *("fail inconclusive", "gpu1: RDMA devices are missing"),
        ),
        (
            *(rdma.rdma_ports, UP, "rxe0", {f"{PORT}/gids/{n}": None for n in (0, 1)}),
            *("pass fail", "gpu1 rxe0:1 has none"),
        ),
        (
            *(rdma.rdma_ports, UP, "rxe0", {f"{PORT}/phys_state": "3: Disabled"}),
            *("fail inconclusive", "gpu1 rxe0:1 ACTIVE, Disabled"),
        ),
        # Soft-RoCE has no slot: the slot of its interface counts if the spec names that.
        (devices.pcie, VIRTIO, "eth?", {}, "pass pass", ""),
        (devices.pcie, VIRTIO, "eth1", width("8", "16", "32"), "fail pass", "gpu1 eth1 x8 of 16"),
        (devices.pcie, VIRTIO, "eth1", width("8", "16", "8"), "pass pass", ""),  # a narrow slot
        (
            *(devices.pcie, VIRTIO, "eth1", {f"{NIC_OF_RXE0}/max_link_speed": "16.0 GT/s PCIe"}),
            *("pass fail", "gpu1 eth1 GT/s 2.5 of 16"),
        ),
        (
            *(devices.pcie, VIRTIO, "eth1", {f"{NIC_OF_RXE0}/current_link_width": None}),
            *("inconclusive pass", ""),
        ),
        (devices.pcie, "numa1-veth-rxe", "veth0", {}, "inconclusive inconclusive", ""),
    ],
)
def test_one_fault_is_named(  # noqa: PLR0917  one table
    tmp_path: Path,
    recorded: Recorded,
    judge: Judge,
    name: str,
    fabric: str,
    files: Files,
    verdicts: str,
    culprit: str,
) -> None:
    root = recorded(name)
    if files:
        shutil.copytree(root / "sys", tmp_path / "sys", symlinks=True)
        root = tmp_path
    for path, text in files.items():
        if text is None:
            (root / path).unlink()
        else:
            (root / path).resolve().write_text(f"{text}\n")
    machine = Machine.read(root)
    parts = {"rdma": machine.rdma, "interfaces": machine.interfaces, "pci": machine.pci}
    survey = with_facts(healthy(2), 1, **parts)
    answers = asked(judge, survey, promising(ROCE, "roce", f'"{fabric}"'))["gpu1"]
    assert " ".join(str(m.verdict) for m in answers) == verdicts
    assert "; ".join(m.culprit for m in answers if m.culprit) == culprit


def test_a_gid_of_the_interfaces_own_address(recorded: Recorded) -> None:
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
    spec = promising(ROCE, "roce", "rxe0")
    local = replace(port, gids=tuple(gid for gid in port.gids or () if gid not in ipv4))
    for there, culprit in ((port, None), (local, f"gpu1 rxe0:1 has no RoCE v2 GID for {address}")):
        one = replace(device, ports=(there,))
        found = with_facts(healthy(2), 1, rdma=(one,), interfaces=interfaces)
        assert asked(rdma.rdma_ports, found, spec)["gpu1"][-1].culprit == culprit
