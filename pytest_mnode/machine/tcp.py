"""TCP connections of a process, and whether their other ends answer, from /proc.

psutil shows neither retransmissions nor the addresses of another network namespace.

Source: Linux, Documentation/networking/proc_net_tcp.rst (columns, timers, states).
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.netdev import plain
from pytest_mnode.machine.process import descriptors

Endpoint = tuple[str, int]
"""Address and port. An IPv4 address in an IPv6 socket is given as IPv4."""
ESTABLISHED, SYN_SENT = 1, 2
_RETRANSMISSION = 1
"""Its timer: something was sent and is not acknowledged."""
_SILENT_AFTER = {SYN_SENT: 1, ESTABLISHED: 3}
"""Retransmissions in a row after which the other end does not answer: 1 s and 1.4 s or more after
the first transmission, since each waits twice as long as the one before."""
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection. retransmissions: how often in a row the oldest unacknowledged data, or the
    request to connect, was sent again; 0 if all is acknowledged."""

    descriptor: int
    local: Endpoint
    remote: Endpoint
    state: int
    retransmissions: int

    @property
    def silent(self) -> bool:
        """Whether the other end's host does not answer.

        A stopped process is not silent, since its kernel acknowledges what it receives.
        """
        return self.retransmissions >= _SILENT_AFTER.get(self.state, 1 << 30)


@dataclass(frozen=True)
class TcpState:
    """TCP of a process. silent: the other ends that do not answer; addresses: of its network
    namespace and of its connections, which may have lost theirs, without loopback."""

    silent: tuple[Endpoint, ...] = ()
    addresses: tuple[str, ...] = ()


def tcp_state(pid: int, proc: Path = Path("/proc")) -> TcpState:
    found = connections(pid, proc)
    silent = {one.remote for one in found if one.silent}
    own = dict.fromkeys([*_addresses(proc / str(pid) / "net"), *(one.local[0] for one in found)])
    addresses = tuple(one for one in own if not ipaddress.ip_address(one).is_loopback)
    return TcpState(tuple(sorted(silent)), addresses)


def established() -> tuple[tuple[Endpoint, Endpoint], ...] | None:
    """Both ends of each established connection of this process; None if they cannot be read."""
    if sysfs.text(Path("/proc/self/net/tcp")) is None:
        return None
    return tuple((one.local, one.remote) for one in connections() if one.state == ESTABLISHED)


def text(endpoint: Endpoint) -> str:
    address, port = endpoint
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def connections(pid: int | str = "self", proc: Path = Path("/proc")) -> list[Connection]:
    """Connections of a process, without sockets that have no other end; none if unreadable."""
    process = proc / str(pid)
    by_socket = {file: descriptor for descriptor, file in descriptors(process).items()}
    lines = [
        words
        for table in ("tcp", "tcp6")
        for line in (sysfs.text(process / "net" / table) or "").splitlines()[1:]
        if len(words := line.split()) > 9
    ]
    return [
        Connection(
            by_socket[f"socket:[{inode}]"],
            _endpoint(local),
            _endpoint(remote),
            int(state, 16),
            int(sent_again, 16) if int(timer[:2], 16) == _RETRANSMISSION else 0,
        )
        for _, local, remote, state, _, timer, sent_again, _, _, inode, *_ in lines
        if f"socket:[{inode}]" in by_socket and _endpoint(remote)[1]
    ]


def _endpoint(text: str) -> Endpoint:
    """Each four bytes of an address are written as a number in the byte order of the machine."""
    address, port = text.split(":")
    words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return plain(str(ipaddress.ip_address(packed))), int(port, 16)


def _addresses(net: Path) -> Iterator[str]:
    yield from _LOCAL.findall(sysfs.text(net / "fib_trie") or "")
    for line in (sysfs.text(net / "if_inet6") or "").splitlines():
        yield str(ipaddress.ip_address(bytes.fromhex(line.split()[0])))
