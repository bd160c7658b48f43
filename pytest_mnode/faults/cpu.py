"""Faults of a node's processors: less of them, and somebody else on them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.faults.acting import LIMIT_S, processes_of, undone_once
from pytest_mnode.faults.registry import Undo, fault, number, whole
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack, cgroups

PERIOD_US = 10_000
LEAST_QUOTA_US = 1_000  # the kernel takes no less
SPIN = """
import os, sys
os.setsid()  # schedulers may share CPU time out by session: a neighbour has one of its own
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True: pass
"""
NEIGHBOURS = 1


@fault(number("PERCENT", "30", above=0.1, up_to=100_000))
def cpu_quota(rack: Rack, node: Node, percent: float | None) -> Undo:
    """All processes of a node together get this much of one processor, and no more.

    Of the node, ranks included, now and later; by a control group, which needs real root.
    """
    part = (percent or 30.0) / 100
    quota_us = max(LEAST_QUOTA_US, round(part * PERIOD_US))
    keeper = rack.keeper_pid
    assert keeper is not None
    found = cgroups.hierarchy_of("cpu")
    if found is None:
        raise UsageError("needs control groups with the cpu controller, and there are none here")
    hierarchy, version = found
    group = cgroups.group_of(hierarchy, keeper, node.name)
    home = cgroups.home_of(rack.pid_of(node), hierarchy, version)
    try:
        group.mkdir()
    except FileExistsError:
        raise UsageError(f"{node.name} has a quota already") from None
    except OSError as error:
        raise UsageError(f"needs real root: {group}: {error.strerror}") from None

    def undo() -> None:
        for pid in cgroups.members(group):
            cgroups.move(pid, home)
        cgroups.remove(group)

    try:
        cgroups.set_quota(group, version, quota_us, round(quota_us / part))
        for pid in processes_of(rack, node):
            cgroups.move(pid, group)
    except OSError as error:
        with contextlib.suppress(OSError):
            undo()
        raise ClusterError(f"{node.name}: no CPU quota: {error}") from error
    return undone_once(rack, undo)


@fault(whole("COUNT", "1", most=64))
def busy_neighbour(rack: Rack, node: Node, count: int | None) -> Undo:
    """Other processes of a node keep its processors busy, COUNT on each.

    They are this machine's processors, so all nodes get less of them.
    """
    python = [sys.executable, "-S", "-E", "-s", "-c", SPIN]
    spinning = [
        subprocess.Popen(
            rack.commands([node], [*python, str(cpu)])[0],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        for cpu in sorted(os.sched_getaffinity(0))
        for _ in range(count or NEIGHBOURS)
    ]

    def undo() -> None:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.wait(LIMIT_S)

    for process in spinning:
        assert process.stdout is not None
        with process.stdout as output:
            if not output.readline():
                undo()
                raise ClusterError(f"{node.name}: a process that spins ended at once")
    return undone_once(rack, undo)


@fault()
def stopped(rack: Rack, node: Node) -> Undo:
    """Every process that is on a node now stands still (SIGSTOP); its links stay up."""
    pids = processes_of(rack, node)
    _signal(pids, signal.SIGSTOP)
    return undone_once(rack, lambda: _signal(pids, signal.SIGCONT), node)


@fault()
def powered_off(rack: Rack, node: Node) -> Undo:
    """A node is off: its links are down, and nothing runs there."""
    rack.power_off(node)
    return undone_once(rack, lambda: rack.power_on(node))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
