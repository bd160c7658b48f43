"""NICs that the fabric's patterns name: RDMA ports, and the NICs near which ranks are placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_mnode.machine.netdev import Interface, physical_below, read_interfaces
from pytest_mnode.machine.rdma import Port, RdmaDevice, read_rdma


@dataclass(frozen=True, slots=True)
class FabricNic:
    """One NIC. numa_node: None if the kernel does not know it (−1)."""

    name: str
    numa_node: int | None


def fabric_nics(
    patterns: Sequence[str], interfaces: Sequence[Interface], devices: Sequence[RdmaDevice]
) -> tuple[FabricNic, ...]:
    """NICs that match a pattern of `fabric.interfaces`, each once: RDMA devices if any match.

    A bond or VLAN is replaced by the physical interfaces below it.
    """

    def named(*names: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    rdma = [one for one in devices if named(one.name, *one.netdevs)]
    if rdma:
        places = {one.name: one.numa_node for one in rdma}
    else:
        known = {one.name: one for one in interfaces}
        below = dict.fromkeys(n for i in known if named(i) for n in physical_below(known[i], known))
        places = {name: known[name].numa_node for name in below}
    return tuple(FabricNic(name, at) for name, at in places.items())


def named_ports(patterns: Sequence[str], devices: Sequence[RdmaDevice]) -> list[Port]:
    """RDMA ports whose device or interface matches a pattern of `fabric.interfaces`."""
    return [
        port
        for device in devices
        for port in device.ports
        for own in [port.netdevs if len(device.ports) > 1 else ()]
        for names in [(device.name, *(own or device.netdevs))]
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
    ]


def fabric_ports(
    patterns: Sequence[str], nics: int, protocol: str | None, devices: Sequence[RdmaDevice]
) -> list[Port]:
    """RDMA ports of a fabric that has `nics` NICs per node and this protocol.

    If a pattern (mlx5_*) names more ports than the fabric has, those of another link layer do not
    count: beside an InfiniBand fabric, storage is often on Ethernet ports.
    """
    named = named_ports(patterns, devices)
    return named if len(named) <= nics else [one for one in named if one.may_carry(protocol)]


def nic_of_rank(
    nics: Sequence[FabricNic], local_rank: int, local_size: int, runs_on: int | None = None
) -> FabricNic | None:
    """The NIC near which a rank should be placed: local ranks share the NICs in order.

    runs_on: the NUMA node of all of its CPUs; a NIC on it replaces the rank's share; None if
    unknown. Returns None if there is no NIC.
    """
    here = [nic for nic in nics if runs_on is not None and nic.numa_node == runs_on]
    return here[0] if here else nics[local_rank * len(nics) // local_size] if nics else None


def read_fabric_nics(patterns: Sequence[str], root: Path = Path("/")) -> tuple[FabricNic, ...]:
    """`fabric_nics` of the machine below `root`, read in the calling thread only."""
    return fabric_nics(patterns, read_interfaces(root) or (), read_rdma(root) or ())
