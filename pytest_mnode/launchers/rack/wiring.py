"""The rack's cables by netlink: a bridge per link, a veth pair per node and link, tbf at both ends.

Runs in the rack's first process, whose network namespace is the switch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins as queue_kinds

from pytest_mnode.launchers.rack.plan import Link, Plan
from pytest_mnode.machine import namespaces

BURST_BYTES = 256_000
LEAST_BURST_BYTES = 68_000
LEAST_PAIR_BURST_BYTES = 16_000
QUEUE_S = 0.020
FORWARDING_LIMIT_S = 5.0
ETH_P_IP = 0x0800

# pyroute2 would put the unknown bfifo at the root; bfifo has pfifo's one parameter.
queue_kinds.setdefault("bfifo", queue_kinds["pfifo"])


def burst_bytes(rate_mbit_s: float) -> int:
    """Burst size of tbf: 10 ms at the link's rate, but at least 68 kB and at most 256 kB.

    A burst makes short transfers look faster, so a slow link gets a small one, but not so small
    that the kernel must split 64 kB segments first.
    """
    return max(LEAST_BURST_BYTES, min(BURST_BYTES, int(rate_mbit_s * 1e6 / 8 * 0.010)))


class Switch:
    """The switch of a rack, with all cables that end in it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._netlink = IPRoute()
        self._rates = {
            (index, link.name, way): link.rate_mbit_s
            for index in range(plan.nodes)
            for link in plan.links
            for way in ("tx", "rx")
        }
        self._pairs: dict[tuple[int, str], dict[int, float]] = {}
        self._pulled: set[tuple[int, str]] = set()
        self._absent: set[tuple[int, str]] = set()
        self._up("lo")
        for link in plan.links:
            if link is plan.spare:
                continue
            with _step(f"bridge {link.name} at the switch"):
                self._netlink.link(
                    "add", ifname=link.name, kind="bridge", br_stp_state=0, br_forward_delay=0
                )
            self._up(link.name)

    def plug_in(self, index: int, pid: int, links: Sequence[Link] = ()) -> None:
        """Connect the node whose first process is `pid`, with the rates last set.

        links: links to connect; () for all that are not absent.
        """
        plan = self._plan
        links = [one for one in links or plan.links if (index, one.name) not in self._absent]
        for link in links:
            port = plan.port(index, link.name)
            switch = plan.fabric if link is plan.spare else link
            with _step(f"veth {port}"):
                self._netlink.link(
                    "add",
                    ifname=port,
                    kind="veth",
                    mtu=link.mtu,
                    master=socket.if_nametoindex(switch.name),
                    peer={
                        "ifname": link.name,
                        "address": plan.mac(index, link.name),
                        "mtu": link.mtu,
                        "net_ns_pid": pid,
                    },
                )
        with namespaces.network_of(pid), IPRoute() as there:
            there.link("set", index=socket.if_nametoindex("lo"), state="up")
            for link in links:
                interface = socket.if_nametoindex(link.name)
                if plan.spare is None or link is plan.management:
                    _add_address(there, interface, plan.address(index, link.name))
                _shape(there, interface, self._rates[index, link.name, "tx"])
                there.link("set", index=interface, state="up")
            if plan.spare is not None and plan.spare in links:
                self._join(there, index, plan.spare)
        if plan.spare is not None and plan.spare in links:
            with _step("spare port at the switch"):
                ends = [plan.port(index, one.name) for one in (plan.fabric, plan.spare)]
                _use_second_as_spare(self._netlink, *ends)
        for link in links:
            port = plan.port(index, link.name)
            self._shape_port(index, link.name)
            if (index, link.name) not in self._pulled:
                self._up(port)

    def _join(self, there: IPRoute, index: int, spare: Link) -> None:
        """Make one interface of a node's two ports, as a bond with a spare port does, which not
        every kernel has: a bridge."""
        plan = self._plan
        names = plan.fabric.name, spare.name
        with _step(f"bridge {plan.joined}"):
            there.link(
                "add",
                ifname=plan.joined,
                kind="bridge",
                address=plan.mac(index, plan.fabric.name),
                mtu=plan.fabric.mtu,
                br_stp_state=0,
                br_forward_delay=0,
            )
            joined = socket.if_nametoindex(plan.joined)
            for name in names:
                there.link("set", index=socket.if_nametoindex(name), master=joined)
            _use_second_as_spare(there, *names)
            there.link("set", index=joined, state="up")
        _add_address(there, joined, plan.address(index, plan.fabric.name))

    def await_forwarding(self, indices: list[int]) -> None:
        """Wait until the switch forwards packets; raises TimeoutError that names a silent port."""
        ports = {
            self._plan.port(index, link.name)
            for index in indices
            for link in self._plan.links
            if (index, link.name) not in self._pulled | self._absent
        }
        deadline = time.monotonic() + FORWARDING_LIMIT_S
        while True:
            for link in self._netlink.get_links():
                if link.get_attr("IFLA_OPERSTATE") == "UP":
                    ports.discard(link.get_attr("IFLA_IFNAME"))
            if not ports:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"switch port {min(ports)} does not forward yet")
            time.sleep(0.002)

    def cut(self, index: int) -> None:
        for link in self._plan.links:
            if (index, link.name) not in self._absent:
                self._down(self._plan.port(index, link.name))

    def unplug(self, index: int) -> None:
        for link in self._plan.links:
            self._remove(index, link.name)

    def set_presence(self, index: int, pid: int | None, link_name: str, present: bool) -> None:
        """Remove both ends of a link, or add them again; remembered if the node is off."""
        was_there = (index, link_name) not in self._absent
        (self._absent.discard if present else self._absent.add)((index, link_name))
        if pid is not None and was_there and not present:
            self._remove(index, link_name)
        elif pid is not None and present and not was_there:
            self.plug_in(index, pid, [self._plan.link(link_name)])

    def _remove(self, index: int, link_name: str) -> None:
        # The kernel may have removed it already, together with the node's end.
        with contextlib.suppress(OSError, NetlinkError):
            port = socket.if_nametoindex(self._plan.port(index, link_name))
            self._netlink.link("del", index=port)

    def set_rate(
        self, index: int, pid: int | None, link_name: str, rate_mbit_s: float, way: str = "both"
    ) -> None:
        """Set a link's rate, both ways or one; a node that is off (pid None) gets it at boot."""
        for one in ("tx", "rx") if way == "both" else (way,):
            self._rates[index, link_name, one] = rate_mbit_s
        if pid is None or (index, link_name) in self._absent:
            return
        if way != "tx":
            port = socket.if_nametoindex(self._plan.port(index, link_name))
            _shape(self._netlink, port, rate_mbit_s)
        if way != "rx":
            with namespaces.network_of(pid), IPRoute() as there:
                _shape(there, socket.if_nametoindex(link_name), rate_mbit_s)

    def set_pair_rate(
        self, source: int, target: int, plugged: bool, link_name: str, rate_mbit_s: float
    ) -> None:
        """Limit the rate from `source` to `target`; 0 removes the limit."""
        pairs = self._pairs.setdefault((target, link_name), {})
        pairs.pop(source, None)
        if rate_mbit_s:
            pairs[source] = rate_mbit_s
        if plugged and (target, link_name) not in self._absent:
            port = socket.if_nametoindex(self._plan.port(target, link_name))
            # tbf is removed, not changed: it drops all packets once its inner queue is removed.
            self._netlink.tc("del", index=port, root=True)
            self._shape_port(target, link_name)

    def _shape_port(self, index: int, link_name: str) -> None:
        """Limit what the switch sends to a node, in total and by sender."""
        port = socket.if_nametoindex(self._plan.port(index, link_name))
        rate_mbit_s = self._rates[index, link_name, "rx"]
        _shape(self._netlink, port, rate_mbit_s)
        if pairs := self._pairs.get((index, link_name)):
            senders = {self._plan.address(i, link_name): rate for i, rate in pairs.items()}
            _shape_by_sender(self._netlink, port, rate_mbit_s, senders)

    def set_link(self, index: int, plugged: bool, link_name: str, up: bool) -> None:
        """Set a switch port up or down; remembered if the node is off (not plugged)."""
        (self._pulled.discard if up else self._pulled.add)((index, link_name))
        if plugged and (index, link_name) not in self._absent:
            port = self._plan.port(index, link_name)
            (self._up if up else self._down)(port)

    def _up(self, name: str) -> None:
        self._netlink.link("set", index=socket.if_nametoindex(name), state="up")

    def _down(self, name: str) -> None:
        self._netlink.link("set", index=socket.if_nametoindex(name), state="down")


def _add_address(netlink: IPRoute, interface: int, address: str) -> None:
    with _step(f"address {address}"):
        netlink.addr("add", index=interface, address=address, prefixlen=24)


def _use_second_as_spare(netlink: IPRoute, first: str, second: str) -> None:
    """Have a bridge send by its second port what it would send by the first, while that has no
    carrier, and nothing else."""
    port, spare = socket.if_nametoindex(first), socket.if_nametoindex(second)
    netlink.brport("set", index=spare, unicast_flood=0, mcast_flood=0, bcast_flood=0, learning=0)
    netlink.brport("set", index=port, backup_port=spare)


def _shape(netlink: IPRoute, interface: int, rate_mbit_s: float) -> None:
    """Limit what this interface sends."""
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


def _shape_by_sender(
    netlink: IPRoute, interface: int, rate_mbit_s: float, senders: dict[str, float]
) -> None:
    """Within what this interface sends, limit what comes from these IPv4 addresses.

    Each sender has a queue of its own, so that none fills another's; all other packets share one
    queue without a limit of its own.
    """
    with _step("htb queue"):
        netlink.tc("add", "htb", interface, 0x20000, parent=0x10001, default=1)
    classes = [(None, 2 * rate_mbit_s), *senders.items()]
    for number, (address, rate) in enumerate(classes, 1):
        what, handle = f"htb class of {rate:g} Mbit/s", 0x20000 + number
        burst = max(LEAST_PAIR_BURST_BYTES, int(rate * 1e6 / 8 * 0.005))
        with _step(what):
            netlink.tc(
                "add-class",
                "htb",
                interface,
                handle,
                parent=0x20000,
                rate=f"{int(rate * 1e6)}bit",
                burst=burst,
                quantum=1 << 16,
            )
            limit = int(rate * 1e6 / 8 * QUEUE_S) + BURST_BYTES
            netlink.tc("add", "bfifo", interface, 0, parent=handle, limit=limit)
        if address is not None:
            source = int.from_bytes(socket.inet_aton(address))
            with _step(what):
                netlink.tc(
                    "add-filter",
                    "u32",
                    interface,
                    0,
                    parent=0x20000,
                    prio=number,
                    protocol=ETH_P_IP,
                    target=handle,
                    keys=[f"{source:#x}/0xffffffff+12"],
                )


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    """Name this step in errors of the kernel."""
    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code), what) from error
