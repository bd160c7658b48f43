"""TCP connections from composed /proc, and of this process."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from pytest_mnode.machine.tcp import ESTABLISHED, Connection, connections, established, tcp_state
from tests.inner import OWN_ADDRESSES

HEADER = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
)
FIB = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.78.0.0
        /24 link UNICAST
     |-- 10.78.0.3
        /32 host LOCAL
     |-- 10.78.0.255
        /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
Local:
     |-- 10.78.0.3
        /32 host LOCAL
"""
INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fd780000000000000000000000000003 04 40 00 80     fab0
"""


def written(address: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = (
        int.from_bytes(packed[at : at + 4], sys.byteorder).to_bytes(4, "big").hex().upper()
        for at in range(0, len(packed), 4)
    )
    return f"{''.join(words)}:{port:04X}"


def row(remote: tuple[str, int], state: int, inode: int, timer: int = 0, again: int = 0) -> str:
    local = written("fd78::3" if ":" in remote[0] else "10.78.0.3", 4000)
    ends = f"{local} {written(*remote)}"
    return (
        f"   0: {ends} {state:02X} 00000000:00000000 {timer:02X}:00000000 {again:08X} "
        f"0 0 {inode} 1 0000000000000000 20 4 30 10 -1"
    )


def composed(proc: Path, tcp: list[str], tcp6: list[str]) -> Path:
    net, descriptors = proc / "7/net", proc / "7/fd"
    net.mkdir(parents=True)
    descriptors.mkdir()
    for inode in range(100, 110):
        (descriptors / str(inode - 97)).symlink_to(f"socket:[{inode}]")
    (descriptors / "0").symlink_to("/dev/null")
    (net / "tcp").write_text("\n".join([HEADER, *tcp]) + "\n")
    (net / "tcp6").write_text("\n".join([HEADER, *tcp6]) + "\n")
    (net / "fib_trie").write_text(FIB)
    (net / "if_inet6").write_text(INET6)
    return proc


def test_ends_that_do_not_answer(tmp_path: Path) -> None:
    timer = {"timer": 1}
    tcp = [
        row(("10.78.0.1", 5001), 2, 100, **timer, again=1),
        row(("10.78.0.1", 5002), 2, 101, **timer),  # the request to connect was just sent
        row(("10.78.0.2", 5003), 1, 102, **timer, again=3),
        row(("10.78.0.2", 5004), 1, 103, **timer, again=2),  # some packets were lost
        row(("10.78.0.2", 5005), 1, 104, timer=2, again=9),  # idle, asked whether it lives
        row(("10.78.0.2", 5006), 1, 999, **timer, again=9),  # of another process
        row(("0.0.0.0", 0), 10, 105),  # it listens
    ]
    tcp6 = [
        row(("fd78::1", 5007), 1, 106, **timer, again=15),
        row(("::ffff:10.78.0.4", 5008), 2, 107, **timer, again=2),
    ]
    state = tcp_state(7, composed(tmp_path, tcp, tcp6))
    assert state.silent == (
        ("10.78.0.1", 5001),
        ("10.78.0.2", 5003),
        ("10.78.0.4", 5008),
        ("fd78::1", 5007),
    )
    assert state.addresses == ("10.78.0.3", "fd78::3")


def test_the_address_of_a_connection_that_the_node_has_lost(tmp_path: Path) -> None:
    proc = composed(tmp_path, [row(("10.78.0.1", 5001), 1, 100)], [])
    (proc / "7/net/fib_trie").write_text("")
    assert set(tcp_state(7, proc).addresses) == {"10.78.0.3", "fd78::3"}


def test_a_connection_is_given_with_its_descriptor(tmp_path: Path) -> None:
    without = [row(("0.0.0.0", 0), state, inode) for state, inode in ((7, 101), (10, 102))]
    proc = composed(tmp_path, [row(("10.78.0.1", 5001), 1, 100), *without], [])
    [one] = connections(7, proc)
    assert one == Connection(3, ("10.78.0.3", 4000), ("10.78.0.1", 5001), ESTABLISHED, 0)


def test_a_process_that_is_gone_has_no_connections(tmp_path: Path) -> None:
    assert connections(7, tmp_path) == []
    assert tcp_state(7, tmp_path) == tcp_state(8, tmp_path)


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_connections_of_this_process(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        ours = (address, server.getsockname()[1])
        with socket.create_connection(ours) as client:
            theirs = (address, client.getsockname()[1])
            accepted, _ = server.accept()
            with accepted:
                found = established()
    assert found is not None
    assert {(ours, theirs), (theirs, ours)} <= set(found)
