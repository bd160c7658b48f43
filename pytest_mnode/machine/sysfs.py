"""Attributes and links below /sys and /proc; None if unreadable. No function here raises."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DIGITS = re.compile(r"(\d+)")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SysfsView:
    """View of /sys in which a node shows its sockets and devices.

    sysfs_root: the root that readers of /sys use.
    accelerators: PCI addresses below that root, which stand for the accelerators of local ranks
        0, 1, …; empty if the devices themselves report their addresses.
    missing: why an emulated node shows the sockets of this machine instead of its own.
    """

    sysfs_root: str = "/"
    accelerators: tuple[str, ...] = ()
    missing: str = ""

    @property
    def emulated(self) -> bool:
        """Whether the rack emulates the sockets."""
        return bool(self.accelerators)


AS_IT_IS = SysfsView()
"""View of a machine that is not emulated."""


def text(path: Path) -> str | None:
    """The stripped text of an attribute; None if it cannot be read.

    An RDMA port has a thousand attributes for its GIDs: a file object for each would take seconds.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    found = b""
    try:
        while more := os.read(file, _MOST_BYTES):
            found += more
    except OSError:
        return None
    finally:
        os.close(file)
    return found.decode("utf-8", "replace").strip()


def boot_id(root: Path = Path("/")) -> str | None:
    """The kernel's identifier of this boot, which changes with each boot."""
    return text(root / "proc/sys/kernel/random/boot_id")


def integer(path: Path) -> int | None:
    """The whole number in a file, decimal or 0x…; None if there is none."""
    return number_of(text(path))


def count(path: Path) -> int | None:
    """The whole number in a file if 0 or more; None for −1, which the kernel writes for unknown."""
    value = integer(path)
    return value if value is not None and value >= 0 else None


def number_of(written: str | None) -> int | None:
    """`written` as a whole number, decimal or 0x…; None for anything else."""
    try:
        return int(written, 16 if written.lower().startswith("0x") else 10) if written else None
    except ValueError:
        return None


def entries(folder: Path) -> tuple[Path, ...]:
    """Entries of a folder, node2 before node10; empty if it cannot be listed."""
    try:
        return tuple(sorted(folder.iterdir(), key=lambda path: by_number(path.name)))
    except OSError:
        return ()


def by_number(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts mlx5_2 before mlx5_10."""
    parts = _DIGITS.split(name)
    return tuple((int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts))


def target_name(link: Path) -> str | None:
    """The last part of a link's target, such as a driver's name; None if it is not a link."""
    try:
        return link.readlink().name
    except OSError:
        return None


def place(path: Path, root: Path) -> tuple[str, ...] | None:
    """Parts of a path below `root` with all links resolved; None if it does not exist there."""
    try:
        return path.resolve(strict=True).relative_to(root.resolve()).parts
    except (OSError, ValueError, RuntimeError):
        return None


def pci_addresses(parts: tuple[str, ...] | None) -> tuple[str, ...]:
    """The PCI functions on a device's path, outermost bridge first, the function itself last."""
    return tuple(part for part in parts or () if _BDF.fullmatch(part))


def is_pci_address(name: str) -> bool:
    """Whether `name` is like 0000:17:00.0."""
    return _BDF.fullmatch(name) is not None


def numa_node(device: Path, root: Path) -> int | None:
    """NUMA node of a device, from the nearest folder upwards that has one; None for −1.

    A virtio device has none itself; the PCI function that it sits on does.

    Source: Linux, Documentation/ABI/testing/sysfs-bus-pci, numa_node.
    """
    parts = place(device, root) or ()
    for end in range(len(parts), 1, -1):
        file = root.joinpath(*parts[:end], "numa_node")
        if text(file) is not None:
            return count(file)
    return None
