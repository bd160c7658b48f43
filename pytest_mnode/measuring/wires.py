"""Which interfaces of a node count the same bytes, so that none counts twice. Pure.

A bond and its links count what goes over both, and so do a VLAN and the NIC below it, and a port of
InfiniBand and the IP interface on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_mnode.machine.netdev import Interface
from pytest_mnode.machine.rdma import RdmaDevice

Beneath = Mapping[str, Sequence[str]]
"""By interface or RDMA device, those that carry its bytes as well."""


def beneath_of(interfaces: Iterable[Interface], devices: Iterable[RdmaDevice]) -> Beneath:
    """Links of a bond, ports of a bridge, the NIC of a VLAN, and the interfaces of an RDMA device,
    whose bytes its ports count too where it is InfiniBand."""
    found = {nic.name: tuple(n for n in (*nic.slaves, nic.parent) if n) for nic in interfaces}
    found |= {device.name: device.netdevs for device in devices}
    known = found.keys()
    return {
        name: kept
        for name, names in found.items()
        if (kept := tuple(one for one in dict.fromkeys(names) if one in known and one != name))
    }


def own_bytes(
    counts: Mapping[str, int], beneath: Beneath, named: Collection[str] = ()
) -> dict[str, int]:
    """Each byte once, with the uppermost that counted it.

    named: those that are asked about. What something above them counted stays with those beneath
    it, as a bond may have links of which one is asked about.
    """
    own = dict(counts)
    for upper, lowers in beneath.items():
        stays = upper not in named and not all_beneath(upper, beneath).isdisjoint(named)
        left = counts.get(upper, 0)
        for lower in lowers:
            taken = min(left, (counts if stays else own).get(lower, 0))
            left -= taken
            if taken and not stays:
                own[lower] -= taken
        if stays and upper in own:
            own[upper] = min(own[upper], left)
    return own


def all_beneath(name: str, beneath: Beneath) -> set[str]:
    """Whatever is beneath an interface, as the links of the bond of a VLAN are."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = set(beneath.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found
