"""Rates that queues of this network namespace are shaped to, by netlink.

Emulated links have no speed of their own: veth reports 10000 Mbit/s whatever it carries. pyroute2
would do this too, but takes longer to import than a survey of a whole node takes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_NLM_F_DUMP, _NLM_F_REQUEST = 0x300, 0x001
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_TBF_PARMS, _TCA_TBF_RATE64 = 1, 4
_HEADER = struct.Struct("=IHHII")
_TCMSG = struct.Struct("=B3xiIII")
_ATTRIBUTE = struct.Struct("=HH")
_LIMIT_S = 1.0


def shaped_mbits_s() -> dict[str, float]:
    """The most that leaves an interface, Mbit/s, by name, of those with a tbf queue at the root.

    Raises OSError where the kernel does not answer.
    """
    names = dict(socket.if_nameindex())
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(_LIMIT_S)
        request = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        header = _HEADER.pack(_HEADER.size + len(request), _RTM_GETQDISC, flags, 1, 0)
        netlink.sendall(header + request)
        found: dict[int, float] = {}
        done = False
        while not done:
            rates, done = parse_queues(netlink.recv(1 << 17))
            found |= rates
    return {names[index]: rate for index, rate in found.items() if index in names}


def parse_queues(data: bytes) -> tuple[Mapping[int, float], bool]:
    """Rates in Mbit/s by interface index in one packet of the answer, and whether it is the last.

    Source: Linux, include/uapi/linux/pkt_sched.h (tc_tbf_qopt) and rtnetlink.h.
    """
    found: dict[int, float] = {}
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < _HEADER.size:
            return found, True
        body, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
        if kind != _RTM_NEWQDISC or len(body) < _TCMSG.size:
            continue
        _, index, _, parent, _ = _TCMSG.unpack_from(body)
        attributes = dict(_attributes(body[_TCMSG.size :]))
        is_root = parent == 0xFFFFFFFF
        if is_root and attributes.get(_TCA_KIND, b"").rstrip(b"\0") == b"tbf":
            rate = _tbf_rate(dict(_attributes(attributes.get(_TCA_OPTIONS, b""))))
            if rate is not None:
                found[index] = rate * 8 / 1e6
    return found, False


def _tbf_rate(options: Mapping[int, bytes]) -> int | None:
    """Bytes a second; rates that 32 bits do not hold come in an attribute of their own."""
    wide, parameters = options.get(_TCA_TBF_RATE64, b""), options.get(_TCA_TBF_PARMS, b"")
    if len(wide) >= 8:
        return int(struct.unpack_from("=Q", wide)[0])
    if len(parameters) >= 12:
        return int(struct.unpack_from("=I", parameters, 8)[0])
    return None


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
