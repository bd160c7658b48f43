"""Routes and rules of this network namespace that were configured to refuse packets."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
from dataclasses import dataclass

from pytest_mnode.machine.netlink import answered, attribute, attributes, dumped, messages

_RTM_NEWROUTE, _RTM_GETROUTE, _RTM_NEWRULE, _RTM_GETRULE = 24, 26, 32, 34
_DST, _SRC, _OIF, _PRIORITY, _TABLE = 1, 2, 4, 6, 15
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


def leaves_by(destination: str, source: str) -> str | None:
    """Interface by which packets between two IP addresses leave; None if there is no route."""
    there, own = (ipaddress.ip_address(text.partition("%")[0]) for text in (destination, source))
    family = socket.AF_INET if there.version == 4 else socket.AF_INET6
    body = _ROUTE_OR_RULE.pack(family, there.max_prefixlen, own.max_prefixlen, *[0] * 6)
    body += attribute(_DST, there.packed) + attribute(_SRC, own.packed)
    try:
        for kind, route in answered(_RTM_GETROUTE, body):
            found = dict(attributes(route[_ROUTE_OR_RULE.size :]))
            if kind == _RTM_NEWROUTE and _OIF in found:
                return socket.if_indextoname(_number(found, _OIF, 0))
    except OSError:
        return None
    return None


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
