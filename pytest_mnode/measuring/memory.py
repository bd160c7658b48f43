"""How much memory a rank may take: of its device, or its share of the machine's."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import psutil
import torch

from pytest_mnode.measuring.agree import by_rank

_SHARE = 0.9
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def free_bytes_by_rank(device: torch.device) -> list[float]:
    """What each rank may allocate, by rank, the same on all. All ranks call this.

    Nine tenths of what is free where the rank's buffers live, divided by the ranks that share it:
    a GPU that several use, or the machine under nodes that are not machines of their own.
    """
    free, place = _free(device)
    told = by_rank([free, place], device)
    places = [rank[1] for rank in told]
    return [_SHARE * free_of / places.count(where) for free_of, where in told]


def _free(device: torch.device) -> tuple[float, float]:
    """Free bytes, and a number for the place that they are in."""
    boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else os.uname().nodename
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        properties = torch.cuda.get_device_properties(device)
        uuid = getattr(properties, "uuid", device.index)
        return float(free + reusable), _number(f"{boot} {uuid}")
    return float(min(psutil.virtual_memory().available, *_cgroup_rooms())), _number(boot)


def _cgroup_rooms() -> list[float]:
    """Room that is left in this process's memory cgroups, where they can be read."""
    rooms = [float("inf")]
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return rooms
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, used = _CGROUPS, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit = _CGROUPS / "memory", "memory.limit_in_bytes"
            used = "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        while group.is_relative_to(base):
            with contextlib.suppress(OSError, ValueError):  # no limit ("max"), or not readable
                rooms.append(float((group / limit).read_text()) - float((group / used).read_text()))
            group = group.parent
    return rooms


def _number(text: str) -> float:
    """A whole number that a float holds, the same for the same text only."""
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]))
