"""What differs in a node's file system from the host's: /proc, /sys, /dev/shm and name look-up.

A directory of its own shows the node's sockets. Everything else is the host's, and writable. These
files are never written to the host's disk: they are in a tmpfs of this mount namespace. They may be
edited in place: `echo … > /etc/hosts` changes the file on one node alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_mnode.launchers.rack.sysfs_tree import Tree
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.namespaces import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC

CGROUPS = "/sys/fs/cgroup"
RESOLV_CONF = "# The rack has no name server.\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n"


def mount_proc() -> None:
    """The caller's own PID namespace under /proc."""
    namespaces.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def mount_sys() -> None:
    """The caller's own network under /sys/class/net, with the host's cgroups where they were."""
    try:
        cgroups = os.open(CGROUPS, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        cgroups = None
    namespaces.mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if cgroups is not None:
        # The covered directory has no path any more; its descriptor still works.
        if Path(CGROUPS).is_dir():
            namespaces.mount(f"/proc/self/fd/{cgroups}", CGROUPS, flags=MS_BIND | MS_REC)
        os.close(cgroups)


def mount_names(hosts: str) -> None:
    """/etc/hosts with this text, and no other way to look up a host.

    Uses /dev/shm as the place to write, so the host's is hidden until `mount_shm`.
    """
    files = {"/etc/hosts": hosts, "/etc/resolv.conf": RESOLV_CONF}
    switch = Path("/etc/nsswitch.conf")
    if switch.exists():
        # systemd-resolved and the like answer on local sockets, also on nodes.
        text = switch.read_text(encoding="utf-8", errors="replace")
        files[str(switch)] = re.sub(r"(?m)^hosts:.*$", "hosts: files", text)
    namespaces.mount("names", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for target, text in files.items():
        # Without a resolv.conf resolvers ask 127.0.0.1, which is no server either.
        if target == "/etc/hosts" or Path(target).exists():
            private = Path("/dev/shm", Path(target).name)
            private.write_text(text, encoding="utf-8")
            namespaces.mount(str(private), target, flags=MS_BIND)
    namespaces.unmount("/dev/shm")


def mount_shm(size_bytes: int) -> None:
    """An empty /dev/shm; its size is a limit, not a reservation."""
    options = f"size={size_bytes},mode=1777"
    namespaces.mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options)


def mount_shown(directory: str, tree: Tree) -> None:
    """The files and links of `tree` below `directory`, which stays empty elsewhere."""
    options = "size=16m,mode=755"
    namespaces.mount("shown", directory, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    made: set[str] = set()
    for name in (*tree.files, *tree.links):
        folder = name.rpartition("/")[0]
        if folder not in made:
            os.makedirs(f"{directory}/{folder}", exist_ok=True)  # noqa: PTH103  half the time
            made.add(folder)
    for name, text in tree.files.items():
        with open(f"{directory}/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text + "\n")
    for name, target in tree.links.items():
        os.symlink(target, f"{directory}/{name}")  # noqa: PTH211
