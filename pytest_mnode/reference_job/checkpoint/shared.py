"""Whether all ranks see the same directory: what is surely another one needs no waiting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.machine.mounts import mount_here
from pytest_mnode.machine.sysfs import boot_id

if TYPE_CHECKING:
    from pytest_mnode.reference_job.checkpoint.ranks import Ranks

VISIBLE_S = 60.0
"""Usual limit until all nodes see what one of them wrote: NFS keeps attributes of directories for a
minute (acdirmax). Source: nfs(5)."""


_SERVER = "a file server"
Place = tuple[str, tuple[int, int] | None, str]
"""A directory as one rank sees it: boot id of its machine; device and inode, None if there is no
directory; type of its file system if only one machine can mount that, else ""."""


def not_shared(directory: Path, ranks: Ranks, first: int = 0) -> list[str]:
    """By rank, why its directory is surely not that of rank `first`, which exists; "" if it may be.

    The view of a file server may be late, and what a server calls a file differs by client; on a
    local file system all processes of one machine see the same at once.
    """
    places = ranks.gather(_place(directory))
    boot, file, there = places[first]

    def why(place: Place) -> str:
        here = place[2]
        if not (here or there) or not (place[0] and boot) or place[:2] == (boot, file):
            return ""
        return f"another directory: on {here or _SERVER} here, on {there or _SERVER} there"

    return list(map(why, places))


def _place(directory: Path) -> Place:
    """The directory, or the place where it would be; never raises."""
    mount = mount_here(directory)
    try:
        there = directory.stat()
        file = (there.st_dev, there.st_ino)
    except OSError:
        file = None
    return boot_id() or "", file, mount.kind if mount and mount.local else ""
