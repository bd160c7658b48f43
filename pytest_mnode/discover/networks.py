"""Which of a node's interfaces make up its fabric, and which its management network. Pure.

A guess from what is there, told with its reason; the operator knows better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from pytest_mnode.criteria.preflight.datagrams import usable
from pytest_mnode.discover.facts import (
    Kind,
    Networks,
    NetworkSeen,
    Nic,
    NodeLook,
    RdmaPort,
    Seen,
)
from pytest_mnode.discover.sharing import one_a_wire

T = TypeVar("T")
N = TypeVar("N", int, float)
_NEAR = ("PIX", "PXB")
"""Below the same PCI switch. Source: nvidia-smi topo --matrix, legend."""
_KINDS: dict[str, Kind] = {"InfiniBand": "infiniband", "RoCE": "roce", "EFA": "efa"}


def networks_of(node: Seen, shared: frozenset[str] = frozenset()) -> Networks:
    """What a node shows. shared: addresses that other nodes have too, so that none is reached."""
    look = node.look
    assert look is not None
    fabric = _rdma_fabric(node, look) or _ethernet_fabric(node, look, shared)
    if fabric is None:
        return Networks(None, _management(node, look, ()), _no_fabric(look, shared))
    covered = _covered(look, fabric)
    management = _management(node, look, covered)
    return Networks(fabric, management, "", _no_management(node, look, covered, management))


def has_accelerators(look: NodeLook) -> bool:
    """Whether there are any, by NVML or by PCI."""
    told = look.accelerators
    return told is not None and bool(told.models or told.on_pci)


def _rdma_fabric(node: Seen, look: NodeLook) -> NetworkSeen | None:
    real = [port for port in look.rdma or () if not port.virtual]
    ports = [port for port in real if port.active and _kind(port) is not None]
    if not has_accelerators(look):
        return None  # ranks on CPUs speak TCP
    aside = [
        f"{p.device}:{p.port} is {p.state or 'of unknown state'}" for p in real if not p.active
    ]
    aside += [
        f"{p.device}:{p.port} speaks {p.protocol or 'an unknown protocol'}"
        for p in real
        if p.active and _kind(p) is None
    ]
    ports, left = _apart(ports, [p for p in ports if _carries(p, node, look)])
    aside += [f"{p.device} has the address for control" for p in left]
    near, far = _apart(ports, [p for p in ports if p.nearest not in _NEAR])
    how = ""
    if far:
        aside += [
            f"{p.device} is {p.nearest or 'not known how far'} from accelerators" for p in far
        ]
        ports, how = near, ", below the same PCI switch as an accelerator"
    if not ports:
        return None
    groups: dict[tuple[Kind | None, float | None], list[RdmaPort]] = {}
    for port in ports:
        groups.setdefault((_kind(port), port.rate_gbits_s), []).append(port)
    (kind, rate), chosen = max(
        groups.items(), key=lambda g: ((g[0][1] or 0) * len(g[1]), len(g[1]))
    )
    assert kind is not None
    aside += [
        f"{p.device} at {p.rate_gbits_s or 'an unknown rate'} Gbit/s"
        for p in ports
        if p not in chosen
    ]
    own = _nics_of(look, chosen)
    addressed = bool(own) and all(usable(nic.addresses) for nic in own)
    # Nobody sets the MTU of IP over InfiniBand right where nobody uses it.
    sized = own if addressed or kind != "infiniband" else []
    return NetworkSeen(
        kind=kind,
        interfaces=tuple(dict.fromkeys(port.device for port in chosen)),
        nics=len(chosen),
        rate_mbits_s=None if rate is None else rate * 1e3,
        mtu_bytes=_only([nic.mtu_bytes for nic in sized] or [port.mtu_bytes for port in chosen]),
        addressed=addressed,
        why=f"RDMA ports that are ACTIVE{how}",
        aside=tuple(aside),
        gid_types=tuple(sorted({t for port in chosen for t in port.gid_types})),
    )


def _kind(port: RdmaPort) -> Kind | None:
    return _KINDS.get(port.protocol or "")


def _carries(port: RdmaPort, node: Seen, look: NodeLook) -> bool:
    """Whether a port's interface has the address for control, or what is made of it."""
    names = {port_nic.name for port_nic in _nics_of(look, [port])}
    return any(
        node.address in nic.addresses and names & {nic.name, *nic.wires} for nic in look.nics or ()
    )


def _nics_of(look: NodeLook, ports: Sequence[RdmaPort]) -> list[Nic]:
    names = {name for port in ports for name in port.netdevs}
    return [nic for nic in look.nics or () if nic.name in names]


def _ethernet_fabric(node: Seen, look: NodeLook, shared: frozenset[str]) -> NetworkSeen | None:
    links, doubled = one_a_wire(_links(look, shared), node.address)
    others, control = _apart(links, [nic for nic in links if node.address in nic.addresses])
    best = max((nic.rate_mbits_s for nic in links if nic.rate_mbits_s), default=None)
    fastest = [nic for nic in links if best is not None and nic.rate_mbits_s == best]
    chosen, spared = _apart(fastest, control)
    why = "the fastest interfaces that are up and have an address of their own"
    if not chosen or (chosen == control and any(nic.rate_mbits_s is None for nic in others)):
        # Nobody tells how fast they are; that which ranks need not be reached by is more likely.
        chosen = [nic for nic in others if nic.rate_mbits_s is None] or others or control
        why = "interfaces that are up, with an address of their own; no rate sets them apart"
    if not chosen:
        return None
    aside = [f"{nic.name} is as fast, and has the address for control" for nic in spared]
    aside += doubled
    if not has_accelerators(look):
        aside += [
            f"{port.device} could do RDMA, and ranks without accelerators speak TCP"
            for port in look.rdma or ()
            if port.active and not port.virtual
        ]
    aside += [
        f"{nic.name} at {nic.rate_mbits_s or 'an unknown rate'} Mbit/s"
        for nic in others
        if nic not in chosen
    ]
    return NetworkSeen(
        kind="ethernet",
        interfaces=tuple(nic.name for nic in chosen),
        nics=len(chosen),
        rate_mbits_s=_only(nic.rate_mbits_s for nic in chosen),
        mtu_bytes=_only(nic.mtu_bytes for nic in chosen),
        addressed=True,
        why=why,
        aside=tuple(aside),
    )


def _links(look: NodeLook, shared: frozenset[str]) -> list[Nic]:
    """Interfaces that could carry something to another node."""
    return [
        nic
        for nic in look.nics or ()
        if nic.up is not False
        and nic.part_of is None
        and (nic.hardware or nic.shaped)
        and (address := usable(nic.addresses)) is not None
        and address not in shared
    ]


def _covered(look: NodeLook, fabric: NetworkSeen) -> tuple[str, ...]:
    """Interfaces of a fabric, those of its RDMA devices too, and what is on the same wires."""
    names, nics = set(fabric.interfaces), look.nics or ()
    own = [nic for nic in nics if nic.name in names or names & set(nic.rdma_devices)]
    wires = {wire for nic in own for wire in nic.wires}
    return tuple(nic.name for nic in nics if nic in own or wires & set(nic.wires))


def _management(node: Seen, look: NodeLook, covered: Sequence[str]) -> NetworkSeen | None:
    found = [nic for nic in look.nics or () if node.address in nic.addresses]
    if not found or found[0].name in covered or found[0].rate_mbits_s is None:
        return None
    nic = found[0]
    return NetworkSeen(
        kind="ethernet",
        interfaces=(nic.name,),
        nics=1,
        rate_mbits_s=nic.rate_mbits_s,
        mtu_bytes=nic.mtu_bytes,
        addressed=True,
        why="it has the address by which this run reaches the node",
    )


def _no_management(
    node: Seen, look: NodeLook, covered: Sequence[str], found: NetworkSeen | None
) -> str:
    if found is not None:
        return ""
    there = [nic for nic in look.nics or () if node.address in nic.addresses]
    if not there:
        return f"no interface has the address for control, {node.address}"
    if there[0].name in covered:
        return f"{there[0].name} of the fabric has the address for control too"
    return f"{there[0].name} has the address for control, and tells no rate"


def _no_fabric(look: NodeLook, shared: frozenset[str]) -> str:
    if look.nics is None:
        return look.unread.get("interfaces", "its interfaces cannot be read")
    reasons = []
    for nic in look.nics:
        address = usable(nic.addresses)
        if nic.up is False:
            reasons.append(f"{nic.name} is down")
        elif address is None:
            reasons.append(f"{nic.name} has no address")
        elif address in shared:
            reasons.append(f"{nic.name} has {address}, as other nodes have")
        else:
            reasons.append(f"{nic.name} is virtual, and nothing says what carries it")
    return "; ".join(reasons) or "it has no interface but loopback"


def _apart(links: list[T], taken: list[T]) -> tuple[list[T], list[T]]:
    """Those that are not taken and those that are; all of them, and none, where no other is."""
    rest = [link for link in links if link not in taken]
    return (rest, [link for link in links if link in taken]) if rest else (links, [])


def _only(values: Iterable[N | None]) -> N | None:
    """The one value that all have; None where they differ or one does not tell."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
