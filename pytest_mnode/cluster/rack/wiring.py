"""The rack's cables by netlink: a bridge per link, a veth pair per node and link, tbf at both ends.

Runs in the rack's first process, whose network namespace is the switch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from pytest_mnode.cluster.rack import namespaces
from pytest_mnode.cluster.rack.plan import Plan

BURST_BYTES = 256_000
LEAST_BURST_BYTES = 68_000
QUEUE_S = 0.020
FORWARDING_LIMIT_S = 5.0


def burst_bytes(rate_mbit_s: float) -> int:
    """What tbf lets through at once: 10 ms worth of a slow link, at most 256 kB.

    A burst flatters short transfers, so a slow link gets a small one; but not so small that the
    kernel had to cut 64 kB segments apart first.
    """
    return max(LEAST_BURST_BYTES, min(BURST_BYTES, int(rate_mbit_s * 1e6 / 8 * 0.010)))


class Switch:
    """The switch of a rack, with all cables that end in it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._netlink = IPRoute()
        self._rates = {
            (index, link.name): link.rate_mbit_s
            for index in range(plan.nodes)
            for link in plan.links
        }
        self._pulled: set[tuple[int, str]] = set()
        self._up("lo")
        for link in plan.links:
            with _step(f"bridge {link.name} at the switch"):
                self._netlink.link(
                    "add", ifname=link.name, kind="bridge", br_stp_state=0, br_forward_delay=0
                )
            self._up(link.name)

    def plug_in(self, index: int, pid: int) -> None:
        """Cable the node whose first process is `pid`, with the rates last set."""
        plan = self._plan
        for link in plan.links:
            port = plan.port(index, link.name)
            with _step(f"veth {port}"):
                self._netlink.link(
                    "add",
                    ifname=port,
                    kind="veth",
                    mtu=link.mtu,
                    master=socket.if_nametoindex(link.name),
                    peer={
                        "ifname": link.name,
                        "address": plan.mac(index, link.name),
                        "mtu": link.mtu,
                        "net_ns_pid": pid,
                    },
                )
        with namespaces.network_of(pid), IPRoute() as there:
            there.link("set", index=socket.if_nametoindex("lo"), state="up")
            for link in plan.links:
                interface = socket.if_nametoindex(link.name)
                address = plan.address(index, link.name)
                with _step(f"address {address}"):
                    there.addr("add", index=interface, address=address, prefixlen=24)
                _shape(there, interface, self._rates[index, link.name])
                there.link("set", index=interface, state="up")
        for link in plan.links:
            port = plan.port(index, link.name)
            _shape(self._netlink, socket.if_nametoindex(port), self._rates[index, link.name])
            if (index, link.name) not in self._pulled:
                self._up(port)

    def await_forwarding(self, indices: list[int]) -> None:
        """Wait until the switch passes packets on; raises TimeoutError that names the port."""
        ports = {
            self._plan.port(index, link.name)
            for index in indices
            for link in self._plan.links
            if (index, link.name) not in self._pulled
        }
        deadline = time.monotonic() + FORWARDING_LIMIT_S
        while True:
            for link in self._netlink.get_links():
                if link.get_attr("IFLA_OPERSTATE") == "UP":
                    ports.discard(link.get_attr("IFLA_IFNAME"))
            if not ports:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"switch port {min(ports)} carries nothing yet")
            time.sleep(0.002)

    def cut(self, index: int) -> None:
        """Both links of a node down, now."""
        for link in self._plan.links:
            self._down(self._plan.port(index, link.name))

    def unplug(self, index: int) -> None:
        """Remove the cables of a node that is gone."""
        for link in self._plan.links:
            # The kernel may have taken it away already, together with the node's end.
            with contextlib.suppress(OSError, NetlinkError):
                port = socket.if_nametoindex(self._plan.port(index, link.name))
                self._netlink.link("del", index=port)

    def set_rate(self, index: int, pid: int | None, link_name: str, rate_mbit_s: float) -> None:
        """Another rate in both directions; a node that is off (pid None) gets it when it boots."""
        self._rates[index, link_name] = rate_mbit_s
        if pid is None:
            return
        port = socket.if_nametoindex(self._plan.port(index, link_name))
        _shape(self._netlink, port, rate_mbit_s)
        with namespaces.network_of(pid), IPRoute() as there:
            _shape(there, socket.if_nametoindex(link_name), rate_mbit_s)

    def set_link(self, index: int, plugged: bool, link_name: str, up: bool) -> None:
        """Switch port up or down; remembered for a node that is off (not plugged)."""
        (self._pulled.discard if up else self._pulled.add)((index, link_name))
        if plugged:
            port = self._plan.port(index, link_name)
            (self._up if up else self._down)(port)

    def _up(self, name: str) -> None:
        self._netlink.link("set", index=socket.if_nametoindex(name), state="up")

    def _down(self, name: str) -> None:
        self._netlink.link("set", index=socket.if_nametoindex(name), state="down")


def _shape(netlink: IPRoute, interface: int, rate_mbit_s: float) -> None:
    """Limit what leaves this interface."""
    rate_bytes_s = rate_mbit_s * 1e6 / 8
    burst = burst_bytes(rate_mbit_s)
    with _step(f"tbf queue of {rate_mbit_s:g} Mbit/s"):
        netlink.tc(
            "replace",
            "tbf",
            interface,
            0x10000,
            rate=f"{int(rate_mbit_s * 1e6)}bit",
            burst=burst,
            limit=int(rate_bytes_s * QUEUE_S) + burst,
        )


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    """Name the step in what the kernel refuses."""
    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code), what) from error
