"""Mounts by which a node's files differ from the host's: /proc, /sys, /dev/shm and name look-up.

One more directory shows the node's sockets. All other files are the host's, and writable. The
node's own files are never on the host's disk: they are in a tmpfs of its mount namespace. They may
be edited in place: `echo … > /etc/hosts` changes the file on one node alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_mnode.launchers.rack.cgroups import ROOT as CGROUPS
from pytest_mnode.launchers.rack.sysfs_tree import Tree
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.namespaces import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC

RESOLV_CONF = "# The rack has no name server.\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n"


def mount_proc() -> None:
    namespaces.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def mount_sys() -> None:
    """Mount /sys with the caller's own network in /sys/class/net, and with the host's cgroups."""
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
    """Mount an /etc/hosts with this text, and leave no other way to look up a host.

    The files are in a tmpfs that is mounted on /dev/shm meanwhile, and hides the host's.
    """
    files = {"/etc/hosts": hosts, "/etc/resolv.conf": RESOLV_CONF}
    switch = Path("/etc/nsswitch.conf")
    if switch.exists():
        # Otherwise systemd-resolved and the like would answer over local sockets, also on nodes.
        text = switch.read_text(encoding="utf-8", errors="replace")
        files[str(switch)] = re.sub(r"(?m)^hosts:.*$", "hosts: files", text)
    namespaces.mount("names", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for target, text in files.items():
        # Without a resolv.conf, resolvers ask 127.0.0.1, where there is no server either.
        if target == "/etc/hosts" or Path(target).exists():
            private = Path("/dev/shm", Path(target).name)
            private.write_text(text, encoding="utf-8")
            namespaces.mount(str(private), target, flags=MS_BIND)
    namespaces.unmount("/dev/shm")


def mount_shm(size_bytes: int) -> None:
    """Mount an empty /dev/shm; its size is a limit, not a reservation."""
    options = f"size={size_bytes},mode=1777"
    namespaces.mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options)


def mount_shown(directory: str, tree: Tree) -> None:
    """Mount the files and links of `tree` at `directory`, which stays empty outside the node."""
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
