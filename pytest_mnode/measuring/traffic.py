"""Interfaces and RDMA devices that nodes sent over; each byte counts once. Pure, without torch.

A bond and its links count the same bytes, and so do a VLAN and the NIC below it, and an InfiniBand
port and the IP interface on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.netdev import Interface, read_interfaces
from pytest_mnode.machine.rdma import RdmaDevice, read_rdma
from pytest_mnode.measurement import listed
from pytest_mnode.spec.inventory import Network

LowerDevices = Mapping[str, Sequence[str]]
"""By interface or RDMA device, the lower devices that also carry and count its bytes."""


@dataclass(frozen=True, slots=True)
class SentByNode:
    """Bytes that each interface and RDMA device of a node counted as sent, headers included.

    least_bytes: bytes that the node must have sent to other nodes; 0 if it need not send. If all
    interfaces of a network together, and all others, sent less than half of it, no counter saw the
    traffic, as with soft-RoCE. lower_devices: devices that count the same bytes.
    """

    node: str
    sent_bytes: Mapping[str, int]
    least_bytes: int
    lower_devices: LowerDevices = field(default_factory=dict)

    def own_bytes(self, network: Network | None = None) -> dict[str, int]:
        """Bytes each interface sent. If several count the same bytes, the uppermost of them in
        `network` keeps these, or else the uppermost of all."""
        known = {*self.sent_bytes, *itertools.chain.from_iterable(self.lower_devices.values())}
        named = [n for n in known if network is not None and network.has_interface(n)]
        return own_bytes(self.sent_bytes, self.lower_devices, named)

    @property
    def carrier(self) -> str | None:
        """The interface that sent most; None if all together sent too little."""
        own = self.own_bytes()
        if not self._enough(sum(own.values())):
            return None
        return max(own, key=lambda name: own[name])

    def share(self, network: Network) -> float | None:
        """Share of the bytes that went over `network`, 0 to 1; None if no counter saw traffic."""
        on_it, past_it = self._sums(network)
        return on_it / (on_it + past_it) if self._enough(max(on_it, past_it)) else None

    def off_fabric(self, network: Network) -> str | None:
        """The interface that carried the traffic instead of `network`; None if none did."""
        on_it, past_it = self._sums(network)
        if past_it <= on_it or not self._enough(past_it):
            return None
        past = {
            name: n for name, n in self.own_bytes(network).items() if not self._is_on(name, network)
        }
        return max(past, key=lambda name: past[name])

    def on_network(self, network: Network) -> dict[str, int] | None:
        """Bytes that each device of `network` sent, each byte at the uppermost device that counted
        it; None if no counter saw traffic."""
        own = {n: sent for n, sent in self.own_bytes(network).items() if self._is_on(n, network)}
        lower = {
            n: all_lower_devices(n, self.lower_devices) for n in own if n in self.lower_devices
        }
        below = frozenset[str]().union(*lower.values())
        uppermost = {n: sent for n, sent in own.items() if n not in below}
        return uppermost if self._enough(sum(uppermost.values())) else None

    def _sums(self, network: Network) -> tuple[int, int]:
        """Bytes sent over the interfaces of `network`, and over all others; a node may have many
        NICs that share the traffic."""
        own = self.own_bytes(network)
        on_it = sum(n for name, n in own.items() if self._is_on(name, network))
        return on_it, sum(own.values()) - on_it

    def _is_on(self, name: str, network: Network) -> bool:
        """Whether an interface or one of its lower devices is in `network`."""
        return any(map(network.has_interface, (name, *all_lower_devices(name, self.lower_devices))))

    def _enough(self, sent: int) -> bool:
        return bool(self.least_bytes) and sent >= self.least_bytes / 2


def off_fabric(traffic: Sequence[SentByNode], network: Network) -> Culprit | None:
    """Nodes and the interfaces they used instead of `network`; None if none did."""
    instead = {t.node: name for t in traffic if (name := t.off_fabric(network))}
    if not instead:
        return None
    of_all = len(instead) == len(traffic)
    who = "all nodes" if of_all else listed(instead, 16, ", ")
    over = ", ".join(dict.fromkeys(instead.values()))
    words = f"{who} sent over {over} instead of {'+'.join(network.interfaces)}"
    return Culprit(words, () if of_all else instead)


def nodes_off_fabric(traffic: Sequence[SentByNode], network: Network, most: float) -> list[str]:
    """Nodes that sent more than the share `most` (0 to 1) elsewhere; [] if all did, because then
    it is no node's own fault."""
    shares = {one.node: one.share(network) for one in traffic}
    over = [node for node, share in shares.items() if share is not None and 1 - share > most]
    return [] if len(over) == len(traffic) else over


def lower_devices_here() -> LowerDevices:
    """Lower devices of this node's interfaces and RDMA devices."""
    return lower_devices_of(read_interfaces() or (), read_rdma() or ())


def lower_devices_of(
    interfaces: Iterable[Interface], devices: Iterable[RdmaDevice]
) -> LowerDevices:
    """By device: links of a bond, ports of a bridge, the NIC of a VLAN, and the interfaces of an
    RDMA device, whose InfiniBand ports count the interfaces' bytes too."""
    found = {nic.name: tuple(n for n in (*nic.slaves, nic.parent) if n) for nic in interfaces}
    found |= {device.name: device.netdevs for device in devices}
    known = found.keys()
    return {
        name: kept
        for name, names in found.items()
        if (kept := tuple(one for one in dict.fromkeys(names) if one in known and one != name))
    }


def own_bytes(
    counts: Mapping[str, int], lower_devices: LowerDevices, named: Collection[str] = ()
) -> dict[str, int]:
    """Bytes by device, each byte counted once, at the uppermost device that counted it.

    named: the devices in question. Bytes that a device above them counted stay with its lower
    devices, because `named` may contain only one link of a bond.
    """
    own = dict(counts)
    for upper, lowers in lower_devices.items():
        stays = upper not in named and not all_lower_devices(upper, lower_devices).isdisjoint(named)
        left = counts.get(upper, 0)
        for lower in lowers:
            taken = min(left, (counts if stays else own).get(lower, 0))
            left -= taken
            if taken and not stays:
                own[lower] -= taken
        if stays and upper in own:
            own[upper] = min(own[upper], left)
    return own


def all_lower_devices(name: str, lower_devices: LowerDevices) -> set[str]:
    """All lower devices of an interface, recursively, such as the links of a VLAN's bond."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = set(lower_devices.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found
