"""What the NICs of this machine have carried, in bytes: the one place that knows their counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_mnode.machine.netdev import read_interfaces
from pytest_mnode.machine.rdma import Port, read_rdma

_WORD_BYTES = 4
"""Unit of port_xmit_data. Source: InfiniBand Architecture Specification 1.4, PortCounters."""
_STUCK = (1 << 32) - 1
"""Counters of 32 bits stay at their end."""
_WORDS = {True: "port_xmit_data", False: "port_rcv_data"}
_TOTALS = {
    True: (
        ("tx_bytes",),
        ("hw_tx_bytes_cnt",),
        ("tx_bytes_cnt",),
        ("ip4OutOctets", "ip6OutOctets"),
    ),
    False: (("rx_bytes",), ("hw_rx_bytes_cnt",), ("rx_bytes_cnt",), ("ip4InOctets", "ip6InOctets")),
}
"""Totals of drivers, sent or received: EFA and bnxt_re, erdma (old and new), irdma and i40iw."""
_EFA_PARTS = {
    True: ("send_bytes", "rdma_write_bytes", "rdma_read_resp_bytes"),
    False: ("recv_bytes", "rdma_write_recv_bytes", "rdma_read_bytes"),
}


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


def sent_so_far(root: Path = Path("/")) -> dict[str, int]:
    """Bytes sent so far by each interface and each RDMA port of this node, such as mlx5_0:1."""
    ports = [port for device in read_rdma(root) or () for port in device.ports]
    told = {port.name: port_bytes(port) for port in ports}
    return sent_bytes(root) | {name: sent for name, sent in told.items() if sent is not None}


def port_bytes(port: Port, *, sent: bool = True) -> int | None:
    """Bytes that an RDMA port has sent or received since it came up; None where it does not tell.

    mlx4, mlx5, hfi1 and others count words in `counters`, the drivers of `_TOTALS` count bytes in
    `hw_counters`; soft-RoCE, soft-iWARP and hns count packets or nothing.

    EFA's tx_bytes is the total of the device, RDMA included: in published readings of an all-reduce
    by RDMA reads it exceeds rdma_read_bytes by under 2%. The counters of single operations are
    parts of it, so adding them would count bytes twice. They count only where together they exceed
    it, as with a device whose total leaves RDMA out.

    Sources: Linux, drivers/infiniband/hw: efa/efa_verbs.c, bnxt_re/hw_counters.c,
    erdma/erdma_verbs.c, irdma/verbs.c; Amazon EC2 user guide, "Monitor an Elastic Fabric Adapter".
    """
    words = (port.counters or {}).get(_WORDS[sent])
    if words is not None:
        return None if words == _STUCK else words * _WORD_BYTES
    if f"counters/{_WORDS[sent]}" in port.unreadable:
        return None
    counters = port.hw_counters or {}
    sums = [
        sum(counters.get(name, 0) for name in names)
        for names in (*_TOTALS[sent], _EFA_PARTS[sent])
        if not counters.keys().isdisjoint(names)
    ]
    return max(sums, default=None)


def grown(before: int | None, after: int | None) -> int | None:
    """By how much a counter rose; None where a reading lacks it, or it went back, as by a reset."""
    return None if before is None or after is None or after < before else after - before


def grown_by(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each counter rose, by name; without those of which it is not known."""
    rises = {name: grown(before.get(name), count) for name, count in after.items()}
    return {name: rise for name, rise in rises.items() if rise is not None}
