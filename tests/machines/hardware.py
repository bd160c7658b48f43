"""The parts of a guest, and the QEMU options for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FAR = 21
"""Distance of NUMA nodes from each other, where 10 is a node's own."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """cpus: number of CPUs; 0: memory only."""

    cpus: int = 1
    memory_mib: int = 1536


@dataclass(frozen=True, slots=True)
class Nic:
    """name: of the interface in the guest. node: NUMA node of its slot; None: unknown.

    model: QEMU's, with properties. `e1000e` has its NUMA node in `device/numa_node`; virtio has a
    separate device below that of the slot. beside: the NIC with which it shares a link.
    """

    name: str
    node: int | None
    model: str = "virtio-net-pci"
    beside: str = ""

    @property
    def link(self) -> str:
        """The link of the rack's node that it is connected to."""
        return self.beside or self.name


@dataclass(frozen=True, slots=True)
class Hardware:
    """NUMA nodes with consecutively numbered CPUs, and NICs in their slots."""

    numa: tuple[NumaNode, ...] = (NumaNode(), NumaNode())
    nics: tuple[Nic, ...] = (Nic("mgmt0", 0), Nic("fab0", 1), Nic("fab1", 0, beside="fab0"))

    def options(self, taps: dict[str, str], macs: dict[str, str]) -> list[str]:
        """QEMU options. taps, macs: by name of the NIC."""
        return [*self._processors(), *self._slots(taps, macs)]

    def _processors(self) -> list[str]:
        cpus = sum(node.cpus for node in self.numa)
        words = ["-m", f"{sum(node.memory_mib for node in self.numa)}"]
        words += ["-smp", f"{cpus},sockets={cpus},cores=1,threads=1"]
        first = 0
        for number, node in enumerate(self.numa):
            here = f"cpus={first}-{first + node.cpus - 1}," if node.cpus else ""
            memory = f"memory-backend-ram,id=m{number},size={node.memory_mib}M"
            words += ["-object", memory]
            words += ["-numa", f"node,nodeid={number},{here}memdev=m{number}"]
            for other in range(number):
                words += ["-numa", f"dist,src={number},dst={other},val={_FAR}"]
            first += node.cpus
        return words

    def _slots(self, taps: dict[str, str], macs: dict[str, str]) -> list[str]:
        words: list[str] = []
        for node in sorted({nic.node for nic in self.nics if nic.node is not None}):
            bridge = f"pxb-pcie,id=side{node},bus_nr={32 * (node + 1)},numa_node={node}"
            words += ["-device", f"{bridge},bus=pcie.0"]
        for number, nic in enumerate(self.nics, 1):
            words += [
                "-netdev",
                f"tap,id={nic.name},ifname={taps[nic.name]},script=no,downscript=no,"
                f"sndbuf={_SEND_BUFFER_BYTES}",
            ]
            bus = "pcie.0"
            if nic.node is not None:
                bus = f"slot{number}"
                port = f"pcie-root-port,id={bus},bus=side{nic.node},chassis={number}"
                words += ["-device", f"{port},slot={number}"]
            card = f"{nic.model},id=nic-{nic.name},netdev={nic.name},mac={macs[nic.name]}"
            words += ["-device", f"{card},bus={bus}"]
        return words


_SEND_BUFFER_BYTES = 64 << 10
"""What may wait in the host's queue for the line: the guest waits, as at a real NIC, and no packet
is lost."""


TWO_SIDES = Hardware()
"""Management and a second rail beside NUMA node 0, the fabric beside node 1."""


def shares(directories: Sequence[tuple[str, str]]) -> list[str]:
    """QEMU options for directories that a guest may mount and read.

    The keys are mount tags of at most 31 letters.
    """
    words: list[str] = []
    for tag, path in directories:
        place = path.replace(",", ",,")
        system = f"local,id={tag},path={place},security_model=none,readonly=on,multidevs=remap"
        words += ["-fsdev", system, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return words
