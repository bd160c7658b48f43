"""What the system lets a process have, as most nodes show it. Pure."""

from __future__ import annotations

from pytest_mnode.discover.agreeing import alike
from pytest_mnode.discover.cluster import Cluster, look_of
from pytest_mnode.discover.facts import NodeLook
from pytest_mnode.spec.quantity import SIZE

_NONE = "none"


def limits(cluster: Cluster) -> tuple[int | None, str | None, int | None]:
    """Bytes of shared memory, locked memory as a page says it, and how many files can be open.

    None where no node tells it, or none has the majority. The least of all nodes would be that of
    a broken one, and no other would be asked for more.
    """
    sizes = alike(_rounded(look_of(node).shm_bytes) for node in cluster.nodes)
    shm = cluster.of(
        "size of /dev/shm",
        lambda look: None if (size := _rounded(look.shm_bytes)) is None else sizes[size],
        lambda size: SIZE.text(size) if size else "less than 1 MiB",
    )
    memlock = cluster.of("locked memory", _memlock)
    locked = None if memlock.value == _NONE else memlock.value
    return shm.value, locked, cluster.of("open files", lambda look: look.open_files).value


def _rounded(size_bytes: int | None) -> int | None:
    """Down to GiB, or to MiB below that."""
    if size_bytes is None:
        return None
    unit = 1 << (30 if size_bytes >= 1 << 30 else 20)
    return size_bytes // unit * unit


def _memlock(look: NodeLook) -> str | None:
    if look.memlock_unlimited:
        return "unlimited"
    if look.memlock_bytes is None:
        return None
    return SIZE.text(look.memlock_bytes) if look.memlock_bytes else _NONE
