"""The PCI tree of a machine: functions, the bridges above each, and how near two of them are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import read_cpulist

_HOST = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_BAR = re.compile(r"0x([0-9a-f]+) 0x([0-9a-f]+) ")
_WIDEST = 32
_NETWORK = "02"
NVIDIA, AMD, INTEL = "10de", "1002", "8086"
_MAKERS = {
    NVIDIA: "NVIDIA",
    AMD: "AMD",
    INTEL: "Intel",
    "1da3": "Habana",
    "1d0f": "Amazon",
    "1ae0": "Google",
    "19e5": "Huawei",
    "17cb": "Qualcomm",
    "1e52": "Tenstorrent",
    "15b3": "Mellanox",
    "14e4": "Broadcom",
    "1af4": "virtio",
    "1b36": "QEMU",
}
_MODELS = {
    **{(AMD, "738c"): "AMD Instinct MI100", (AMD, "740f"): "AMD Instinct MI210"},
    **{(AMD, "7408"): "AMD Instinct MI250X", (AMD, "740c"): "AMD Instinct MI250X"},
    **{(AMD, "74a0"): "AMD Instinct MI300A"},
    **dict.fromkeys(((AMD, "74a1"), (AMD, "74b5")), "AMD Instinct MI300X OAM"),
    **dict.fromkeys(((AMD, "74a9"), (AMD, "74bd")), "AMD Instinct MI300X HF"),
    **{(AMD, "74a2"): "AMD Instinct MI308X", (AMD, "74b6"): "AMD Instinct MI308X"},
    **{(AMD, "74a5"): "AMD Instinct MI325X", (AMD, "74b9"): "AMD Instinct MI325X"},
    **{(AMD, "75a0"): "AMD Instinct MI350X", (AMD, "75a3"): "AMD Instinct MI355X"},
    **{("1da3", "1000"): "Intel Gaudi", ("1da3", "1020"): "Intel Gaudi 2"},
    **{("1da3", "1060"): "Intel Gaudi 3"},
}
"""Models by vendor and device, virtual functions too. What AMD's programs call a model depends on
their release and on the machine's tables. Source: the PCI ID repository."""
_VGA, _DISPLAY, _3D, _PROCESSING = "0300", "0380", "0302", "1200"
_MAKERS_OF_ACCELERATORS = (NVIDIA, AMD, "1da3", "1d0f", "1ae0", "19e5", "17cb", "1e52")
"""Vendors whose processing accelerators train models: others make FPGAs, or NPUs of a CPU."""
_DISPLAY_BAR_BYTES = 1 << 30
"""Above the largest BAR of a board's display chip, or of a GPU that is built into a CPU."""


class Distance(StrEnum):
    """How near two PCI functions are, by nvidia-smi's names, nearest first."""

    SELF = "X"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"

    @property
    def rank(self) -> int:
        """Position in this order: 0 for the function itself."""
        return list(Distance).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One PCI function.

    address: such as 0000:17:00.0. host: its host bridge, such as pci0000:15. bridges: addresses of
    the PCI bridges above it, outermost first. kind: base class and subclass, such as 0302. vendor,
    device: four hexadecimal digits. numa_node: None if the kernel does not know it (−1).
    local_cpus: as the kernel lists them; all CPUs if numa_node is None. physical_function: address
    of the function of which this is a virtual function. Link rates are per lane. boots_display:
    whether the firmware shows its console there; None if unknown. largest_bar_bytes: size of its
    largest window of memory for the CPU; None if unknown.
    """

    address: str
    host: str | None = None
    bridges: tuple[str, ...] = ()
    kind: str | None = None
    vendor: str | None = None
    device: str | None = None
    numa_node: int | None = None
    local_cpus: frozenset[int] | None = None
    link_gtransfers_s: float | None = None
    max_link_gtransfers_s: float | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    physical_function: str | None = None
    boots_display: bool | None = None
    largest_bar_bytes: int | None = None

    @property
    def maker(self) -> str:
        """Name of its vendor, or the vendor number."""
        return _MAKERS.get(self.vendor or "", f"vendor {self.vendor}")

    @property
    def model(self) -> str | None:
        """Name of its model, if it is an accelerator that is known by its number."""
        return model_of(self.vendor, self.device)

    @property
    def is_network(self) -> bool:
        """Whether it is a network controller: Ethernet, InfiniBand or other."""
        return (self.kind or "").startswith(_NETWORK)

    @property
    def is_accelerator(self) -> bool:
        """Whether ranks can compute on it.

        True for 3D controllers, processing accelerators and GPUs with a display; False for a
        server's own display controller, and for devices built into a CPU.
        """
        if self.kind == _PROCESSING:
            return self.vendor in _MAKERS_OF_ACCELERATORS
        if self.kind not in (_VGA, _DISPLAY):
            return self.kind == _3D
        if self.vendor == INTEL:
            return bool(self.bridges)
        if self.vendor == AMD and self.kind == _VGA:
            return (self.largest_bar_bytes or 0) > _DISPLAY_BAR_BYTES and not self.boots_display
        return self.vendor in (NVIDIA, AMD)

    @property
    def is_nvidia(self) -> bool:
        """Whether NVIDIA made it, so that NVML lists it if it is an accelerator."""
        return self.vendor == NVIDIA


@dataclass(frozen=True, slots=True, kw_only=True)
class PciTree:
    """All PCI functions, in the order of their addresses."""

    functions: tuple[PciFunction, ...] = ()

    def function(self, address: str | None) -> PciFunction | None:
        """The function at an address in any notation; None if there is none."""
        wanted = full_address(address)
        return next((f for f in self.functions if f.address == wanted), None)

    def physical_function(self, address: str | None) -> str | None:
        """Address of the function whose wire a virtual function (SR-IOV) shares; else None."""
        function = self.function(address)
        return function.physical_function if function else None

    @property
    def accelerators(self) -> tuple[PciFunction, ...]:
        """Accelerators by address, which is the order in which drivers number them."""
        return tuple(f for f in self.functions if f.is_accelerator)

    @property
    def networks(self) -> tuple[PciFunction, ...]:
        """Network controllers by address."""
        return tuple(f for f in self.functions if f.is_network)

    def distance(self, one: str | None, other: str | None) -> Distance | None:
        """How near two functions are, by address; None if unknown.

        A switch is two bridges deep, its port towards the CPU and the one towards the device, so
        that devices of one switch have one port each below the bridges that they share.

        Source: nvidia-smi topo --matrix, legend.
        """
        a, b = self.function(one), self.function(other)
        if a is None or b is None:
            return None
        if a.address == b.address:
            return Distance.SELF
        if a.host != b.host:
            return _across_hosts(a, b)
        shared = len(set(a.bridges) & set(b.bridges))
        if not shared:
            return Distance.PHB if a.host else None
        below = max(len(a.bridges), len(b.bridges)) - shared
        return Distance.PIX if below <= 1 else Distance.PXB

    def full_link(self, slot: str) -> tuple[int | None, float | None]:
        """`full_link` of the card in a slot, by its address without the function's number."""
        card = next((f for f in self.functions if f.address.rpartition(".")[0] == slot), None)
        if card is None:
            return None, None
        return full_link(card, self.function(card.bridges[-1] if card.bridges else None))

    def nearest_accelerator(self, address: str | None) -> Distance | None:
        """Distance from a function to its nearest accelerator; None if unknown."""
        distances = [self.distance(address, one.address) for one in self.accelerators]
        known = [distance for distance in distances if distance is not None]
        return min(known, key=lambda distance: distance.rank, default=None)


def model_of(vendor: str | None, device: str | None) -> str | None:
    """Name of an accelerator's model by its PCI numbers; None if it is not known."""
    return _MODELS.get((vendor or "", device or ""))


def full_link(card: PciFunction, slot: PciFunction | None) -> tuple[int | None, float | None]:
    """Width, and GT/s per lane, that both a card and its slot support; None if unknown."""
    ends = [card, slot] if slot else [card]
    widths = [end.max_link_width for end in ends if end.max_link_width]
    rates = [end.max_link_gtransfers_s for end in ends if end.max_link_gtransfers_s]
    return min(widths, default=None), min(rates, default=None)


def data_gbits_s(width: int, gtransfers_s: float) -> float:
    """Rate at which a link carries data in each direction, in packets of 128 bytes.

    A lane sends 8 of 10 bits up to 5 GT/s, 128 of 130 above; a packet has 24 bytes of headers and
    checksums. Source: PCI Express Base Specification.
    """
    return width * gtransfers_s * (0.8 if gtransfers_s <= 5 else 128 / 130) * 128 / (128 + 24)


def _across_hosts(a: PciFunction, b: PciFunction) -> Distance | None:
    # −1 means unknown even on a machine with one NUMA node, which may be a guest to which the host
    # does not show the others.
    if None in (a.host, b.host, a.numa_node, b.numa_node):
        return None
    return Distance.NODE if a.numa_node == b.numa_node else Distance.SYS


def full_address(address: str | None) -> str | None:
    """An address as the kernel writes it; NVML writes 00000000:17:00.0, lspci 17:00.0.

    None if `address` is not an address.
    """
    match = _ADDRESS.fullmatch((address or "").strip().lower())
    if match is None:
        return None
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}"


def read_pci(root: Path = Path("/")) -> PciTree:
    """Functions below `root`/sys/bus/pci/devices; empty if it cannot be listed.

    Source: Linux, Documentation/ABI/testing/sysfs-bus-pci.
    """
    found = [
        _function(path, root)
        for path in sysfs.entries(root / "sys/bus/pci/devices")
        if sysfs.is_pci_address(path.name)
    ]
    return PciTree(functions=tuple(sorted(found, key=lambda f: _order(f.address))))


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split(r"[:.]", address))


def _function(path: Path, root: Path) -> PciFunction:
    parts = sysfs.place(path, root) or ()
    # A host bridge can be behind a function of another one, as with VMD: the innermost counts.
    hosts = [i for i, part in enumerate(parts) if _HOST.fullmatch(part)]
    chain = sysfs.pci_addresses(parts[hosts[-1] :] if hosts else parts)
    kind = sysfs.integer(path / "class")
    boots = sysfs.count(path / "boot_vga")
    return PciFunction(
        address=path.name,
        host=parts[hosts[-1]] if hosts else None,
        bridges=chain[:-1],
        kind=None if kind is None else f"{kind >> 8:04x}",
        vendor=_id(path / "vendor"),
        device=_id(path / "device"),
        numa_node=sysfs.count(path / "numa_node"),
        local_cpus=read_cpulist(path / "local_cpulist") or None,
        link_gtransfers_s=_speed(path / "current_link_speed"),
        max_link_gtransfers_s=_speed(path / "max_link_speed"),
        link_width=_width(path / "current_link_width"),
        max_link_width=_width(path / "max_link_width"),
        physical_function=sysfs.target_name(path / "physfn"),
        boots_display=None if boots is None else bool(boots),
        largest_bar_bytes=_largest_bar_bytes(sysfs.text(path / "resource")),
    )


def _largest_bar_bytes(resource: str | None) -> int | None:
    """Largest of the six base address registers, one on each line: first address, last, flags."""
    sizes = [
        int(match[2], 16) - int(match[1], 16) + 1
        for line in (resource or "").splitlines()[:6]
        if (match := _BAR.match(line)) and int(match[2], 16)
    ]
    return max(sizes, default=None)


def _id(path: Path) -> str | None:
    value = sysfs.integer(path)
    return None if value is None else f"{value:04x}"


def _speed(path: Path) -> float | None:
    match = _SPEED.match(sysfs.text(path) or "")
    return float(match[1]) if match else None


def _width(path: Path) -> int | None:
    width = sysfs.count(path)
    # 255 means unknown, and 63 is read from a device that is gone.
    return width if width and width <= _WIDEST else None
