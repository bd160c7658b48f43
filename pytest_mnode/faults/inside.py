"""Changes what one node's processes see: `inside.py WHAT PATH …`, run in the node's namespaces.

Run by its path, without site-packages, to start in a few milliseconds. All changes are in the
node's own mounts, and end with them; it writes to no file that another node sees.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[2])
from pytest_mnode.machine import namespaces

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
STAGE = "/proc/fs"
"""Directory that is hidden while a private file is made there; the node has no use for it."""
SIOCSARP = 0x8955
ATF_COM, ATF_PERM = 2, 4


def replace(path: str) -> None:
    """Replace a file by a private one, with the text of standard input and the old permissions."""
    data = sys.stdin.buffer.read()
    old = os.stat(path)  # noqa: PTH116
    _stage()
    try:
        private = Path(STAGE, "file")
        private.write_bytes(data)
        private.chmod(old.st_mode & 0o7777)
        namespaces.mount(str(private), path, flags=MS_BIND)
    finally:
        namespaces.unmount(STAGE)


def edit(path: str) -> None:
    """Overwrite a file that is already private to the node with standard input."""
    if str(Path(path).resolve()) not in _mount_points():
        sys.exit(f"{path} is not private to the node")
    Path(path).write_bytes(sys.stdin.buffer.read())


def write(path: str) -> None:
    """Write standard input to a file in a file system that is the node's own."""
    if str(Path(path).parent) not in _mount_points():
        sys.exit(f"{path} is not in a file system that is private to the node")
    Path(path).write_bytes(sys.stdin.buffer.read())


def remove(path: str) -> None:
    """Remove a file that `write` made, if it is still there."""
    Path(path).unlink(missing_ok=True)


def read_only(path: str) -> None:
    """Make the file or directory at `path` read-only."""
    namespaces.mount(path, path, flags=MS_BIND)
    # The remount must keep the flags that the mount has.
    kept = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    namespaces.mount("none", path, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def full(path: str, size_bytes: str) -> None:
    """Mount a file system of this size at `path`, and fill it to the last byte."""
    before = os.stat(path).st_dev  # noqa: PTH116
    namespaces.mount("full", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size_bytes},mode=1777")
    if os.stat(path).st_dev == before:  # noqa: PTH116
        sys.exit(f"{path} still shows a file system that all nodes share; it is not filled")
    filler = os.open(f"{path}/filler", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(filler, bytes(1 << 16))
    except OSError:
        pass
    finally:
        os.close(filler)


def resize(path: str, size_bytes: str) -> None:
    """Change the limit of the tmpfs at `path`; raises OSError if it holds more already."""
    flags = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC) | MS_REMOUNT
    namespaces.mount("none", path, None, flags, f"size={size_bytes}")


def add(path: str, mode: str = "644") -> None:
    """Add a file with the text of standard input, and the folders that it needs.

    mode: its permissions, octal. Prints where it is mounted: on the nearest folder that exists.
    """
    data = sys.stdin.buffer.read()
    folder = next(parent for parent in Path(path).parents if parent.is_dir())
    # Mounts below the directory would be hidden; descriptors still reach them.
    below = [
        (point, os.open(point, os.O_PATH | os.O_CLOEXEC))
        for point in sorted(_mount_points())
        if point.startswith(f"{folder}/")
    ]
    _stage()
    try:
        layer = Path(STAGE, "layer")
        file = layer / Path(path).relative_to(folder)
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        file.chmod(int(mode, 8))
        lower = f"lowerdir={layer}:{folder}"
        namespaces.mount("overlay", str(folder), "overlay", MS_NOSUID | MS_NODEV, lower)
    finally:
        namespaces.unmount(STAGE)
    for point, fd in below:
        namespaces.mount(f"/proc/self/fd/{fd}", point, flags=MS_BIND | namespaces.MS_REC)
    print(folder)


def own_view(path: str) -> None:
    """Keep to this node what it writes below a directory."""
    upper, work = Path(STAGE, "upper"), Path(STAGE, "work")
    mode = os.stat(path).st_mode & 0o7777  # noqa: PTH116
    _stage()
    try:
        upper.mkdir()
        upper.chmod(mode)
        work.mkdir()
        layers = f"lowerdir={path},upperdir={upper},workdir={work}"
        namespaces.mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, layers)
    finally:
        namespaces.unmount(STAGE)


def sysctl(name: str) -> None:
    """Set a kernel setting of the node's own network to standard input; prints the old value."""
    path = Path("/proc/sys", name)
    print(path.read_text().strip())
    path.write_bytes(sys.stdin.buffer.read())


def offloads(interface: str, value: str) -> None:
    """Set tso, gso and gro of an interface to "0" or "1"."""
    from pytest_mnode.machine.netdev import ethtool

    for set_command in (0x1F, 0x24, 0x2C):
        ethtool(interface, set_command, int(value))


def unmount(path: str) -> None:
    """Unmount the uppermost mount at `path`."""
    namespaces.unmount(path)


def neighbour(address: str, interface: str) -> None:
    """Add an ARP entry for an address that nobody has, so that packets are sent to it."""
    hardware = bytes.fromhex("026d6effffff")
    request = struct.pack(
        "2s2x4s8x 2s14s i 16x 16s",
        struct.pack("H", socket.AF_INET),
        socket.inet_aton(address),
        struct.pack("H", 1),
        hardware,
        ATF_COM | ATF_PERM,
        interface.encode(),
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSARP, request)


def _stage() -> None:
    namespaces.mount("stage", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")


def _mount_points() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return {line.split()[4].replace("\\040", " ") for line in lines}


ACTS = {
    act.__name__: act
    for act in (
        *(replace, edit, write, remove, read_only),
        *(full, resize, add, own_view, sysctl, offloads, unmount, neighbour),
    )
}

if __name__ == "__main__":
    try:
        ACTS[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")
