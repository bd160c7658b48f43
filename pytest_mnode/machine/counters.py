"""Counters of NICs: bytes carried, errors between two readings, and pause frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_mnode.machine.netdev import physical_below, read_interfaces
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.machine.rdma import Port, read_rdma

_WORD_BYTES = 4
"""Unit of port_xmit_data. Source: InfiniBand Architecture Specification 1.4, PortCounters."""
_ROCE_PACKET_BYTES = 4096 + 14 + 40 + 8 + 12 + 16 + 4
"""Largest RDMA MTU plus the largest RoCE v2 headers on Ethernet."""
_SEGMENT_BYTES = 1 << 16
"""Largest size that an interface counts as one packet: TCP leaves segmentation to the NIC."""
_STUCK = (1 << 32) - 1
"""Largest value of a 32-bit counter, at which it stops."""
_WORDS = {True: "port_xmit_data", False: "port_rcv_data"}
_SENT = (
    ("tx_bytes",),
    ("hw_tx_bytes_cnt",),
    ("tx_bytes_cnt",),
    ("ip4OutOctets", "ip6OutOctets"),
    ("tx_rdma_ucast_bytes", "tx_rdma_mcast_bytes"),
)
"""Drivers' counters of all bytes sent: EFA and bnxt_re, erdma (old and new), irdma and i40iw,
ionic."""
_RECEIVED = tuple(
    tuple(name.replace("tx_", "rx_").replace("Out", "In") for name in names) for names in _SENT
)
_TOTALS = {True: _SENT, False: _RECEIVED}
_EFA_PARTS = {
    True: ("send_bytes", "rdma_write_bytes", "rdma_read_resp_bytes"),
    False: ("recv_bytes", "rdma_write_recv_bytes", "rdma_read_bytes"),
}
BYTES_SENT = frozenset({_WORDS[True], *_EFA_PARTS[True], *(n for names in _SENT for n in names)})
_PAUSE = re.compile(
    r"^\s*(?:"
    r"[rt]x_prio\d_pause"  # mlx5
    r"|[rt]x_pfc_ena_frames_pri\d"  # bnxt
    r"|priority_\d_x(?:on|off)_[rt]x|[rt]x_priority_\d_x(?:on|off)(?:\.nic)?"  # i40e, ice
    r"|frames_[rt]x_(?:pri)?pause"  # ionic
    r"|mac_[rt]x_(?:mac_pause_num|pfc_pri\d_pkt_num)"  # hns3
    r"|[rt]x_pause_ctrl_phy|[rt]x_pause_frames|[rt]x_global_pause"
    r"):\s*(\d+)\s*$",
    re.MULTILINE,
)
"""Source: Linux, Documentation/networking/device_drivers/ethernet, counters of mlx5; drivers bnxt,
i40e and ice, *_ethtool.c; ionic_stats.c; hns3, hclge_main.c."""


def sent_bytes(root: Path = Path("/")) -> dict[str, int]:
    """Bytes that each interface of this network namespace has sent since its creation, by name.

    Headers are included. An interface whose counter cannot be read is absent. RDMA traffic
    bypasses the kernel: `port_bytes` reads it from the port's own counters.
    """
    return {
        nic.name: nic.sent_bytes
        for nic in read_interfaces(root) or ()
        if nic.sent_bytes is not None
    }


def sent_so_far(root: Path = Path("/")) -> dict[str, int]:
    """Bytes sent so far by each interface and each RDMA port of this node, such as mlx5_0:1."""
    ports = [port for device in read_rdma(root) or () for port in device.ports]
    carried = {port.name: port_bytes(port) for port in ports}
    return sent_bytes(root) | {name: sent for name, sent in carried.items() if sent is not None}


def port_bytes(port: Port, *, sent: bool = True) -> int | None:
    """Bytes that an RDMA port has sent or received since it came up; None if unknown.

    mlx4, mlx5, hfi1 and others count words in `counters`, the drivers of `_TOTALS` count bytes in
    `hw_counters`; soft-RoCE, soft-iWARP and hns count packets or nothing.

    EFA's tx_bytes is the total of the device, RDMA included: in published readings of an all-reduce
    by RDMA reads it exceeds rdma_read_bytes by under 2%. The counters of single operations are
    parts of it, so adding them would count bytes twice. Their sum is used only if it exceeds the
    total, as on a device whose total excludes RDMA.

    Sources: Linux, drivers/infiniband/hw: efa/efa_verbs.c, bnxt_re/hw_counters.c,
    erdma/erdma_verbs.c, irdma/verbs.c; Amazon EC2 user guide, "Monitor an Elastic Fabric Adapter".
    """
    if (port.counters or {}).get(_WORDS[sent]) == _STUCK:
        return None
    unreadable = {_WORDS[sent]: None} if f"counters/{_WORDS[sent]}" in port.unreadable else {}
    return bytes_of({**(port.hw_counters or {}), **(port.counters or {}), **unreadable}, sent=sent)


def bytes_of(counters: Mapping[str, int | None], *, sent: bool = True) -> int | None:
    """Bytes by the counters of an RDMA port, or by how they rose; None if unknown."""
    if _WORDS[sent] in counters:
        words = counters[_WORDS[sent]]
        return None if words is None else words * _WORD_BYTES
    sums = [
        sum(counters.get(name) or 0 for name in names)
        for names in (*_TOTALS[sent], _EFA_PARTS[sent])
        if not counters.keys().isdisjoint(names)
    ]
    return max(sums, default=None)


def port_packets(port: Port, *, sent: bool = True) -> int | None:
    """Packets of a port whose driver counts no bytes, such as soft-RoCE; else None."""
    return (port.hw_counters or {}).get("sent_pkts" if sent else "rcvd_pkts")


def estimated_port_bytes(packets: int, netdev_packets: int, netdev_bytes: int) -> int | None:
    """Bytes of a port that counts only packets, estimated from the interface that it sends over.

    All arguments are increases between the same two readings. Other packets on the interface are
    ignored if there is at most one per 100 of the port's. None if there are more and they could
    hold more than one segment, or if the interface does not count the port's packets.
    """
    other_packets = netdev_packets - packets
    most = min(packets * _ROCE_PACKET_BYTES, netdev_bytes)
    least = max(0, netdev_bytes - other_packets * _SEGMENT_BYTES)
    known = 100 * other_packets <= packets or most - least <= _SEGMENT_BYTES
    return most if other_packets >= 0 and known else None


_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_data": 32,
    "port_rcv_data": 32,
    "port_xmit_packets": 32,
    "port_rcv_packets": 32,
    "port_xmit_wait": 32,
}
"""Widths in bits of the PMA's counters, which stop at their largest value instead of wrapping."""
_CONGESTION = re.compile(r"port_xmit_wait|.*(?:cnp|ecn|congestion|pause).*|.*_throttled?$")
_LOSS = re.compile(
    r"out_of_seq\w*|packet_seq_err|duplicate_request|implied_nak_seq_err|local_ack_timeout_err"
    r"|rcvd_seq_err|completer_retry_err|roce_adp_retrans\w*|roce_slow_restart\w*|(?:tcp)?retrans\w*"
    r"|.*rnr_nak_retry_err|send_rnr_err|rcvd_rnr_err|.*_naks?(?:_rcvd)?|(?:.*_)?dup_req(?:uest)?"
    r"|to_retransmits|missing_resp|oos_drop_count|.*_oos|out_of_buffer"
    # The subnet manager's packets that arrived too fast, and EFA's (SRD): both are retransmitted.
    r"|vl15_dropped|rx_drops"
    # ionic: NAKs received and sent, packets out of order, retransmissions.
    r"|req_rx_(?:pkt_seq|impl_nak_seq|rnr_retry)_err|resp_tx_(?:pkt_seq|rnr_retry)_err"
    r"|resp_rx_out(?:of_buf|ouf_seq)|tx_rdma_(?:ack_timeout|retx_pkts)"
)
# A queue pair flushes its pending requests whenever it is closed. A multicast that a switch sends
# back to its origin is counted as a relay error. soft-RoCE counts answers that it handles a little
# later. EFA and hns count commands of programs that the driver refused, such as an object too many.
_ORDERLY = re.compile(
    r".*cqe_flush_error|port_rcv_switch_relay_errors|ack_deferred"
    r"|cmds_err|mmap_err(?:_cnt)?|(?:alloc|create|reg)_(?:pd|qp|cq|srq|mr|ah|ucontext)_err"
    r"|(?:qp|cq|srq|ah|mr|xrcd|uctx)_(?:create|modify|alloc|reg|rereg)_err_cnt"
)
_ERROR = re.compile(
    r".*(?:err|drop|discard|exceed|downed|recovery|overrun|violation|fail|unresponsive"
    r"|impaired|timeout|integrity|icrc|invalid|mismatch|no_perm|oflow|unsup|unaligned|trunc|noroute"
    r").*"
)


_BIT_ERRORS = (
    *("symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("rx_errors", "rx_crc_errors", "rx_frame_errors"),
)
BIT_ERRORS_FALSE_ALARM = 1e-3
"""Share of clusters whose links all just keep their bit error rate of which one is accused."""


class CounterMeaning(StrEnum):
    """Meaning of an increase of a counter.

    ERROR: a component is broken, or an operation was given up. LOSS: packets were lost, duplicated
    or out of order, and recovered. CONGESTION: senders waited or were slowed down. OTHER: work that
    was done, or an unknown counter.
    """

    ERROR = "error"
    LOSS = "loss"
    CONGESTION = "congestion"
    OTHER = "other"


def counts_the_link(counter: str) -> bool:
    """Whether a counter belongs to the port's own link, not to connections that use it."""
    return counter in _BITS


def counts_bit_errors(counter: str) -> bool:
    """Whether a counter counts symbols or packets that arrived damaged: a few are no fault."""
    return counter in _BIT_ERRORS


def meaning(counter: str) -> CounterMeaning:
    """Meaning of a counter's increase, by its name in `counters` or `hw_counters`; never raises.

    Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/hw.
    """
    name = counter.lower()  # irdma writes tcpRetransSegs and RxECNMrkd
    if _ORDERLY.fullmatch(name):
        return CounterMeaning.OTHER
    if _CONGESTION.fullmatch(name):
        return CounterMeaning.CONGESTION
    if _LOSS.fullmatch(name):
        return CounterMeaning.LOSS
    return CounterMeaning.ERROR if _ERROR.fullmatch(name) else CounterMeaning.OTHER


def in_use(name: str) -> bool:
    """Whether `name` is a number of objects in use now, which bnxt_re lists among its counters."""
    return name.startswith("active_")


def increase(before: int | None, after: int | None, counter: str = "") -> int | None:
    """Increase of a counter; None if unknown: unread, reset, or at its largest value.

    counter: its name in `counters` or `hw_counters`; "" if it has no largest value.
    """
    if before is None or after is None or after < before:
        return None
    full = (1 << _BITS[counter]) - 1 if counter in _BITS else None
    if after == full and (before == full or meaning(counter) is not CounterMeaning.ERROR):
        return None  # a counter at its largest value misses further events
    return after - before


def increases(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Increase of each count by interface or port; those with an unknown increase are absent."""
    found = {name: increase(before.get(name), count) for name, count in after.items()}
    return {name: by for name, by in found.items() if by is not None}


def error_increases(before: Port, after: Port | None) -> dict[str, int | None]:
    """Increase of each counter of errors, and of packets that were lost and recovered.

    None if unknown: the counter or the port cannot be read, or see `increase`.
    """
    first = {**(before.hw_counters or {}), **(before.counters or {})}
    last = {**(after.hw_counters or {}), **(after.counters or {})} if after else {}
    unreadable = {name.rpartition("/")[2] for name in before.unreadable if "counters/" in name}
    found = counter_increases(sorted({*first, *unreadable}), first, last)
    judged = (CounterMeaning.ERROR, CounterMeaning.LOSS)
    return {name: by for name, by in found.items() if meaning(name) in judged}


def counter_increases(
    names: Iterable[str], before: Mapping[str, int | None], after: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Increase of each of these counters of a port, see `increase`.

    mlx5 also counts flushed completions among completions with errors; they are subtracted.
    """
    found = {name: increase(before.get(name), after.get(name), name) for name in names}
    for side in ("req", "resp"):
        every, flushed = found.get(f"{side}_cqe_error"), found.get(f"{side}_cqe_flush_error")
        if every is not None and flushed is not None:
            found[f"{side}_cqe_error"] = max(0, every - flushed)
    return found


def frames_in(text: str) -> int | None:
    """The pause frames in the output of `ethtool -S`, both ways; None if it counts none."""
    counts = _PAUSE.findall(text)
    return sum(map(int, counts)) if counts else None


def pause_frames(patterns: Sequence[str], root: Path = Path("/")) -> int | str:
    """Pause frames that the fabric's NICs sent and received so far, or why they are not known."""
    known = {one.name: one for one in read_interfaces(root) or ()}
    of_rdma: Iterable[str] = (
        name
        for device in read_rdma(root) or ()
        if any(fnmatchcase(device.name, pattern) for pattern in patterns)
        for name in device.netdevs
    )
    named = {name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)}
    named |= set(of_rdma) & known.keys()
    wires = sorted({wire for name in named for wire in physical_below(known[name], known)})
    if not wires:
        return "no NIC of the fabric counts pauses"
    total = 0
    for wire in wires:
        try:
            frames = frames_in(output_of("ethtool", "-S", wire, package="ethtool"))
        except NoOutput as error:
            return str(error)
        if frames is None:
            return f"ethtool -S {wire} counts no pause frames"
        total += frames
    return total
