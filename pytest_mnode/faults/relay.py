"""Delays and corrupts packets at the switch: `relay.py PORT BRIDGE DELAY_MS JITTER_MS BYTES`.

Takes a node's port out of its bridge, relays between the two with raw sockets, and sends every
packet on when its delay is over, with one changed byte in about BYTES (0 for none). Prints a line
when it is ready; puts the port back and ends when its standard input ends. Packets keep their
offload headers, so that segments larger than the MTU pass whole, as they do through the bridge.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import selectors
import socket
import sys
import time

from pyroute2 import IPRoute

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3
VNET_HEADER_BYTES = 10
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER_BYTES = 16 << 20
LARGEST_BYTES = 70_000
AT_ONCE = 64


def main(port: str, bridge: str, delay_s: float, jitter_s: float, every_bytes: float) -> None:
    """Relay between `port` and `bridge` until standard input ends."""
    near, far = f"relay{os.getpid()}a", f"relay{os.getpid()}b"
    with IPRoute() as netlink:
        index = socket.if_nametoindex(port)
        found = netlink.get_links(index)[0]
        if found.get_attr("IFLA_MASTER") is None:  # two relays would double each packet
            sys.exit(f"{port} has a relay already: one of delay and corrupt_payload at a time")
        mtu = found.get_attr("IFLA_MTU")
        netlink.link("add", ifname=near, kind="veth", mtu=mtu, peer={"ifname": far, "mtu": mtu})
        try:
            master = socket.if_nametoindex(bridge)
            netlink.link("set", index=socket.if_nametoindex(near), state="up")
            far_index = socket.if_nametoindex(far)
            netlink.link("set", index=far_index, state="up", master=master)
            netlink.link("set", index=index, master=0)
            try:
                relay(raw_socket(port), raw_socket(near), delay_s, jitter_s, every_bytes)
            finally:
                with contextlib.suppress(OSError):  # the node may be off: its port is gone
                    netlink.link("set", index=socket.if_nametoindex(port), master=master)
        finally:
            netlink.link("del", index=socket.if_nametoindex(near))


def raw_socket(interface: str) -> socket.socket:
    """A socket that receives all packets arriving at an interface, and sends packets out of it."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # receives nothing until it is bound
    raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        with contextlib.suppress(PermissionError):  # without root, the machine's limits apply
            raw.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    raw.bind((interface, ETH_P_ALL))
    raw.setblocking(False)
    return raw


def relay(
    one: socket.socket, other: socket.socket, delay_s: float, jitter_s: float, every_bytes: float
) -> None:
    """Pass packets both ways with a delay; one byte in `every_bytes` is corrupt, or none for 0."""
    way_out = {one: other, other: one}
    selector = selectors.DefaultSelector()
    for raw in way_out:
        selector.register(raw, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    count = 0
    print("ready", flush=True)
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(left_s):
            if not isinstance(key.fileobj, socket.socket):
                return
            out = way_out[key.fileobj]
            for packet in arrived(key.fileobj):
                count += 1
                due = time.monotonic() + delay_s + random.random() * jitter_s
                changed = random.random() * every_bytes < len(packet) and every_bytes > 0
                sent = corrupted(packet) if changed else packet
                heapq.heappush(waiting, (due, count, out, sent))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, out, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full queue drops packets, as on any switch
                out.send(packet)


def arrived(raw: socket.socket) -> list[bytes]:
    """Packets that have arrived by now, at most AT_ONCE."""
    packets: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(packets) < AT_ONCE:
            packets.append(raw.recv(LARGEST_BYTES))
    return packets


def corrupted(packet: bytes) -> bytes:
    """The packet with one changed byte in its TCP payload, which the checksum does not reveal.

    The checksum of a local segment is computed later, from the changed payload. Packets whose
    offload header does not request that, and packets without payload, stay as they are.
    """
    needs_checksum, frame = packet[0] & 1, packet[VNET_HEADER_BYTES:]
    if not needs_checksum or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return packet
    tcp = 14 + (frame[14] & 15) * 4
    payload, end = tcp + (frame[tcp + 12] >> 4) * 4, 14 + int.from_bytes(frame[16:18])
    if not payload < end <= len(frame):
        return packet
    place = VNET_HEADER_BYTES + random.randrange(payload, end)
    return packet[:place] + bytes([packet[place] ^ 0x5A]) + packet[place + 1 :]


if __name__ == "__main__":
    delay_ms, jitter_ms, corrupt_bytes = map(float, sys.argv[3:6])
    main(sys.argv[1], sys.argv[2], delay_ms / 1e3, jitter_ms / 1e3, corrupt_bytes)
