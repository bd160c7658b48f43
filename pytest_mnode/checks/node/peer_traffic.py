"""The way of PCIe traffic between accelerators and NICs: ACS and an IOMMU may make it a detour."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.pci import PciTree, read_pci
from pytest_mnode.machine.rdma import read_rdma
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Section

_ACS, _IOMMU = "ACS of PCIe bridges", "IOMMU of accelerators and NICs"
_OFF, _IDENTITY = "off", "identity"
_EXTENDED, _ACS_ID = 0x100, 0x000D
_REDIRECTS = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x20: "EgressCtrl"}
"""Bits of the ACS control register that send requests between devices to the root complex, or block
them, by lspci's names. SrcValid and UpstreamFwd alone do neither.

Source: PCI Express Base Specification, ACS; Linux, include/uapi/linux/pci_regs.h."""
_NO_BRIDGE = "no accelerator shares a root port with a NIC or accelerator"
_DIRECT, _UNTRANSLATED = frozenset((_OFF, _NO_BRIDGE)), frozenset((_OFF, _IDENTITY))
"""Values of both metrics that peers' traffic is right with."""
_GUEST = "a virtual machine: ACS and IOMMU are its host's and must stay on; ask for ATS of the NICs"
_PASSES = re.compile(r"\b(iommu=pt|iommu\.passthrough=1)\b")
Off = Annotated[Literal["off"], BeforeValidator(lambda written: written or "off")]
"""YAML reads off without quotes as false."""


class PeerTraffic(Section):
    """Ways of PCIe traffic between accelerators and NICs. What is left out is not promised."""

    acs: Off | None = None
    """off: no bridge on a way between an accelerator and an RDMA NIC, or another accelerator, below
    the same root port redirects or blocks their requests by ACS."""
    iommu: Literal["passthrough"] | None = None
    """passthrough: no IOMMU translates addresses of accelerators and RDMA NICs (iommu=pt, or
    none)."""


@check("preflight.peer_traffic")
class PeerTrafficIsDirect(Check):
    """Do accelerators and NICs of this node reach each other without a detour?

    Promise it where GPUDirect is promised. With ACS on, switches send what goes from a NIC to an
    accelerator up to the root complex; NCCL's documentation asks to clear the ACS control of all
    bridges (`setpci -s BDF ECAP_ACS+6.w=0`, after every boot). Only the bits that redirect or
    block, and only bridges on a way between two such devices are judged, because what passes a root
    port takes the way through the root complex anyway. Reading ACS needs root. In a virtual machine
    both are its host's: inconclusive. Source: NCCL, Troubleshooting, PCI Access Control Services;
    GPUDirect RDMA, Supported Systems; Linux, ABI/testing/sysfs-kernel-iommu_groups.
    """

    promise: PeerTraffic
    """Ways of PCIe traffic between accelerators and NICs, on which GPUDirect's rate depends."""
    of_accelerators = True
    alone = True

    def read(self, root: Path) -> Iterator[Row]:
        cpu = sysfs.text(root / "proc/cpuinfo") or ""
        if re.search(r"(?m)^flags\s*:.*\bhypervisor\b", cpu):
            yield row(_ACS, why=_GUEST)
            yield row(_IOMMU, why=_GUEST)
            return
        tree = read_pci(root)
        if not tree.accelerators:
            raise OSError("no accelerator in /sys/bus/pci/devices")
        nics = {one.pci_address for one in read_rdma(root) or () if not one.virtual}
        peers = [one.address for one in tree.accelerators] + sorted(filter(None, nics))
        between = _bridges_between(tree, peers)
        for address in between:
            yield _acs(root, address)
        if not between:
            yield row(_ACS, _NO_BRIDGE)
        for address in peers:
            yield _iommu(root, address)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        if self.promise.acs is not None:
            name = "PCIe bridges that redirect or block peers by ACS"
            yield rows.none(_ACS, name, lambda one: one.value not in _DIRECT, part="acs")
        if self.promise.iommu is not None:
            name = "accelerators and NICs whose addresses an IOMMU translates"
            yield rows.none(_IOMMU, name, lambda one: one.value not in _UNTRANSLATED, part="iommu")

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, str] | None:
        found = {}
        acs, iommu = set(seen(rows, _ACS)), set(seen(rows, _IOMMU))
        if acs and acs <= _DIRECT:
            found["acs"] = "off"
        if iommu and iommu <= _UNTRANSLATED:
            found["iommu"] = "passthrough"
        return found or None


def _bridges_between(tree: PciTree, peers: Sequence[str]) -> list[str]:
    """Bridges that traffic passes between an accelerator and a peer below the same root port."""
    functions = filter(None, map(tree.function, dict.fromkeys(peers)))
    found: dict[str, None] = {}
    for one, other in combinations(functions, 2):
        shared = len(set(one.bridges) & set(other.bridges))
        if shared and (one.is_accelerator or other.is_accelerator):
            found |= dict.fromkeys([*one.bridges[shared:], *other.bridges[shared:]])
    return list(found)


def _acs(root: Path, address: str) -> Row:
    """The bits of a bridge's ACS control that redirect, "off" without any."""
    try:
        config = (root / "sys/bus/pci/devices" / address / "config").read_bytes()
    except OSError as error:
        return row(_ACS, why=f"config: {error.strerror}".lower(), device=address)
    if len(config) <= _EXTENDED:
        why = "its extended configuration is readable for root only: run as root, or see lspci -vvv"
        return row(_ACS, why=why, device=address)
    at, steps = _EXTENDED, 0
    # Each capability: its number in 16 bits, a version in 4, the place of the next in 12.
    while _EXTENDED <= at < len(config) - 8 and steps < len(config) // 8:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_ID:
            control = int.from_bytes(config[at + 6 : at + 8], "little")
            bits = [name for bit, name in _REDIRECTS.items() if control & bit]
            return row(_ACS, " ".join(bits) or _OFF, device=address)
        at, steps = header >> 20, steps + 1
    return row(_ACS, _OFF, device=address)


def _iommu(root: Path, address: str) -> Row:
    """Type of a device's IOMMU domain: identity, DMA, DMA-FQ; "off" if it has none."""
    group = root / "sys/bus/pci/devices" / address / "iommu_group"
    if not group.exists():
        return row(_IOMMU, _OFF, device=address)
    kind = sysfs.text(group / "type")
    if kind is None and _PASSES.search(sysfs.text(root / "proc/cmdline") or ""):
        kind = _IDENTITY
    why = "its iommu_group shows no type: a kernel before 5.11, or not root?"
    return row(_IOMMU, kind, why=why, device=address)
