"""Whether all ranks see the same directory: what is surely another one needs no waiting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.machine.mounts import mount_here
from pytest_mnode.machine.sysfs import boot_id

if TYPE_CHECKING:
    from pytest_mnode.reference_job.checkpoint.ranks import Ranks

VISIBLE_S = 60.0
"""Usual limit until all nodes see what one of them wrote: NFS keeps attributes of directories for a
minute (acdirmax). Source: nfs(5)."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory as one rank sees it.

    boot: of its machine. file: device and inode; None if there is no directory. local: type of its
    file system if only one machine can mount that, else "".
    """

    boot: str | None
    file: tuple[int, int] | None
    local: str

    @classmethod
    def of(cls, directory: Path) -> Directory:
        """The directory, or the place where it would be; never raises."""
        mount = mount_here(directory)
        try:
            there = directory.stat()
            file = (there.st_dev, there.st_ino)
        except OSError:
            file = None
        return cls(boot_id(), file, mount.kind if mount and mount.local else "")

    def surely_not(self, other: Directory) -> str:
        """Why this is surely not the directory of `other`, which exists; "" if it may be.

        The view of a file server may be late, and what a server calls a file differs by client; on
        a local file system all processes of one machine see the same at once.
        """
        if not (self.local or other.local) or not (self.boot and other.boot):
            return ""
        if self.boot == other.boot and self.file == other.file:
            return ""
        here, there = self.local or "a file server", other.local or "a file server"
        return f"another directory: on {here} here, on {there} there"


def not_shared(directory: Path, ranks: Ranks, first: int = 0) -> list[str]:
    """By rank, why its directory is surely not that of rank `first`; "" if it may be."""
    places = ranks.gather(Directory.of(directory))
    return [place.surely_not(places[first]) for place in places]
