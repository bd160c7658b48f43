"""What the NICs of this machine have carried, in bytes: the one place that knows their units."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.probes.netdev import read_interfaces
from pytest_mnode.probes.rdma import Port

_WORD_BYTES = 4
"""Unit of port_xmit_data. Source: InfiniBand Architecture Specification 1.4, PortCounters."""
_STUCK = (1 << 32) - 1
"""Counters of 32 bits stay at their end."""


def sent_bytes(root: Path = Path("/")) -> dict[str, int]:
    """Bytes that each interface of this network namespace has sent since it exists, by name.

    Headers included. An interface whose counter cannot be read is absent. RDMA traffic passes the
    kernel by: `port_bytes` reads it from the port's own counters.
    """
    return {
        nic.name: nic.sent_bytes
        for nic in read_interfaces(root) or ()
        if nic.sent_bytes is not None
    }


def port_bytes(port: Port, *, sent: bool = True) -> int | None:
    """What an RDMA port has sent or received since it came up; None where it does not tell.

    EFA counts bytes among its driver's own counters. Source: Linux, drivers/infiniband/hw/efa.
    """
    words = (port.counters or {}).get("port_xmit_data" if sent else "port_rcv_data")
    if words is not None:
        return None if words == _STUCK else words * _WORD_BYTES
    return (port.hw_counters or {}).get("tx_bytes" if sent else "rx_bytes")
