"""Kernel tables of this network namespace, read by netlink.

pyroute2 would do this too, but takes longer to import than a survey of a whole node takes.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NLM_F_DUMP, _NLM_F_REQUEST = 0x300, 0x001
_ERROR, _DONE = 2, 3
_ENDS = (_ERROR, _DONE)
_NOTHING = (_DONE, b"")
_HEADER = struct.Struct("=IHHII")
_STATUS = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_LIMIT_S = 1.0
_RTM_NEWROUTE, _RTM_GETROUTE, _RTM_NEWRULE, _RTM_GETRULE = 24, 26, 32, 34
_DST, _SRC, _OIF, _GATEWAY, _PRIORITY, _TABLE = 1, 2, 4, 5, 6, 15
_ROUTE_OR_RULE = struct.Struct("=BBBBBBBBI")
"""Layout of both rtmsg and fib_rule_hdr: family, dst_len, …, table, …, type or action, flags."""
_KINDS = {6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_MAIN = 254
_ERRORS = {
    "blackhole": errno.EINVAL,
    "unreachable": errno.EHOSTUNREACH,
    "prohibit": errno.EACCES,
    "throw": errno.ENETUNREACH,
}
"""Errno with which a connection fails. Source: ip-route(8), "Route types"."""
_RTM_NEWNEIGH, _RTM_GETNEIGH = 28, 30
_NDA_DST, _NDA_LLADDR, _NUD_ANSWERED, _NUD_PERMANENT = 1, 2, 0x1E, 0x80
_NDMSG = struct.Struct("=B3xiHBB")
_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_TBF_PARMS, _TCA_TBF_RATE64 = 1, 4
_TCMSG = struct.Struct("=B3xiIII")


def dumped(request: int, body: bytes) -> Iterator[bytes]:
    """Packets of the kernel's answer to a request for a whole table.

    Raises OSError if the kernel does not answer, or refuses.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(_LIMIT_S)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        netlink.sendall(_HEADER.pack(_HEADER.size + len(body), request, flags, 1, 0) + body)
        kind = 0
        while kind not in _ENDS:
            data = netlink.recv(1 << 17)
            kind, last = (messages(data) or [_NOTHING])[-1]
            # Both an error and the end of a table begin with a status, which is negative or 0.
            status = -_STATUS.unpack_from(last)[0] if kind in _ENDS and len(last) >= 4 else 0
            if status > 0:
                raise OSError(status, os.strerror(status), "netlink")
            yield data


def answered(request: int, body: bytes) -> list[tuple[int, bytes]]:
    """Messages of the kernel's answer to a request for one entry. Raises OSError, as `dumped`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(_LIMIT_S)
        header = _HEADER.pack(_HEADER.size + len(body), request, _NLM_F_REQUEST, 1, 0)
        netlink.sendall(header + body)
        found = messages(netlink.recv(1 << 17))
    for kind, last in found:
        if kind == _ERROR and len(last) >= 4:
            status = -_STATUS.unpack_from(last)[0]
            raise OSError(status, os.strerror(status), "netlink")
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute of a request, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def messages(data: bytes) -> list[tuple[int, bytes]]:
    """Type and body of each message in a packet; one of `_ENDS` is the last of an answer."""
    found: list[tuple[int, bytes]] = []
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return [*found, _NOTHING]
        found.append((kind, data[_HEADER.size : length]))
        if kind in _ENDS:
            break
        data = data[(length + 3) & ~3 :]
    return found


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A route or rule that refuses packets. kind: such as "blackhole". what: "route" or "rule".

    destination: a network, such as "10.0.0.4/32". undo: the command that removes it.
    """

    kind: str
    what: str
    destination: str
    undo: str

    def explains(self, address: str, problem: str) -> bool:
        """Whether it is the reason why a connection to an IP address fails with error `problem`.

        The error is compared because a wider route of this kind may lie beneath one that works.
        """
        inside = ipaddress.ip_address(address) in ipaddress.ip_network(self.destination)
        return inside and problem.startswith(os.strerror(_ERRORS[self.kind]).lower())

    def __str__(self) -> str:
        return f"{self.kind} {self.what} to {self.destination} ({self.undo})"


def read_refusals() -> tuple[Refusal, ...]:
    """Refusals of all tables, IPv4 and IPv6. Raises OSError if the kernel does not answer."""
    body = _ROUTE_OR_RULE.pack(socket.AF_UNSPEC, *[0] * 8)
    requests = (_RTM_GETROUTE, _RTM_GETRULE)
    return tuple(
        one
        for request in requests
        for data in dumped(request, body)
        for one in parse_refusals(data)
    )


def route(destination: str, source: str) -> tuple[str | None, str | None]:
    """Interface and gateway of packets between two IP addresses; None for what there is not."""
    there, own = (ipaddress.ip_address(text.partition("%")[0]) for text in (destination, source))
    family = socket.AF_INET if there.version == 4 else socket.AF_INET6
    body = _ROUTE_OR_RULE.pack(family, there.max_prefixlen, own.max_prefixlen, *[0] * 6)
    body += attribute(_DST, there.packed) + attribute(_SRC, own.packed)
    try:
        for kind, data in answered(_RTM_GETROUTE, body):
            found = dict(attributes(data[_ROUTE_OR_RULE.size :]))
            if kind == _RTM_NEWROUTE and _OIF in found:
                by = found.get(_GATEWAY)
                gateway = str(ipaddress.ip_address(by)) if by else None
                return socket.if_indextoname(_number(found, _OIF, 0)), gateway
    except OSError:
        pass
    return None, None


def neighbour_mac(destination: str) -> tuple[str | None, bool]:
    """MAC of an IP address by this node's neighbour tables, None if they have none; and whether by
    a permanent entry, which no answer of another node changes.

    Source: Linux, include/uapi/linux/neighbour.h (ndmsg).
    """
    there = ipaddress.ip_address(destination.partition("%")[0])
    with contextlib.suppress(OSError):
        for data in dumped(_RTM_GETNEIGH, bytes(_NDMSG.size)):
            for kind, entry in messages(data):
                if kind != _RTM_NEWNEIGH or len(entry) < _NDMSG.size:
                    continue
                found = dict(attributes(entry[_NDMSG.size :]))
                state = _NDMSG.unpack_from(entry)[2]
                known = state & (_NUD_ANSWERED | _NUD_PERMANENT)
                if found.get(_NDA_DST) == there.packed and known:
                    return found.get(_NDA_LLADDR, b"").hex(":"), bool(state & _NUD_PERMANENT)
    return None, False


def parse_refusals(data: bytes) -> list[Refusal]:
    """Refusals in one packet of the kernel's answer.

    Source: Linux, include/uapi/linux/rtnetlink.h (rtmsg) and fib_rules.h (fib_rule_hdr).
    """
    found = []
    for message, body in messages(data):
        if message not in (_RTM_NEWROUTE, _RTM_NEWRULE) or len(body) < _ROUTE_OR_RULE.size:
            continue
        family, bits, _, _, table, _, _, number, _ = _ROUTE_OR_RULE.unpack_from(body)
        known = dict(attributes(body[_ROUTE_OR_RULE.size :]))
        size = {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family)
        address = known.get(_DST, bytes(size or 0))
        if number not in _KINDS or size != len(address) or bits > size * 8:
            continue
        # The kernel keeps the bits of a rule's address beyond its mask.
        kind, network = _KINDS[number], str(ipaddress.ip_network((address, bits), strict=False))
        ip = "ip -6" if family == socket.AF_INET6 else "ip"
        if message == _RTM_NEWRULE:
            undo = f"{ip} rule del priority {_number(known, _PRIORITY, 0)}"
            found.append(Refusal(kind, "rule", network, undo))
            continue
        table = _number(known, _TABLE, table)
        undo = f"{ip} route del {kind} {network}" + f" table {table}" * (table != _MAIN)
        found.append(Refusal(kind, "route", network, undo))
    return found


def _number(known: dict[int, bytes], kind: int, default: int) -> int:
    data = known.get(kind, b"")
    return int.from_bytes(data, sys.byteorder) if data else default


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
