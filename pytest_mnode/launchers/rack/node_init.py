"""The first process of a node: makes the node's namespaces, then sleeps and reaps orphans.

It is a fork of the rack's first process and no program of its own, so it starts no interpreter and
needs hardly any memory. When it is killed, the kernel kills everything on the node.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pytest_mnode import processes
from pytest_mnode.launchers.rack import mounts
from pytest_mnode.launchers.rack.plan import Plan
from pytest_mnode.launchers.rack.sysfs_tree import tree
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.namespaces import NEWIPC, NEWNET, NEWNS, NEWUTS

READY = "ready"
FAILED = "failed at "


def run(plan: Plan, index: int, report: int) -> NoReturn:
    """Become the node; writes each step's name to `report`, one per line, then READY or FAILED."""
    name = plan.node_name(index)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("namespaces", lambda: namespaces.unshare(NEWNET | NEWUTS | NEWIPC | NEWNS)),
        ("hostname", lambda: namespaces.set_hostname(name)),
        ("/proc", mounts.mount_proc),
        ("/sys", mounts.mount_sys),
        ("/etc/hosts", lambda: mounts.mount_names(plan.hosts())),
        ("/dev/shm", lambda: mounts.mount_shm(plan.shm_bytes)),
        ("ipv6", without_ipv6),
        ("sockets", lambda: show_sockets(plan, index)),
    ]
    step = "fork"
    try:
        processes.set_name(name)
        for step, action in steps:
            os.write(report, f"{step}\n".encode())
            action()
        os.write(report, f"{READY}\n".encode())
        sleep_for_ever()
    except BaseException as error:
        # Never raise: the frames above are a copy of the stack of the rack's first process.
        os.write(report, f"{FAILED}{step}: {error}\n".encode())
    os._exit(1)


def show_sockets(plan: Plan, index: int) -> None:
    """Show the node's sockets, if the plan has any."""
    board = plan.board(index)
    if board is not None:
        mounts.mount_shown(plan.shown_at, tree(board, plan.fabric.name, plan.management.name))


def without_ipv6() -> None:
    """Disable IPv6 on future interfaces: its announcements would only be noise on the links."""
    switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
    if switch.exists():
        switch.write_text("1", encoding="ascii")


def sleep_for_ever() -> NoReturn:
    """Hold the node's namespaces; the kernel reaps children of a process that ignores SIGCHLD."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while True:
        signal.pause()
