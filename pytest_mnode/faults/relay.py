"""Holds packets back: `relay.py PORT BRIDGE DELAY_MS JITTER_MS`, run at the switch.

Takes a node's port out of its bridge, stands between the two with raw sockets, and lets every
packet go when its time has come. Prints a line when it does; puts things back and ends when its
standard input does. Packets come and go with their offload headers, so that segments larger than
the MTU pass whole, as they do through the bridge.
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
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER_BYTES = 16 << 20
LARGEST_BYTES = 70_000
AT_ONCE = 64


def main(port: str, bridge: str, delay_s: float, jitter_s: float) -> None:
    """Stand between `port` and `bridge` until standard input ends."""
    near, far = f"relay{os.getpid()}a", f"relay{os.getpid()}b"
    with IPRoute() as netlink:
        index = socket.if_nametoindex(port)
        mtu = netlink.get_links(index)[0].get_attr("IFLA_MTU")
        netlink.link("add", ifname=near, kind="veth", mtu=mtu, peer={"ifname": far, "mtu": mtu})
        try:
            master = socket.if_nametoindex(bridge)
            netlink.link("set", index=socket.if_nametoindex(near), state="up")
            far_index = socket.if_nametoindex(far)
            netlink.link("set", index=far_index, state="up", master=master)
            netlink.link("set", index=index, master=0)
            try:
                relay(raw_socket(port), raw_socket(near), delay_s, jitter_s)
            finally:
                with contextlib.suppress(OSError):  # the node may be off: its port is gone
                    netlink.link("set", index=socket.if_nametoindex(port), master=master)
        finally:
            netlink.link("del", index=socket.if_nametoindex(near))


def raw_socket(interface: str) -> socket.socket:
    """All that comes in by an interface, and a way out of it."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # deaf until it is bound
    raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        with contextlib.suppress(PermissionError):  # without root the limits of the machine hold
            raw.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    raw.bind((interface, ETH_P_ALL))
    raw.setblocking(False)
    return raw


def relay(one: socket.socket, other: socket.socket, delay_s: float, jitter_s: float) -> None:
    """Pass packets both ways, each late."""
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
                heapq.heappush(waiting, (due, count, out, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, out, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full queue drops, as on any switch
                out.send(packet)


def arrived(raw: socket.socket) -> list[bytes]:
    """What has come in by now, not too much of it."""
    packets: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(packets) < AT_ONCE:
            packets.append(raw.recv(LARGEST_BYTES))
    return packets


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3, float(sys.argv[4]) / 1e3)
