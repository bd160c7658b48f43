"""Judges of ports and links on recorded machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.checks.node.pcie import PcieLinksAreFull
from pytest_mnode.checks.node.rdma import RdmaPortsAreActive
from pytest_mnode.machine.model import Machine
from tests.criteria.preflight.made import Judge, asked, healthy, promising, with_facts
from tests.recorded import Recorded

ROCE = "{rdma: {gid_types: [RoCE v2], errors_at_most: 0}, pcie: full}"
UP, DOWN = "numa2-e1000e-rxe-up", "numa2-e1000e-rxe-port-down"


@pytest.mark.parametrize(
    ("judge", "name", "fabric", "verdicts", "culprit"),
    [
        (RdmaPortsAreActive, UP, "rxe*", "pass pass", ""),
        (RdmaPortsAreActive, UP, "eth?", "pass pass", ""),
        (RdmaPortsAreActive, "numa1-veth-rxe", "rxe0", "pass pass", ""),
        (RdmaPortsAreActive, DOWN, "rxe1", "fail inconclusive", "gpu1 rxe1:1 DOWN"),
        (RdmaPortsAreActive, DOWN, "rxe0", "pass pass", ""),
        (
            *(RdmaPortsAreActive, "numa2-e1000e-aligned", "rxe0"),
            *("fail inconclusive", "gpu1: RDMA devices are missing"),
        ),
        # Soft-RoCE has no slot: the slot of its interface counts if the spec names that.
        (PcieLinksAreFull, "numa2-virtio-aligned-rxe-up", "eth?", "pass pass", ""),
        (PcieLinksAreFull, "numa1-veth-rxe", "veth0", "inconclusive inconclusive", ""),
    ],
)
def test_ports_and_links_of_recorded_machines(  # noqa: PLR0917  one table
    recorded: Recorded, judge: Judge, name: str, fabric: str, verdicts: str, culprit: str
) -> None:
    machine = Machine.read(recorded(name))
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
        assert asked(RdmaPortsAreActive, found, spec)["gpu1"][-1].culprit == culprit
