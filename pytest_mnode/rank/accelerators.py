"""PCI addresses and NUMA nodes of the accelerators of local ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.nvml import Accelerator, read_nvml
from pytest_mnode.machine.pci import read_pci
from pytest_mnode.machine.sysfs import SysfsView

_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Source: ROCm, GPU isolation techniques; HIP reads CUDA's variable too."""


def homes_of(shown: SysfsView, local_size: int) -> list[int | None]:
    """NUMA node of each local rank's accelerator, found without using CUDA if possible.

    CUDA starts threads, which would not be bound.
    """
    if shown.accelerators:
        addresses = [accelerator_address(shown, rank) for rank in range(local_size)]
    elif devices := read_nvml().found or _on_pci(Path(shown.sysfs_root)):
        addresses = [*visible_addresses(devices, _visible()), *[None] * local_size]
    else:
        addresses = [_cuda_address(rank) for rank in range(local_size)]
    return [home_of(shown, address) for address in addresses[:local_size]]


def _visible() -> str | None:
    return next((os.environ[name] for name in _VISIBLE if name in os.environ), None)


def _on_pci(root: Path) -> tuple[Accelerator, ...]:
    """Accelerators where NVML cannot be used; none if their makers differ."""
    found = read_pci(root).accelerators
    if len({one.vendor for one in found}) != 1:
        return ()
    return tuple(Accelerator(index=i, pci_address=one.address) for i, one in enumerate(found))


def visible_addresses(devices: Sequence[Accelerator], visible: str | None) -> list[str | None]:
    """PCI addresses of CUDA devices 0, 1, …, from NVML's devices and CUDA_VISIBLE_DEVICES.

    CUDA numbers devices of one model as NVML does, by PCI address. If models differ, the fastest
    device comes first, so their addresses are not known here. An entry that is not a device ends
    the list; parts of a device (MIG) have no address of their own.

    Source: CUDA C++ Programming Guide, CUDA environment variables.
    """
    addresses = [one.pci_address for one in devices]
    mixed = len({one.name for one in devices}) > 1
    if mixed and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        addresses = [None for _ in devices]
    if visible is None:
        return addresses
    found: list[str | None] = []
    for word in (part.strip() for part in visible.split(",")):
        named = [
            one
            for one in devices
            if word.startswith("GPU-") and (one.uuid or "")[: len(word)] == word
        ]
        if word.isascii() and word.isdigit() and int(word) < len(addresses):
            found.append(addresses[int(word)])
        elif word.startswith("GPU-") and len(named) == 1:
            found.append(named[0].pci_address)
        else:
            break
    return found


def home_of(shown: SysfsView, address: str | None) -> int | None:
    """NUMA node of the accelerator at this PCI address; None if not known."""
    if address is None:
        return None
    return sysfs.count(Path(shown.sysfs_root, "sys/bus/pci/devices", address, "numa_node"))


def accelerator_address(shown: SysfsView, local_rank: int) -> str | None:
    """PCI address of a rank's accelerator, such as "0000:17:00.0"; None if there is none.

    On the rack it is the address that the node shows. Otherwise this initializes CUDA.
    """
    if shown.accelerators:
        return shown.accelerators[local_rank % len(shown.accelerators)]
    if (address := _cuda_address(local_rank)) is not None:
        return address
    import torch

    # ROCm's torch may not tell. A container shows all devices, also those that it does not have.
    addresses = visible_addresses(_on_pci(Path(shown.sysfs_root)), _visible())
    known = len(addresses) == torch.cuda.device_count() > local_rank
    return addresses[local_rank] if known else None


def _cuda_address(local_rank: int) -> str | None:
    import torch

    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        return None
    device: Any = torch.cuda.get_device_properties(local_rank)
    if not hasattr(device, "pci_bus_id"):  # ROCm, and torch before 2.7
        return None
    return f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"
