"""Faults of resource limits on one node."""

from __future__ import annotations

import contextlib
import resource

from pytest_mnode.errors import UsageError
from pytest_mnode.faults.acting import inside, processes_of, undone_once
from pytest_mnode.faults.registry import Undo, fault, size, whole
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

LOW_MEMLOCK_BYTES = 64 << 10
LOW_NOFILE = 256
SMALL_BUFFERS_BYTES = 4 << 10


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
    names = ("tcp_rmem", "tcp_wmem")
    before = {name: inside(rack, node, "sysctl", f"net/ipv4/{name}", data=text) for name in names}

    def undo() -> None:
        for name, old in before.items():
            inside(rack, node, "sysctl", f"net/ipv4/{name}", data=old.encode())

    return undone_once(rack, undo, node)


def _limited(rack: Rack, node: Node, kind: int, limit: int) -> Undo:
    """Lower a limit for all that runs on the node, and with its first process all that will.

    The soft limit, which is what counts: a hard one could not be raised again by everybody.
    """
    before = resource.prlimit(rack.pid_of(node), kind)
    if before[0] != resource.RLIM_INFINITY and limit >= before[0]:
        raise UsageError(f"{node.name}: {limit} would lower nothing; it has {before[0]}")

    def undo() -> None:
        for pid in processes_of(rack, node):
            _set(pid, kind, before)

    for pid in processes_of(rack, node):
        _set(pid, kind, (limit, before[1]))
    return undone_once(rack, undo, node)


def _set(pid: int, kind: int, limits: tuple[int, int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, kind, limits)
