"""What this node has sent, and this process has waited for, so far."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.bench.wires import Beneath, beneath_of
from pytest_mnode.probes import sysfs
from pytest_mnode.probes.netdev import read_interfaces
from pytest_mnode.probes.nic import port_bytes, sent_bytes
from pytest_mnode.probes.rdma import read_rdma


def sent_so_far() -> dict[str, int]:
    """Bytes sent so far by each interface and RDMA port of this node."""
    counts = sent_bytes()
    for device in read_rdma() or ():
        for port in device.ports:
            if (sent := port_bytes(port)) is not None:
                counts[port.name] = sent
    return counts


def same_bytes() -> Beneath:
    """Which interfaces and RDMA devices of this node count the same bytes."""
    return beneath_of(read_interfaces() or (), read_rdma() or ())


def starved_so_far_s(root: Path = Path("/")) -> float | None:
    """Seconds for which threads of this process were ready and had no CPU, all added up."""
    waited_ns = 0
    for path in sysfs.entries(root / "proc/self/task"):
        fields = (sysfs.text(path / "schedstat") or "").split()
        waited = sysfs.number_of(fields[1]) if len(fields) > 1 else None
        if waited is None:
            return None
        waited_ns += waited
    return waited_ns / 1e9


def grown(before: float | None, after: float | None) -> float | None:
    """By how much; None where either is not known."""
    return None if before is None or after is None else max(0.0, after - before)
