"""Mounted file systems, from mountinfo. Source: proc(5), mountinfo."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")
_NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "glusterfs", "cifs", "smb3"),
    *("9p", "virtiofs", "pvfs2", "orangefs", "panfs", "afs", "dvs"),
    *("fuse.glusterfs", "fuse.ceph-fuse", "fuse.daos", "fuse.juicefs", "fuse.gcsfuse"),
    *("fuse.s3fs", "fuse.sshfs", "fuse.rclone"),
)
"""As mountinfo names them."""
LOCAL_FILE_SYSTEMS = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "vfat"),
        *("fuseblk", "squashfs", "erofs", "iso9660", "overlay", "tmpfs", "ramfs", "rootfs"),
        *("fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll"),
    )
)
"""File systems that only one machine mounts at a time."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. kind: type of the file system, such as "nfs4"; source: such as "filer:/data"."""

    path: str
    kind: str
    source: str

    @property
    def of_network(self) -> bool:
        """Whether its files are on a file server."""
        return self.kind in _NETWORK_FILE_SYSTEMS

    @property
    def local(self) -> bool:
        """Whether only one machine mounts it at a time."""
        return self.kind in LOCAL_FILE_SYSTEMS

    def __str__(self) -> str:
        return f"{self.kind} {self.source}"


def parse_mounts(table: str) -> tuple[Mount, ...]:
    """The mounts in `table` (mountinfo) in order; a later mount hides an earlier one."""
    found = []
    for line in table.splitlines():
        fields, _, tail = line.partition(" - ")
        words, kinds = fields.split(), tail.split()
        if len(words) >= 6 and len(kinds) >= 2:
            found.append(Mount(_unescaped(words[4]), kinds[0], _unescaped(kinds[1])))
    return tuple(found)


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """Mounts of this mount namespace. Raises OSError if the table cannot be read."""
    table = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    return parse_mounts(table)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that contains a path; None if there is none."""
    real, best = os.path.realpath(path), None
    for mount in mounts:
        inside = real == mount.path or real.startswith(mount.path.rstrip("/") + "/")
        if inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def mount_here(path: str | Path) -> Mount | None:
    """The mount that contains a path here; None if none does, or if that cannot be read."""
    try:
        return mount_of(str(path), read_mounts())
    except OSError:
        return None


def _unescaped(word: str) -> str:
    """The kernel writes blanks as \\040, and likewise tabs, newlines and backslashes."""
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), word)
