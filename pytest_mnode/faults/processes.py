"""Faults of a node's power, processors, rank binding, limits, emulated devices and results.

Results are wrong now and then, without an error: ranks that the node starts from then on call
`spoiled.py` first. Jobs started by torchrun do not.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.faults.registry import Undo, fault, number, size, whole
from pytest_mnode.faults.tools import (
    LIMIT_S,
    all_undone,
    inside,
    processes_of,
    undone_inside,
    undone_once,
)
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack, cgroups
from pytest_mnode.launchers.rack.sockets import Board
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from pytest_mnode.reference_job.device import COMPUTE_FACTOR, INPUT_PAUSE

PERIOD_US = 10_000
LEAST_QUOTA_US = 1_000  # the kernel's minimum
SPIN = """
import os, sys
os.setsid()  # schedulers may share CPU time out by session: a neighbour has one of its own
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True: pass
"""
NEIGHBOURS = 1
LOW_MEMLOCK_BYTES = 64 << 10
LOW_NOFILE = 256
SMALL_BUFFERS_BYTES = 4 << 10
DEVICE_FACTOR, INPUT_PAUSE_MS = 1.4, 30.0
SPOILED = Path(__file__).with_name("spoiled.py")
EVERY, WRONG_PRODUCT = 7, 1000
STUCK_BYTE = 4096
LEAST_BYTES = 1 << 10
"""Smallest result that is spoiled: by smaller ones, ranks agree on what to do next."""


@fault(number("PERCENT", "30", above=0.1, up_to=100_000))
def cpu_quota(rack: Rack, node: Node, percent: float | None) -> Undo:
    """All processes of a node together get at most PERCENT of one processor.

    This includes present and later ranks. It is made by a control group, which needs real root.
    """
    part = (percent or 30.0) / 100
    quota_us = max(LEAST_QUOTA_US, round(part * PERIOD_US))
    daemon = rack.daemon_pid
    assert daemon is not None
    found = cgroups.hierarchy_of("cpu")
    if found is None:
        raise UsageError("needs control groups with the cpu controller, and there are none here")
    hierarchy, version = found
    group = cgroups.group_of(hierarchy, daemon, node.name)
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

    Nodes share this machine's processors, so all nodes get less of them.
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
                raise ClusterError(f"{node.name}: a busy process ended right after its start")
    return undone_once(rack, undo)


@fault()
def stopped(rack: Rack, node: Node) -> Undo:
    """Every process that runs on a node now is stopped (SIGSTOP); its links stay up."""
    pids = processes_of(rack, node)
    _signal(pids, signal.SIGSTOP)
    return undone_once(rack, lambda: _signal(pids, signal.SIGCONT), node)


@fault()
def powered_off(rack: Rack, node: Node) -> Undo:
    """A node is off: its links are down, and nothing runs there."""
    rack.ask(PowerOff(node.name))
    return undone_once(rack, lambda: rack.ask(PowerOn(node.name)))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@fault()
def numa_swapped(rack: Rack, node: Node) -> Undo:
    """A node binds the ranks that it starts to the socket after their accelerator's."""
    board = _board(rack, node)
    sockets = [(socket + 1) % len(board.sockets) for socket in board.accelerators]
    return _bound(rack, node, tuple(board.sockets[socket].cpus for socket in sockets))


@fault()
def numa_unbound(rack: Rack, node: Node) -> Undo:
    """A node does not bind the ranks that it starts."""
    return _bound(rack, node, ((),))


@fault()
def numa_crowded(rack: Rack, node: Node) -> Undo:
    """A node binds all ranks that it starts to one core; this is visible with two ranks or more."""
    board = _board(rack, node)
    first = board.sockets[board.accelerators[0]].cpus[0]
    cores = (core for numa_node in rack.plan.machine for core in numa_node.cores)
    return _bound(rack, node, (next(core for core in cores if first in core),))


def _board(rack: Rack, node: Node) -> Board:
    board = rack.plan.board(node.index)
    if board is None:
        why = node.shown.missing or "the spec has no topology"
        raise UsageError(f"{node.name} shows no sockets to bind to: {why}")
    return board


def _bound(rack: Rack, node: Node, cpus: tuple[tuple[int, ...], ...]) -> Undo:
    """Ranks that already run keep their binding."""
    if rack.rank_start(node).cpus is not None:
        raise UsageError(f"{node.name} has one of the numa faults already")
    rack.start_ranks(node, cpus=cpus)
    return undone_once(rack, lambda: rack.start_ranks(node, cpus=None))


@fault(size("SIZE", "64 KiB"))
def low_memlock(rack: Rack, node: Node, size_bytes: int | None) -> Undo:
    """Processes of a node may lock little memory (RLIMIT_MEMLOCK), which RDMA needs."""
    return _limited(rack, node, resource.RLIMIT_MEMLOCK, size_bytes or LOW_MEMLOCK_BYTES)


@fault(whole("COUNT", "256", least=64, most=1 << 20))
def low_nofile(rack: Rack, node: Node, count: int | None) -> Undo:
    """Processes of a node may have few files open (RLIMIT_NOFILE)."""
    return _limited(rack, node, resource.RLIMIT_NOFILE, count or LOW_NOFILE)


@fault(size("SIZE", "4 KiB"))
def small_buffers(rack: Rack, node: Node, size_bytes: int | None) -> Undo:
    """New TCP connections of a node send and receive with small buffers (tcp_rmem, tcp_wmem)."""
    size = size_bytes or SMALL_BUFFERS_BYTES
    text = f"{min(size, 4096)} {size} {size}".encode()
    undos = []
    for name in ("net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"):
        before = inside(rack, node, "sysctl", name, data=text)
        undos.append(undone_inside(rack, node, "sysctl", name, data=before.encode()))
    return all_undone(undos)


def _limited(rack: Rack, node: Node, kind: int, limit: int) -> Undo:
    """Lower a soft limit of all processes of a node; later ones inherit it from its first process.

    The hard limit stays, because without root nobody could raise it again.
    """
    before = resource.prlimit(rack.pid_of(node), kind)
    if before[0] != resource.RLIM_INFINITY and limit >= before[0]:
        raise UsageError(f"{node.name}: {limit} does not lower the limit, which is {before[0]}")

    def undo() -> None:
        for pid in processes_of(rack, node):
            _set(pid, kind, before)

    for pid in processes_of(rack, node):
        _set(pid, kind, (limit, before[1]))
    return undone_once(rack, undo, node)


def _set(pid: int, kind: int, limits: tuple[int, int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, kind, limits)


@fault(number("FACTOR", "1.4", above=1.0, up_to=100))
def slow_device(rack: Rack, node: Node, factor: float | None) -> Undo:
    """A node's emulated accelerator computes FACTOR times slower."""
    return _left_file(rack, node, COMPUTE_FACTOR, factor or DEVICE_FACTOR)


@fault(number("MS", "30", up_to=10_000))
def slow_input(rack: Rack, node: Node, pause_ms: float | None) -> Undo:
    """A node waits before each sample of its input."""
    return _left_file(rack, node, INPUT_PAUSE, (pause_ms or INPUT_PAUSE_MS) / 1e3)


def _left_file(rack: Rack, node: Node, path: Path, value: float) -> Undo:
    """Write a number to a file that only this node sees.

    The scaling job reads it when it starts; jobs that run already do not change.
    """
    inside(rack, node, "write", str(path), data=f"{value!r}\n".encode())
    return undone_inside(rack, node, "remove", str(path))


@fault(whole("EVERY", "7"), size("SIZE", "1 KiB"))
def stale_results(rack: Rack, node: Node, every: int | None, size_bytes: int | None) -> Undo:
    """One in EVERY of a node's collectives of SIZE or more returns the previous call's result."""
    return _spoiled(rack, node, "stale", every or EVERY, size_bytes or LEAST_BYTES)


@fault(whole("EVERY", "7"))
def wrong_layers(rack: Rack, node: Node, every: int | None) -> Undo:
    """One in EVERY of the linear layers that a node computes has wrong values in its result."""
    return _spoiled(rack, node, "wrong", every or EVERY)


@fault(whole("EVERY", "1000"), whole("AFTER", "0", least=0))
def wrong_products(rack: Rack, node: Node, every: int | None, after: int | None) -> Undo:
    """One in EVERY of the matrix products that a node computes is wrong, from the AFTERth on."""
    return _spoiled(rack, node, "product", every or WRONG_PRODUCT, after or 0)


@fault(whole("OFFSET", "4096", least=0, most=(1 << 16) - 1))
def stuck_bit(rack: Rack, node: Node, offset: int | None) -> Undo:
    """A bit of the memory that a node's ranks test is stuck at 1, in the byte at OFFSET."""
    return _spoiled(rack, node, "stuck", STUCK_BYTE if offset is None else offset)


def _spoiled(rack: Rack, node: Node, function: str, *values: int) -> Undo:
    if rack.rank_start(node).first:
        raise UsageError(f"{node.name} already has a fault that spoils results")
    rack.start_ranks(node, first=(str(SPOILED), function, *map(str, values)))
    return undone_once(rack, lambda: rack.start_ranks(node, first=()))
