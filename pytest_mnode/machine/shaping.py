"""Rates of the shaping queues of this network namespace.

Emulated links have no speed of their own: veth always reports 10000 Mbit/s.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from pytest_mnode.machine.netlink import attributes, dumped, messages

_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_TBF_PARMS, _TCA_TBF_RATE64 = 1, 4
_TCMSG = struct.Struct("=B3xiIII")


def shaped_mbits_s() -> dict[str, float]:
    """Egress rate in Mbit/s of each interface with a tbf queue at the root, by name.

    Raises OSError if the kernel does not answer.
    """
    names = dict(socket.if_nameindex())
    found: dict[int, float] = {}
    for data in dumped(_RTM_GETQDISC, _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        found |= parse_queues(data)
    return {names[index]: rate for index, rate in found.items() if index in names}


def parse_queues(data: bytes) -> Mapping[int, float]:
    """Rates in Mbit/s by interface index in one packet of the answer.

    Source: Linux, include/uapi/linux/pkt_sched.h (tc_tbf_qopt) and rtnetlink.h.
    """
    found: dict[int, float] = {}
    for kind, body in messages(data):
        if kind != _RTM_NEWQDISC or len(body) < _TCMSG.size:
            continue
        _, index, _, parent, _ = _TCMSG.unpack_from(body)
        queue = dict(attributes(body[_TCMSG.size :]))
        is_root = parent == 0xFFFFFFFF
        if is_root and queue.get(_TCA_KIND, b"").rstrip(b"\0") == b"tbf":
            rate = _tbf_rate(dict(attributes(queue.get(_TCA_OPTIONS, b""))))
            if rate is not None:
                found[index] = rate * 8 / 1e6
    return found


def _tbf_rate(options: Mapping[int, bytes]) -> int | None:
    """Rate in bytes/s; a rate that does not fit 32 bits has an attribute of its own."""
    wide, parameters = options.get(_TCA_TBF_RATE64, b""), options.get(_TCA_TBF_PARMS, b"")
    if len(wide) >= 8:
        return int(struct.unpack_from("=Q", wide)[0])
    if len(parameters) >= 12:
        return int(struct.unpack_from("=I", parameters, 8)[0])
    return None
